"""What a network recognises: accuracy by class, and pictures with words."""

import math
from collections.abc import Sequence

import numpy as np

from .canvas import COLOURS, COLUMN, GREY, INK, PAGE, PALE, SMALL, Figure, plain, sheet, short, style

ACROSS = 4  # pictures in a row


@style()
def class_bars(names: Sequence[str], right: np.ndarray, counts: np.ndarray) -> Figure:
    """The share of each class's pictures that are recognised, `right` of `counts`, with how many they are."""
    figure = sheet(COLUMN, 0.17 * len(names) + 0.45)
    axis, places = figure.subplots(), np.arange(len(names))
    axis.barh(places, 100 * right / counts, color=COLOURS[0], height=0.7)
    axis.set(xlim=(0, 100), ylim=(len(names) - 0.5, -0.5), xlabel="recognised, %")
    axis.set_yticks(places, [short(name) for name in names])
    for place, (good, count) in enumerate(zip(right.tolist(), counts.tolist(), strict=True)):
        axis.text(101, place, f"{good} of {count}", fontsize=SMALL, color=GREY, va="center")
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(labelsize=SMALL, labelcolor=INK, color=GREY, width=0.6, length=0)
    axis.grid(axis="x", color=PALE, linewidth=0.5)
    axis.set_axisbelow(True)
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
