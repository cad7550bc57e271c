"""A recipe for a folder of pictures: classes are counted; size, batch and epochs are chosen by what is there."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from .data.datasets.pictures import Pictures
from .data.opening import open_pictures
from .data.settings import ANY, VALIDATION_NAMES, Augmentation, Dataset
from .errors import one_line
from .recipes import Expected, Model, Optim, Recipe, Schedule
from .sources import data_for, open_network

HOLDOUT = 0.2  # of a folder without a validation split
SMALL = 48  # pixels; larger pictures are for the networks of 64
ASKED = 200  # pictures whose size is looked at


def recipe_for(folder: Path, start: str = "") -> Recipe:
    """How to train a CRATE-Tiny on a folder of pictures, or how to fine-tune the network in a checkpoint on it.

    `folder` has a folder for each class, or `train` and `validation` with a folder for each class. Without a validation
    split a fifth of every class's pictures is held out.
    """
    train, holdout = _splits(folder)
    data = Dataset("folder", str(folder), train, num_classes=ANY, holdout=holdout)
    pictures = open_pictures(data, training=True)
    count, classes = len(pictures), len(pictures.classes)
    if not start:
        size = 32 if _side(pictures) <= SMALL else 64
        model = Model(f"crate_tiny_patch{size // 8}_{size}")
        data = replace(data, size=size, crop_pct=1.0)
        optim, passes, most = Optim("adamw", lr=1e-3, weight_decay=0.05), 40_000, 200
    else:
        model, taken = Model(start=start), data_for(open_network(start)[0])
        data = replace(taken, root=data.root, train=data.train, holdout=data.holdout, max_decode_failures=0.01)
        optim, passes, most = Optim("adamw", lr=3e-4, weight_decay=0.05), 10_000, 50
    epochs = min(max(5, passes // count), most)
    return Recipe(
        name=one_line(folder.resolve().name, 60),
        model=model,
        data=replace(data, num_classes=classes),
        augment=Augmentation(crop="resized", scale=(0.35, 1.0), randaugment="torchvision-n2-m9"),
        optim=replace(optim, batch=_batch(count)),
        schedule=Schedule(epochs=epochs, warmup_epochs=max(1, epochs // 10)),
        precision="fp32",
        definition="unit",
        expected=Expected(source="chosen for this folder"),
    )


def _splits(folder: Path) -> tuple[str, float]:
    """The folder of the training split, and how much of it is held out where there is no validation split."""
    names = {path.name for path in folder.iterdir() if path.is_dir()}
    if "train" in names and not names.isdisjoint(VALIDATION_NAMES):
        return "train", 0.0
    return "train" if names == {"train"} else ".", HOLDOUT


def _batch(count: int) -> int:
    """A power of two from 8 to 256, so that an epoch has about eight steps or more."""
    return min(256, max(8, 2 ** (count // 8).bit_length() // 2))


def _side(pictures: Pictures) -> float:
    """The median of the shorter sides of some of the pictures, in pixels."""
    sides = []
    for i in np.linspace(0, len(pictures) - 1, min(ASKED, len(pictures)), dtype=int):
        with suppress(OSError, ValueError):  # one that does not decode is counted when the set is read
            sides.append(min(pictures.picture(int(i)).size))
    return median(sides) if sides else 0


def choices(recipe: Recipe) -> str:
    """What was chosen for a folder, in two lines."""
    data, optim, schedule = recipe.data, recipe.optim, recipe.schedule
    held = f"; {data.holdout:.0%} of each class's pictures are held out for validation" if data.holdout else ""
    network = f"the network in {recipe.model.start}" if recipe.model.start else recipe.model.name
    return (
        f"{data.root}: {data.num_classes} classes{held}\n"
        f"chosen: {network} at {data.size} pixels, {schedule.epochs} epochs, batches of {optim.batch}, {optim.name} at"
        f" {optim.lr:g}; each can be set, for example --schedule.epochs {2 * schedule.epochs}"
    )
