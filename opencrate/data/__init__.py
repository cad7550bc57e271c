"""Pictures for training: the embedded digits, sets by name, and the feeds that bring them to the device."""

import torch

from .feed import Batch, Feed, Split
from .loading import Loaded
from .pictures import open_pictures, require_same_classes
from .resident import Resident, fits
from .settings import Augmentation, Dataset

__all__ = ["Augmentation", "Batch", "Dataset", "Feed", "Split", "open_feed", "open_feeds"]


def open_feed(
    data: Dataset,
    augment: Augmentation,
    training: bool,
    seed: int = 0,
    device: torch.device | str = "cpu",
    workers: int = 0,
    varied: bool | None = None,
) -> Feed:
    """The split that the settings name, on the device if it is small, behind `workers` processes if it is not.

    Training pictures are varied by `augment` unless told otherwise.
    """
    varied = training if varied is None else varied
    pictures = open_pictures(data, training)
    if fits(pictures, data, augment, varied):
        return Resident(pictures, data, augment, varied, seed, device)
    return Loaded(pictures, data, augment, varied, seed, device, workers)


def open_feeds(
    data: Dataset, augment: Augmentation, seed: int = 0, device: torch.device | str = "cpu", workers: int = 0
) -> tuple[Feed, Feed]:
    """The training and the validation split, of the same classes."""
    training, validation = (open_feed(data, augment, flag, seed, device, workers) for flag in (True, False))
    require_same_classes(training.classes, validation.classes)
    return training, validation
