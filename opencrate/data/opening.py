"""From settings to pictures and feeds: opens the splits that a recipe names, and packs a folder of pictures."""

from pathlib import Path

import torch

from ..errors import one_line, printable, shown, suggestion
from .datasets import digits
from .datasets.packing import Index, PackedPictures, pack
from .datasets.pictures import Arrays, Folder, HuggingFace, Pictures, held_out, open_torchvision, read_idx
from .datasets.tars import Tars
from .feeds.feed import PictureFeed
from .feeds.loading import Loaded
from .feeds.packed import Packed
from .feeds.resident import Resident, fits
from .settings import VALIDATION_NAMES, Augmentation, Dataset


def open_pictures(data: Dataset, training: bool) -> Pictures:
    """The training or the validation split that the settings name.

    What concerns a whole set (no pictures, one class) is an error at once. A picture that does not decode is counted,
    named in the log and left out by the feeds; only too many of them stop a run.
    """
    kind, _, name = data.name.partition("/")
    root, split = Path(data.root).expanduser(), data.train if training else data.validation
    pictures: Pictures
    if data.name == "digits":
        pictures = Arrays(*digits.load(training), classes=digits.CLASSES, label="digit")
    elif data.name == "folder" and data.holdout:
        pictures = held_out(Folder(split_folder(root, data.train), data.in_chans), data, training)
    elif data.name == "folder":
        pictures = Folder(split_folder(root, split), data.in_chans)
    elif data.name == "packed":
        pictures = PackedPictures(split_folder(root, split), data.in_chans)
    elif data.name == "idx":
        pictures = read_idx(root, training)
    elif data.name == "wds":
        pictures = Tars(data, split)
    elif kind == "torch" and name:
        pictures = open_torchvision(name, data.root, "train" if training else "test", data.in_chans)
    elif kind == "hfds" and name:
        pictures = HuggingFace(name, data.root, split, data.in_chans)
    else:
        known = ("digits", "folder", "idx", "torch/NAME", "hfds/NAME", "wds", "packed")
        raise ValueError(f"unknown dataset {shown(data.name)}{suggestion(data.name, known)}")
    if len(pictures) == 0:
        raise ValueError(f"no pictures were found in {data.root}")
    pictures.classes = tuple(map(printable, pictures.classes))  # names of folders, say, may hold control characters
    for target in (int(pictures.targets.min()), int(pictures.targets.max())):
        if not 0 <= target < len(pictures.classes):
            raise ValueError(
                f"{data.root} holds pictures of class {target}, and it has {len(pictures.classes)} classes"
            )
    if len(pictures.classes) == 1:
        only = pictures.classes[0]
        raise ValueError(
            f"all pictures in {data.root} are of one class, {one_line(only, 60)}: a classifier needs at least two"
        )
    if len(pictures.classes) > data.num_classes:
        raise _other_number(pictures.classes, data)
    return pictures


def split_folder(root: Path, split: str) -> Path:
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder: give the one with the pictures, --data.root FOLDER")
    names = VALIDATION_NAMES if split == VALIDATION_NAMES[0] else (split,)  # the default goes by several names
    for name in names:
        if (root / name).is_dir():
            return root / name
    raise ValueError(f"{root} has no folder {' or '.join(map(repr, names))}")


def open_feed(
    data: Dataset,
    augment: Augmentation | None,
    training: bool,
    seed: int = 0,
    device: torch.device | str = "cpu",
    workers: int = 0,
    compiled: bool = False,
) -> PictureFeed:
    """The split that the settings name: on the device if it is small, else loaded by `workers` processes.

    Training pictures are augmented; without `augment` they are as evaluation sees them, the centre of each.
    `compiled` lets torch.compile make that faster.
    """
    augmented = training and augment is not None
    augment = augment or Augmentation(crop="none", flip=0.0)
    pictures = open_pictures(data, training)
    larger = isinstance(pictures, PackedPictures) and pictures.index.side != data.size
    if not larger and fits(pictures, data, augment, augmented):
        return Resident(pictures, data, augment, augmented, seed, device)
    if isinstance(pictures, PackedPictures):
        return Packed(pictures, data, augment, augmented, seed, device, compiled)
    return Loaded(pictures, data, augment, augmented, seed, device, workers)


def open_feeds(
    data: Dataset,
    augment: Augmentation,
    seed: int = 0,
    device: torch.device | str = "cpu",
    workers: int = 0,
    compiled: bool = False,
) -> tuple[PictureFeed, PictureFeed]:
    """The training and the validation split, of the same classes."""
    training, validation = (
        open_feed(data, augment, flag, seed, device, workers, compiled=compiled) for flag in (True, False)
    )
    require_same_classes(training.classes, validation.classes)
    if len(training.classes) != data.num_classes:
        raise _other_number(training.classes, data)
    return training, validation


def _other_number(classes: tuple[str, ...], data: Dataset) -> ValueError:
    return ValueError(
        f"{data.name} has {len(classes)} classes but data.num_classes is {data.num_classes}:"
        f" give --data.num-classes {len(classes)}"
    )


def require_same_classes(training: tuple[str, ...], validation: tuple[str, ...]) -> None:
    """Classes are numbered by their names' order, so two splits must name the same ones."""
    for split, other, names, others in (
        ("validation", "training", validation, training),
        ("training", "validation", training, validation),
    ):
        if lacking := sorted(set(others) - set(names)):
            more = f" (nor {len(lacking) - 1} others)" if len(lacking) > 1 else ""
            raise ValueError(f"the {split} split has no class {shown(lacking[0])}{more}, which the {other} split has")


def pack_splits(source: Path, out: Path, side: int = 256) -> dict[str, Index]:
    """Pack every split of an image folder; one without train and validation is packed as a single split, train."""
    if not source.is_dir():
        raise ValueError(f"{source} is not a folder")
    names = [name for name in ("train", *VALIDATION_NAMES) if (source / name).is_dir()]
    folders = {name: source / name for name in names} or {"train": source}
    return {name: pack(Folder(folder, 3), out / name, side) for name, folder in folders.items()}
