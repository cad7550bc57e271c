"""The options of `eval`, `audit`, `analyze` and `explore`: values only, so that a help text does not wait for torch."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from .data.settings import Dataset
from .definitions import DEFINITIONS, Definition, definition_named
from .errors import require_positive, suggestion

SECTIONS = ("layers", "audit", "epochs", "subspaces", "tokens", "attention", "patches", "ablation")


@dataclass(frozen=True)
class Measuring:
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
    knn: int = 0
    linear: bool = False
    real: bool = False
    layers: str | None = "paper"
    samples: int = 500
    precision: Literal["bf16", "fp16", "fp32"] = "fp32"
    device: str = "auto"
    batch: int = 256
    workers: int = 4

    def __post_init__(self) -> None:
        for name, least in (("knn", 0), ("samples", 1), ("batch", 1), ("workers", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True)
class Auditing:
    """The pictures on which every layer is compared with its design.

    Args:
        images: a folder of pictures; by default the pictures of the checkpoint's run.
        recipe: a recipe whose pictures are used.
        data: a dataset by name, as --data.name of a recipe: torch/cifar10, folder, wds, …
        root: where that dataset, or the recipe's, is.
        samples: number of pictures to measure, spread over the whole dataset.
        eps: precision ε of all rates.
        device: auto, cpu, cuda or cuda:N.
        batch: pictures in a batch.
    """

    images: str | None = None
    recipe: str | None = None
    data: str | None = None
    root: str | None = None
    samples: int = 64
    eps: float = 0.1
    device: str = "auto"
    batch: int = 16

    def __post_init__(self) -> None:
        for name in ("samples", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        require_positive("eps", self.eps)
        if not math.isfinite(self.eps):
            raise ValueError(f"eps must be finite, got {self.eps}")


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
    definitions: tuple[str, ...] = tuple(DEFINITIONS)
    token: int = 0
    against: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    seed: int = 0
    out: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.definitions:
            raise ValueError(f"definitions must name at least one of {', '.join(DEFINITIONS)}")
        for name in self.definitions:
            definition_named(name)
        for name in self.only:
            if name not in SECTIONS:
                raise ValueError(f"unknown part {name!r}{suggestion(name, SECTIONS)}")

    def readings(self) -> list[Definition]:
        """The definitions, renamed where this ε is not their own."""
        chosen = [definition_named(name) for name in self.definitions]
        return [
            given if given.eps == self.eps else replace(given, name=f"{given.name}, ε = {self.eps:g}", eps=self.eps)
            for given in chosen
        ]


@dataclass(frozen=True)
class Exploring:
    """How the explorer runs.

    Args:
        images: folder of pictures for samples and the reference set (default: the run's validation pictures).
        recipe: recipe whose pictures are used.
        data: dataset whose pictures are used, by timm's name for it.
        root: folder of that dataset.
        against: another run or checkpoint to compare with, besides the untrained network and the run's kept epochs.
        samples: number of reference pictures.
        batch: number of reference pictures that are measured together.
        host: address to listen on; any but 127.0.0.1 lets everyone who can reach this machine use the page.
        port: the first port to try.
        browser: open the page in a browser.
    """

    images: str | None = None
    recipe: str | None = None
    data: str | None = None
    root: str | None = None
    against: str | None = None
    samples: int = 32
    batch: int = 8
    host: str = "127.0.0.1"
    port: int = 7860
    browser: bool = True

    def __post_init__(self) -> None:
        for name in ("samples", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def in_python(self) -> str:
        """The settings that choose networks and pictures, as Python source."""
        names = ("images", "recipe", "data", "root", "against", "samples")
        given = {name: getattr(self, name) for name in names if getattr(self, name) != getattr(type(self), name)}
        return f"Exploring({', '.join(f'{name}={value!r}' for name, value in given.items())})"
