"""The options of the tools that look at networks: values only, so that a help text does not wait for torch."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from .bounds import AtLeastOne, Bound, NotNegative, OneOf, Positive, Settings
from .data.settings import Dataset
from .definitions import DEFINITIONS, Definition

SECTIONS = ("accuracy", "layers", "audit", "epochs", "subspaces", "tokens", "attention", "patches", "ablation")


@dataclass(frozen=True)
class Measuring(Settings):
    """What to measure, and how."""

    data: Dataset  # the pictures: by default those of the checkpoint's run, or of --recipe.
    knn: NotNegative[int] = 0  # also measure the accuracy of this many nearest training features; 0 for none.
    linear: bool = False  # also measure the accuracy of a linear probe on frozen features.
    real: bool = False  # also measure on ImageNet's reassessed labels.
    # also show R^c and the non-zero fraction of every layer, by this definition of R^c: paper, official or unit; None
    # for none.
    layers: Annotated[str | None, OneOf("definition", DEFINITIONS)] = "paper"
    samples: AtLeastOne[int] = 500  # pictures for the layer table.
    precision: Literal["bf16", "fp16", "fp32"] = "fp32"  # type of the products.
    device: str = "auto"  # auto, cpu, cuda or cuda:N.
    batch: AtLeastOne[int] = 256  # pictures in a batch.
    workers: NotNegative[int] = 4  # processes that decode pictures.


@dataclass(frozen=True)
class Predicting(Settings):
    """By which network pictures are named, and what is shown."""

    model: str = ""  # a run, a checkpoint or a Hub repository; by default the network in the package.
    top: AtLeastOne[int] = 5  # number of classes to show.
    # where the picture is written with the network's attention drawn over it; a folder for several pictures.
    overlay: Path | None = None
    json: bool = False  # print a line of JSON for each picture instead.
    device: str = "auto"  # auto, cpu, cuda or cuda:N.


@dataclass(frozen=True)
class Segmenting(Settings):
    """Which pictures have masks, and how the result is shown."""

    root: Path  # a folder with train/CLASS/NAME.jpg, validation/CLASS/NAME.jpg and trimaps/CLASS/NAME.png.
    samples: NotNegative[int] = 0  # validation pictures on which masks are compared; 0 for all.
    choosing: AtLeastOne[int] = 200  # training pictures on which layer, head or entry, and threshold are chosen.
    figure: Path | None = None  # where a picture of some masks is written (.png).
    json: bool = False  # print everything as JSON instead.
    device: str = "auto"  # auto, cpu, cuda or cuda:N.
    batch: AtLeastOne[int] = 32  # pictures in a batch.


@dataclass(frozen=True)
class Studying(Settings):
    """The pictures on which a network is studied."""

    images: str | None = None  # a folder of pictures; by default the validation pictures of the checkpoint's run.
    recipe: str | None = None  # a recipe whose pictures are used.
    data: str | None = None  # a dataset by name, as --data.name of a recipe: torch/cifar10, folder, wds, …
    root: str | None = None  # where that dataset, or the recipe's, is.
    samples: AtLeastOne[int] = 64  # number of pictures to measure, spread over the whole dataset.
    batch: AtLeastOne[int] = 16  # pictures in a batch.

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(named := self.named_pictures()) > 1:
            raise ValueError(f"{' and '.join(named)} both name pictures; pass one of them")
        if self.images is not None and self.root is not None:
            raise ValueError("--root is the folder of a dataset and does not go with --images; pass one of them")

    def named_pictures(self) -> list[str]:
        """The options that name pictures: none for those of the checkpoint's run."""
        return [f"--{name}" for name in ("images", "recipe", "data") if getattr(self, name) is not None]


@dataclass(frozen=True)
class Auditing(Studying):
    """The pictures on which every layer is compared with its design."""

    eps: Positive[float] = 0.1  # precision ε of all rates.
    device: str = "auto"  # auto, cpu, cuda or cuda:N.


@dataclass(frozen=True)
class Audited(Auditing):
    """What to audit, and how it is printed."""

    nulls: bool = False  # also print how the layers do beside every null, with intervals.
    json: bool = False  # print everything as JSON instead.


@dataclass(frozen=True)
class Analysis(Auditing):
    """What to show, and on which pictures."""

    pictures: tuple[int, ...] = ()  # numbers of the pictures to draw, from 0; by default some spread over the dataset.
    # definitions of R^c: paper, official, unit. The page shows the first, and folds the others away.
    definitions: Annotated[tuple[str, ...], OneOf("definition", DEFINITIONS)] = ("unit", "paper", "official")
    token: int = 0  # the token whose attention is drawn; 0 is the class token, 1 the first patch.
    against: tuple[str, ...] = ()  # other runs, checkpoints or network names whose curves are drawn beside this one's.
    # sections of the report: accuracy, layers, audit, epochs, subspaces, tokens, attention, patches, ablation. All by
    # default.
    only: Annotated[tuple[str, ...], OneOf("section", SECTIONS)] = ()
    seed: int = 0  # seed of the random parts of matrices.
    # the folder for tables, figures and report.html: by default RUN/analysis, or out/analysis without a run.
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


LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Exploring(Studying):
    """How the explorer runs."""

    samples: AtLeastOne[int] = 32  # number of pictures to measure, spread over the whole dataset.
    batch: AtLeastOne[int] = 8  # pictures in a batch.
    # another run or checkpoint to compare with, besides the untrained network and the run's kept epochs.
    against: str | None = None
    # address to listen on; on any but 127.0.0.1 the page needs the token that is in the printed address.
    host: str = "127.0.0.1"
    names: tuple[str, ...] = ()  # further host names by which the page is opened, as behind a proxy.
    # the first port to try.
    port: Annotated[int, Bound(lambda port: 1 <= port < 2**16, "must be between 1 and 65535")] = 7860
    browser: bool = True  # open the page in a browser.

    @property
    def is_local(self) -> bool:
        """Whether only this machine can open the page, so that it needs no token."""
        return self.host in LOOPBACK and not self.names

    def shown(self, path: str) -> str:
        """A path as the page names it: where others may see it, by its last part."""
        return path if self.is_local else Path(path).name

    def in_python(self) -> str:
        """The settings that choose networks and pictures, as Python source."""
        names = ("images", "recipe", "data", "root", "against", "samples")
        given = {name: getattr(self, name) for name in names if getattr(self, name) != getattr(type(self), name)}
        given |= {name: self.shown(given[name]) for name in ("images", "recipe", "root", "against") if name in given}
        return f"Exploring({', '.join(f'{name}={value!r}' for name, value in given.items())})"
