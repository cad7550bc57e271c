"""Pictures in rows and columns: what heads attend to, tokens as colours, and patches that a direction answers to.

All cells lie on one pair of axes, because matplotlib takes minutes to lay out hundreds of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from .canvas import COLUMN, GREY, PAGE, PALE, SMALL, Figure, plain, sheet, style

GAP = 0.06  # between cells, as a part of a cell's height
LARGEST, SMALLEST = 1.1, 0.42  # inches: a cell's height, and its width, which the words above it need
TALLEST = 8.5  # inches of all rows, if the cells allow it


@style()
def attention_grid(
    picture: np.ndarray | Tensor, maps: np.ndarray | Tensor, title: str = "", layers: Sequence[int] | None = None
) -> Figure:
    """Attention maps (layers, k, h, w) over a picture (H, W, 3) in grey: layers down, heads across.

    The picture itself is at the top left. Every map has its own scale, from 0 to its largest value. `layers` are the
    numbers of those that are drawn, all from the first unless given.
    """
    picture, maps = _pictures("the picture", picture, 3), _array(maps)
    if maps.ndim != 4 or not maps.size:
        raise ValueError(f"attention maps must have the shape (layers, k, h, w), got {maps.shape}")
    notes = ["Brighter: the head attends more. Every map has its own scale, from 0 to its largest value."]
    words, heads = _numbered("layer", len(maps)), _numbered("head", maps.shape[1])
    if layers is not None:
        words = [f"layer {number}" for number in layers]
    missing = np.argwhere(~np.isfinite(maps).all((2, 3)))
    lacking = [f"{words[layer]} {heads[head]}" for layer, head in missing]
    notes += [f"Values that are not finite are left out: {', '.join(lacking)}."] if lacking else []
    board = _Board(words, len(heads), picture.shape[1] / picture.shape[0], title, notes, corner=picture, above=heads)
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
    pictures, colours = _pictures("the pictures", pictures, 4), _array(colours)
    b, (h, w) = len(pictures), grid
    if colours.ndim != 4 or colours.shape[1:] != (b, h * w, 3) or not colours.size:
        raise ValueError(
            f"the colours for {b} pictures of {h} × {w} patches must have the shape (layers, {b}, {h * w}, 3), "
            f"got {colours.shape}"
        )
    known = np.isfinite(colours).all(-1, keepdims=True)  # (layers, b, n, 1)
    notes = ["Patches of like colour have like tokens: red, green and blue are the tokens' three main directions."]
    lacking = [f"layer {layer + 1} picture {i + 1}" for layer, i in np.argwhere(~known.all((2, 3)))]
    notes += [f"Values that are not finite are white: {', '.join(lacking)}."] if lacking else []
    words = ["pictures" if b > 1 else "picture", *_numbered("layer", len(colours))]
    board = _Board(words, b, pictures.shape[2] / pictures.shape[1], "", notes)
    drawn = np.where(known, colours, 1.0).clip(0, 1)
    for i, picture in enumerate(pictures):
        board.put(picture, 0, i)
        for layer, of_picture in enumerate(drawn[:, i]):
            board.put(of_picture.reshape(h, w, 3), layer + 1, i, interpolation="nearest")
    return board.figure


@style()
def patch_rows(rows: Mapping[str, Sequence[np.ndarray]]) -> Figure:
    """Small pictures (h, w, 3) in rows, each with its words; a row without any says that nothing is active."""
    if not rows:
        raise ValueError("there are no rows of patches to draw")
    crops = {key: [_pictures(f"a patch of {key!r}", crop, 3) for crop in row] for key, row in rows.items()}
    longest = max(len(row) for row in crops.values())
    board = _Board(list(rows), max(longest, 3), 1.0, largest=0.6)  # three cells hold the words for none
    for i, row in enumerate(crops.values()):
        for j, crop in enumerate(row):
            board.put(crop, i, j, interpolation="nearest")
        if not row:
            board.write("nothing is active", 0.0, i + 0.5, va="center", style="italic", color=GREY)
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
        title: str = "",
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
            title,
            notes,
        )
        self.axis = self.figure.subplots()
        self.axis.set_axis_off()
        start = 0.0 if corner is None else -aspect - margin / cell
        self.axis.set(xlim=(start, columns * (aspect + GAP) - GAP), ylim=(len(words) * (1 + GAP) - GAP, 0), anchor="NW")
        if corner is not None:
            self.axis.imshow(corner, extent=(start, start + aspect, 1, 0))
            self.write("picture", start + aspect / 2, -0.04 / cell, ha="center", va="bottom")
        for row, word in enumerate(words):
            self.write(word, -0.05 / cell, row + 0.5, ha="right", va="center")
        for column, word in enumerate(above):
            self.write(word, column * (aspect + GAP) + aspect / 2, -0.04 / cell, ha="center", va="bottom")

    def put(self, image: np.ndarray, row: int, column: int, **how: Any) -> None:
        """In a pale frame: white pictures have edges, too."""
        from matplotlib.patches import Rectangle

        left, top = column * (self.aspect + GAP), row * (1 + GAP)
        self.axis.imshow(image, extent=(left, left + self.aspect, top + 1, top), **how)
        frame = Rectangle((left, top), self.aspect, 1, fill=False, edgecolor=PALE, linewidth=0.5, clip_on=False)
        self.axis.add_patch(frame)

    def write(self, word: str, x: float, row: float, **how: Any) -> None:
        self.axis.text(x, row + int(max(row, 0)) * GAP, plain(word), fontsize=SMALL, **how)


def _numbered(word: str, count: int) -> list[str]:
    return [f"{word} {i + 1}" for i in range(count)]


def _array(values: np.ndarray | Tensor) -> np.ndarray:
    return values.detach().cpu().double().numpy() if isinstance(values, Tensor) else np.asarray(values, dtype=float)


def _pictures(what: str, values: np.ndarray | Tensor, dimensions: int) -> np.ndarray:
    values = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if values.ndim != dimensions or values.shape[-1] != 3 or values.dtype != np.uint8 or not values.size:
        shape = "(b, H, W, 3)" if dimensions == 4 else "(H, W, 3)"
        raise ValueError(f"{what} must be {shape} of uint8, got {values.shape} of {values.dtype}")
    return values
