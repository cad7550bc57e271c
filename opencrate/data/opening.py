"""From settings to feeds: opens the splits that a recipe names, and packs a folder of pictures."""

from pathlib import Path

import torch

from .datasets.packing import Index, pack
from .datasets.pictures import Folder, open_pictures, require_same_classes
from .feeds.feed import Feed
from .feeds.loading import Loaded
from .feeds.packed import Packed
from .feeds.resident import Resident, fits
from .settings import VALIDATION_NAMES, Augmentation, Dataset


def open_feed(
    data: Dataset,
    augment: Augmentation,
    training: bool,
    seed: int = 0,
    device: torch.device | str = "cpu",
    workers: int = 0,
    augmented: bool | None = None,
    compiled: bool = False,
) -> Feed:
    """The split that the settings name: on the device if it is small, else loaded by `workers` processes.

    Training pictures are augmented unless `augmented` is False. `compiled` lets torch.compile make that faster.
    """
    augmented = training if augmented is None else augmented
    if data.name == "packed":
        return Packed(data, augment, training, seed, device, compiled and torch.device(device).type == "cuda")
    pictures = open_pictures(data, training)
    if fits(pictures, data, augment, augmented):
        return Resident(pictures, data, augment, augmented, seed, device)
    return Loaded(pictures, data, augment, augmented, seed, device, workers)


def open_feeds(
    data: Dataset,
    augment: Augmentation,
    seed: int = 0,
    device: torch.device | str = "cpu",
    workers: int = 0,
    compiled: bool = False,
) -> tuple[Feed, Feed]:
    """The training and the validation split, of the same classes."""
    training, validation = (
        open_feed(data, augment, flag, seed, device, workers, compiled=compiled) for flag in (True, False)
    )
    require_same_classes(training.classes, validation.classes)
    if len(training.classes) != data.num_classes:
        raise ValueError(
            f"{data.root} has {len(training.classes)} classes but data.num_classes is {data.num_classes}:"
            f" give --data.num-classes {len(training.classes)}"
        )
    return training, validation


def open_still(data: Dataset, training: bool, device: torch.device | str = "cpu", workers: int = 0) -> Feed:
    """A split as evaluation sees it: the centre of every picture."""
    still = Augmentation(crop="none", flip=0.0)
    return open_feed(data, still, training, device=device, workers=workers, augmented=False)


def pack_splits(source: Path, out: Path, side: int = 256, max_decode_failures: float = 0.01) -> dict[str, Index]:
    """Pack every split of an image folder; one without train and validation is packed as a single split, train."""
    if not source.is_dir():
        raise ValueError(f"{source} is not a folder")
    names = [name for name in ("train", *VALIDATION_NAMES) if (source / name).is_dir()]
    folders = {name: source / name for name in names} or {"train": source}
    return {
        name: pack(Folder(folder, 3), out / name, side, max_decode_failures=max_decode_failures)
        for name, folder in folders.items()
    }
