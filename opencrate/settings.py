"""The options of `eval`, `audit`, `analyze` and `explore`: values only, so that a help text does not wait for torch."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from .bounds import AtLeastOne, NotNegative, OneOf, Positive, Settings
from .data.settings import Dataset
from .definitions import DEFINITIONS, Definition

SECTIONS = ("layers", "audit", "epochs", "subspaces", "tokens", "attention", "patches", "ablation")


@dataclass(frozen=True)
class Measuring(Settings):
    """What to measure, and how.

    Args:
        data: the pictures: by default those of the checkpoint's run, or of --recipe.
        knn: also measure the accuracy of this many nearest training features; 0 for none.
        linear: also measure the accuracy of a linear probe on frozen features.
        real: also measure on ImageNet's reassessed labels.
        layers: also show R^c and the non-zero fraction of every layer, by this definition of R^c; None for none.
        samples: pictures for the layer table.
        precision: type of the products.
        device: auto, cpu, cuda or cuda:N.
        batch: pictures in a batch.
        workers: processes that decode pictures.
    """

    data: Dataset
    knn: NotNegative[int] = 0
    linear: bool = False
    real: bool = False
    layers: Annotated[str | None, OneOf("definition", DEFINITIONS)] = "paper"
    samples: AtLeastOne[int] = 500
    precision: Literal["bf16", "fp16", "fp32"] = "fp32"
    device: str = "auto"
    batch: AtLeastOne[int] = 256
    workers: NotNegative[int] = 4


@dataclass(frozen=True)
class Studying(Settings):
    """The pictures on which a network is studied.

    Args:
        images: a folder of pictures; by default the validation pictures of the checkpoint's run.
        recipe: a recipe whose pictures are used.
        data: a dataset by name, as --data.name of a recipe: torch/cifar10, folder, wds, …
        root: where that dataset, or the recipe's, is.
        samples: number of pictures to measure, spread over the whole dataset.
        batch: pictures in a batch.
    """

    images: str | None = None
    recipe: str | None = None
    data: str | None = None
    root: str | None = None
    samples: AtLeastOne[int] = 64
    batch: AtLeastOne[int] = 16


@dataclass(frozen=True)
class Auditing(Studying):
    """The pictures on which every layer is compared with its design.

    Args:
        eps: precision ε of all rates.
        device: auto, cpu, cuda or cuda:N.
    """

    eps: Positive[float] = 0.1
    device: str = "auto"


@dataclass(frozen=True)
class Analysis(Auditing):
    """What to show, and on which pictures.

    Args:
        pictures: numbers of the pictures to draw, from 0; by default some spread over the dataset.
        definitions: definitions of R^c: paper, official, unit.
        token: the token whose attention is drawn; 0 is the class token, 1 the first patch.
        against: other runs, checkpoints or network names whose curves are drawn beside this one's.
        only: sections of the report: layers, audit, epochs, subspaces, tokens, attention, patches, ablation. All by
            default.
        seed: seed of the random parts of matrices.
        out: the folder for tables, figures and report.html: by default RUN/analysis, or out/analysis without a run.
    """

    pictures: tuple[int, ...] = ()
    definitions: Annotated[tuple[str, ...], OneOf("definition", DEFINITIONS)] = tuple(DEFINITIONS)
    token: int = 0
    against: tuple[str, ...] = ()
    only: Annotated[tuple[str, ...], OneOf("section", SECTIONS)] = ()
    seed: int = 0
    out: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.definitions:
            raise ValueError(f"definitions must name at least one of {', '.join(DEFINITIONS)}")

    def readings(self) -> list[Definition]:
        """The definitions, renamed where this ε is not their own."""
        chosen = [DEFINITIONS[name] for name in self.definitions]
        return [
            given if given.eps == self.eps else replace(given, name=f"{given.name}, ε = {self.eps:g}", eps=self.eps)
            for given in chosen
        ]


@dataclass(frozen=True)
class Exploring(Studying):
    """How the explorer runs.

    Args:
        against: another run or checkpoint to compare with, besides the untrained network and the run's kept epochs.
        host: address to listen on; any but 127.0.0.1 lets everyone who can reach this machine use the page.
        port: the first port to try.
        browser: open the page in a browser.
    """

    samples: AtLeastOne[int] = 32
    batch: AtLeastOne[int] = 8
    against: str | None = None
    host: str = "127.0.0.1"
    port: int = 7860
    browser: bool = True

    def in_python(self) -> str:
        """The settings that choose networks and pictures, as Python source."""
        names = ("images", "recipe", "data", "root", "against", "samples")
        given = {name: getattr(self, name) for name in names if getattr(self, name) != getattr(type(self), name)}
        return f"Exploring({', '.join(f'{name}={value!r}' for name, value in given.items())})"
