"""What a network recognises: accuracy by class, what is taken for what, and pictures with words."""

import math
from collections.abc import Sequence

import numpy as np

from .canvas import COLOURS, COLUMN, GREY, INK, PAGE, PALE, SMALL, Figure, plain, sheet, style
from .matrices import _colour_bar, _matrix, _pale_to_dark

ACROSS = 4  # pictures in a row
NUMBERED = 12  # classes of which a confusion matrix has its numbers written into it
LONGEST = 28  # letters of a class's name


@style()
def class_bars(names: Sequence[str], right: np.ndarray, counts: np.ndarray) -> Figure:
    """The share of each class's pictures that are recognised, `right` of `counts`, with how many they are."""
    figure = sheet(COLUMN, 0.17 * len(names) + 0.45)
    axis, places = figure.subplots(), np.arange(len(names))
    axis.barh(places, 100 * right / counts, color=COLOURS[0], height=0.7)
    axis.set(xlim=(0, 100), ylim=(len(names) - 0.5, -0.5), xlabel="recognised, %")
    axis.set_yticks(places, [_short(name) for name in names])
    for place, (good, count) in enumerate(zip(right.tolist(), counts.tolist(), strict=True)):
        axis.text(101, place, f"{good} of {count}", fontsize=SMALL, color=GREY, va="center")
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(labelsize=SMALL, labelcolor=INK, color=GREY, width=0.6, length=0)
    axis.grid(axis="x", color=PALE, linewidth=0.5)
    axis.set_axisbelow(True)
    return figure


@style()
def confusion(names: Sequence[str], counts: np.ndarray) -> Figure:
    """How many pictures of each class (rows) are taken for each class (columns), as shares of the row."""
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    size = min(PAGE, max(COLUMN, 0.28 * len(names) + 1.2))
    figure = sheet(size, 0.85 * size, layout="compressed")
    axis = figure.subplots()
    image = _matrix(axis, 100 * shares, _pale_to_dark(), 0.0, 100.0)
    words = [_short(name) for name in names]
    axis.set_xticks(range(len(words)), words, rotation=90, fontsize=SMALL)
    axis.set_yticks(range(len(words)), words, fontsize=SMALL)
    axis.set(xlabel="predicted", ylabel="class")
    axis.tick_params(length=0)
    if len(names) <= NUMBERED:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                colour = "white" if shares[row, column] > 0.45 else INK
                axis.text(column, row, str(count), ha="center", va="center", fontsize=SMALL, color=colour)
    _colour_bar(figure, image, "share of the class's pictures, %", "neither")
    return figure


@style()
def worded_pictures(pictures: Sequence[np.ndarray], words: Sequence[str]) -> Figure:
    """Pictures (H, W, 3) of uint8, each with some words below it."""
    rows = math.ceil(len(pictures) / ACROSS)
    figure = sheet(PAGE, rows * (PAGE / ACROSS + 0.25))
    axes = figure.subplots(rows, ACROSS, squeeze=False).ravel()
    for axis in axes:
        axis.set_axis_off()
    for axis, picture, text in zip(axes, pictures, words, strict=False):
        axis.imshow(picture)
        axis.text(
            0.5, -0.04, plain(text), transform=axis.transAxes, ha="center", va="top", fontsize=SMALL, linespacing=1.3
        )
    return figure


def _short(name: str) -> str:
    return plain(name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…")
