"""Pictures in rows and columns: what heads attend to, tokens as colours, and patches that a direction answers to.

All cells lie on one pair of axes, because matplotlib takes minutes to lay out hundreds of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .canvas import COLUMN, GREY, PAGE, PALE, SMALL, Figure, naming, plain, sheet, style

GAP = 0.06  # between cells, as a part of a cell's height
LARGEST, SMALLEST = 1.1, 0.42  # inches: a cell's height, and its width, which the words above it need
TALLEST = 8.5  # inches of all rows, if the cells allow it


@style()
def attention_grid(
    picture: np.ndarray | Tensor, maps: np.ndarray | Tensor, layers: Sequence[int] | None = None
) -> Figure:
    """Attention maps (layers, k, h, w) over a picture (H, W, 3) in grey: layers down, heads across.

    The picture itself is at the top left. Every map has its own scale, from 0 to its largest value. `layers` are the
    numbers of those that are drawn, all from the first unless given.
    """
    picture, maps = _pixels(picture), _array(maps)
    if maps.ndim != 4:
        raise ValueError(f"attention maps must have the shape (layers, k, h, w), got {maps.shape}")
    words = [f"layer {number}" for number in layers or range(1, len(maps) + 1)]
    heads = [f"head {head}" for head in range(1, maps.shape[1] + 1)]
    notes = ["Brighter: the head attends more. Every map has its own scale, from 0 to its largest value."]
    lacking = np.argwhere(~np.isfinite(maps).all((2, 3)))
    notes += naming("Values that are not finite are left out", (f"{words[layer]} {heads[k]}" for layer, k in lacking))
    board = _Board(words, len(heads), picture.shape[1] / picture.shape[0], notes, corner=picture, above=heads)
    grey = 0.35 + 0.65 * (picture @ np.array([0.299, 0.587, 0.114])) / 255  # paler, so that the colours stand out
    for layer, of_layer in enumerate(np.ma.masked_invalid(maps)):
        for head, values in enumerate(of_layer):
            largest = float(values.max()) if values.count() else 0.0
            board.put(grey, layer, head, cmap="gray", vmin=0, vmax=1)
            how = {"cmap": "inferno", "alpha": 0.55, "interpolation": "bilinear"}
            board.put(values, layer, head, vmin=0, vmax=largest if largest > 0 else 1, **how)
    return board.figure


@style()
def token_colours(pictures: np.ndarray | Tensor, colours: np.ndarray | Tensor, grid: tuple[int, int]) -> Figure:
    """Pictures (b, H, W, 3) in the first row; below, by layer, the colours (layers, b, n, 3) of their patches' tokens.

    Colours are between 0 and 1; the n = h·w patches of a grid (h, w) are drawn as they lie in the picture.
    """
    pictures = _pixels(pictures)
    colours = _array(colours).reshape(-1, len(pictures), *grid, 3)  # (layers, b, h, w, 3)
    known = np.isfinite(colours).all(-1, keepdims=True)
    lacking = np.argwhere(~known.all((2, 3, 4)))
    notes = ["Patches of like colour have like tokens: red, green and blue are the tokens' three main directions."]
    notes += naming("Values that are not finite are white", (f"layer {l + 1} picture {i + 1}" for l, i in lacking))
    words = ["pictures" if len(pictures) > 1 else "picture", *(f"layer {l + 1}" for l in range(len(colours)))]
    board = _Board(words, len(pictures), pictures.shape[2] / pictures.shape[1], notes)
    for row, of_layer in enumerate([pictures, *np.where(known, colours, 1.0).clip(0, 1)]):
        for column, picture in enumerate(of_layer):
            board.put(picture, row, column, interpolation="nearest" if row else None)
    return board.figure


@style()
def patch_rows(rows: Mapping[str, Sequence[np.ndarray]]) -> Figure:
    """Small pictures (h, w, 3) in rows, each with its words; a row without any says that nothing is active."""
    longest = max(len(row) for row in rows.values())
    board = _Board(list(rows), max(longest, 3), 1.0, largest=0.6)  # three cells hold the words for none
    for i, row in enumerate(rows.values()):
        for j, crop in enumerate(row):
            board.put(crop, i, j, interpolation="nearest")
        if not row:
            board.write("nothing is active", 0.0, i * (1 + GAP) + 0.5, va="center", style="italic", color=GREY)
    return board.figure


class _Board:
    """Cells in rows and columns, 1 high and `aspect` wide, with a word for every row and perhaps above every column.

    They fill a page unless they would be too small to see: then the figure is larger. A `corner` is a picture at the
    top left, beyond the words.
    """

    def __init__(
        self,
        words: Sequence[str],
        columns: int,
        aspect: float,
        notes: Sequence[str] = (),
        corner: np.ndarray | None = None,
        above: Sequence[str] = (),
        largest: float = LARGEST,
    ) -> None:
        self.aspect = aspect
        margin = 0.055 * max(map(len, words)) + 0.1  # inches for the words
        cells = columns + (corner is not None)
        cell = min((PAGE - margin) / cells / (aspect + GAP), TALLEST / len(words) / (1 + GAP), largest)
        cell = max(cell, SMALLEST / aspect, 0.2)  # inches
        self.figure = sheet(
            max(margin + cells * cell * (aspect + GAP), COLUMN),
            len(words) * cell * (1 + GAP) + 0.1 + 0.15 * bool(above),
            notes=notes,
        )
        self.axis = self.figure.subplots()
        self.axis.set_axis_off()
        start = 0.0 if corner is None else -aspect - margin / cell
        self.axis.set(xlim=(start, columns * (aspect + GAP) - GAP), ylim=(len(words) * (1 + GAP) - GAP, 0), anchor="NW")
        if corner is not None:
            self.axis.imshow(corner, extent=(start, start + aspect, 1, 0))
            self.write("picture", start + aspect / 2, -0.04 / cell, ha="center", va="bottom")
        for row, word in enumerate(words):
            self.write(word, -0.05 / cell, row * (1 + GAP) + 0.5, ha="right", va="center")
        for column, word in enumerate(above):
            self.write(word, column * (aspect + GAP) + aspect / 2, -0.04 / cell, ha="center", va="bottom")

    def put(self, image: np.ndarray, row: int, column: int, **how: Any) -> None:
        """In a pale frame: white pictures have edges, too."""
        from matplotlib.patches import Rectangle

        left, top = column * (self.aspect + GAP), row * (1 + GAP)
        self.axis.imshow(image, extent=(left, left + self.aspect, top + 1, top), **how)
        frame = Rectangle((left, top), self.aspect, 1, fill=False, edgecolor=PALE, linewidth=0.5, clip_on=False)
        self.axis.add_patch(frame)

    def write(self, word: str, x: float, y: float, **how: Any) -> None:
        self.axis.text(x, y, plain(word), fontsize=SMALL, **how)


def _array(values: np.ndarray | Tensor) -> np.ndarray:
    return torch.as_tensor(values).detach().cpu().double().numpy()


def _pixels(pictures: np.ndarray | Tensor) -> np.ndarray:
    pictures = np.asarray(pictures)
    if pictures.shape[-1] != 3 or pictures.dtype != np.uint8:
        raise ValueError(f"pictures must be (…, H, W, 3) of uint8, got {pictures.shape} of {pictures.dtype}")
    return pictures
