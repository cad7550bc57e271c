"""The part of a recipe about its pictures: where they are, how they are prepared, how they are augmented."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ..bounds import AtLeastOne, Bound, Fraction, NotNegative, Positive, ProperFraction, Settings
from ..errors import shown

VALIDATION_NAMES = ("validation", "val", "valid", "test", "eval")  # of the default validation split
ANY = 10**9  # num_classes of a set that need not have a network's classes


@dataclass(frozen=True)
class Dataset(Settings, section="data"):
    """Which pictures, and how they enter the network."""

    # digits (built in), folder, torch/NAME (torchvision's), idx (MNIST's file format, of grey or colour pictures),
    # hfds/NAME (Hugging Face), wds (WebDataset shards) or packed (written by `opencrate pack`).
    name: str = "folder"
    root: str = "data"  # the folder, or for wds the folder or address before the shards' names.
    # the training split: a folder, a split's name or, for wds, a pattern such as train-{0000..0146}.tar.
    train: str = "train"
    validation: str = "validation"  # the split that is evaluated after every epoch.
    num_classes: AtLeastOne[int] = 1000  # number of classes.
    size: AtLeastOne[int] = 224  # height and width of the network's input, in pixels.
    # 3 for colour, 1 for grey.
    in_chans: Annotated[int, Bound(lambda count: count in (1, 3), "must be 3, for colour, or 1, for grey")] = 3
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)  # subtracted from every channel, of values in [0, 1].
    std: Positive[tuple[float, ...]] = (0.229, 0.224, 0.225)  # every channel is divided by it.
    # the centre crop of evaluation, as a fraction of a picture's shorter side.
    crop_pct: Annotated[float, Bound(lambda part: 0 < part <= 1, "must be in (0, 1]")] = 0.875
    # the fraction of pictures that may fail to decode before the run stops.
    max_decode_failures: Fraction[float] = 0.01
    # share of each class's pictures in the folder `train` that is held out and evaluated instead of the validation
    # split, for a folder that has none; 0 for none.
    holdout: ProperFraction[float] = 0.0
    holdout_seed: int = 0  # decides which pictures these are, together with their names.

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("mean", "std"):
            if len(getattr(self, name)) != self.in_chans:
                raise ValueError(f"data.{name} needs a value for each of {self.in_chans} channels")
        if self.holdout and self.name != "folder":
            raise ValueError(f"data.holdout is for the dataset 'folder', and this one is {shown(self.name)}")

    @property
    def eval_resize(self) -> int:
        """Pixels to which the shorter side of a picture is resized before evaluation's centre crop."""
        return round(self.size / self.crop_pct)


@dataclass(frozen=True)
class Augmentation(Settings, section="augment"):
    """How training pictures are augmented. Evaluation sees a centre crop."""

    # resized (a part of random size and shape), padded (moved by up to `padding`) or none.
    crop: Literal["resized", "padded", "none"] = "resized"
    scale: tuple[float, float] = (0.08, 1.0)  # area of a resized crop, as fractions of the picture: least and most.
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width over height of a resized crop.
    padding: Fraction[float] = 0.125  # black border of a padded crop, as a fraction of the side.
    flip: Fraction[float] = 0.5  # probability of a horizontal flip.
    # torchvision-nN-mM for torchvision's RandAugment(N, M), or a string of timm's (rand-m9-mstd0.5).
    randaugment: str = ""
    erase: Fraction[float] = 0.0  # probability that a rectangle of 2 to 33 % of a picture is set to the mean colour.
    mixup: NotNegative[float] = 0.0  # alpha of mixup, 0 for none.
    cutmix: NotNegative[float] = 0.0  # alpha of cutmix, 0 for none.
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"  # how pictures are resized.

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"augment.scale must be two fractions in ascending order, got {self.scale}")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"augment.ratio must be two positive numbers in ascending order, got {self.ratio}")

    @property
    def mixes(self) -> bool:
        return self.mixup > 0 or self.cutmix > 0
