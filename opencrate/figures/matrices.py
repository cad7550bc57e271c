"""Matrices as heat maps: tokens, the cosines between the directions of a layer's subspaces, confusions of classes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..measures.geometry import coherence_between, dead_heads, normalised_gram
from .canvas import COLUMN, GREY, INK, PAGE, SMALL, Axes, Figure, naming, plain, sheet, short, style

NUMBERED = 12  # classes of which a confusion matrix has its numbers written into it
MISSING = "#b8bcc4"  # the colour of what has no value


@style()
def heat_maps(tokens: Mapping[str, Tensor], seed: int = 0, size: int | None = 50) -> Figure:
    """Token matrices (n, d) as heat maps on one colour scale: a random part of size × size, or all with `None`.

    The part is the same in all panels; rows are tokens. The scale ends at the 99 % quantile of the non-zero values'
    sizes; it has two sides only if some value is negative. The share of non-zeros is that of the whole matrix.
    """
    shapes = sorted({tuple(Z.shape) for Z in tokens.values()})
    if len(shapes) != 1 or len(shapes[0]) != 2:
        raise ValueError(f"tokens must be matrices of one shape (n, d), got {', '.join(map(str, shapes))}")
    n, d = shapes[0]
    rows, columns = _chosen(seed, size, n, d)
    shown = {key: Z.detach().double().cpu()[rows][:, columns].numpy() for key, Z in tokens.items()}
    values = np.concatenate([part.ravel() for part in shown.values()])
    values = values[np.isfinite(values) & (values != 0)]
    signed, limit = bool((values < 0).any()), float(np.quantile(np.abs(values), 0.99)) if values.size else 1.0

    notes = [f"All {n} tokens (rows) × {d} coordinates (columns)."]
    if (len(rows), len(columns)) != (n, d):
        notes = [
            f"Shown: {len(rows)} of {n} tokens (rows) × {len(columns)} of {d} coordinates (columns), at random with "
            f"seed {seed}, the same in all panels. The share of non-zeros is that of the whole matrix."
        ]
    lacking = {key: int((~Z.isfinite()).sum()) for key, Z in tokens.items()}
    bad = (f"{key} ({count})" for key, count in lacking.items() if count)
    notes += naming("Values that are not finite, in grey", bad)
    figure, panels = _panels(list(tokens), notes)
    extend = "neither" if not values.size or np.abs(values).max() <= limit else "both" if signed else "max"
    for axis, (key, part) in zip(panels, shown.items(), strict=True):
        share = float((tokens[key] != 0).double().mean())
        axis.set_title(f"{plain(key)}\n{100 * share:.1f} % non-zero", linespacing=1.3)
        image = _matrix(axis, part, "RdBu_r" if signed else _pale_to_dark(0.1), -limit if signed else 0.0, limit)
    _colour_bar(figure, image, "value of a token's coordinate", extend)
    return figure


@style()
def subspace_grams(U: Mapping[str, Tensor], directions: int | None = 4, seed: int = 0) -> Figure:
    """|cosine| between the directions of all subspaces, [U_1 … U_K]ᵀ[U_1 … U_K], for every layer's U (k, d, p).

    `directions` random ones of each subspace, or all with `None`. The coherence in a title is the mean over pairs of
    subspaces of `geometry.coherence`, of all their directions.
    """
    bases = {key: basis.detach().double().cpu() for key, basis in U.items()}
    for key, basis in bases.items():
        if basis.dim() != 3:
            raise ValueError(f"subspaces must have the shape (k, d, p), {key!r} has {tuple(basis.shape)}")
        if not basis.isfinite().all():
            raise ValueError(f"the subspaces of {key!r} have weights that are not finite")
    p = max(basis.shape[2] for basis in bases.values())
    some = directions is not None and directions < p
    how = f"by {directions} of their {p} directions, at random with seed {seed}" if some else "by all their directions"
    notes = [
        f"Every square between the lines compares two subspaces, {how}. Coherence is the cosine of the smallest angle "
        "between two subspaces, 0 if they are orthogonal and 1 if they share a direction: the mean over all pairs."
    ]
    dead = {key: ", ".join(map(str, dead_heads(basis))) for key, basis in bases.items()}
    notes += naming("Subspaces whose weights are all 0", (f"{key} ({heads})" for key, heads in dead.items() if heads))
    figure, panels = _panels(list(U), notes)
    for axis, (key, basis) in zip(panels, bases.items(), strict=True):
        k, d, p = basis.shape
        chosen = torch.stack(_chosen(seed, directions, *[p] * k))  # (k, q)
        part = basis.gather(2, chosen[:, None].expand(-1, d, -1))
        image = _matrix(axis, normalised_gram(part).abs().float().numpy(), _pale_to_dark(), 0.0, 1.0)
        for border in range(1, k):
            for line in (axis.axhline, axis.axvline):
                line(border * chosen.shape[1] - 0.5, color=GREY, linewidth=0.25)
        coherence = f"coherence {coherence_between(basis)[0]:.2f}" if k > 1 else "one subspace"
        axis.set_title(f"{plain(key)}\n{coherence}", linespacing=1.3)
    _colour_bar(figure, image, "|cosine| between two directions", "neither")
    return figure


@style()
def confusion(names: Sequence[str], counts: np.ndarray) -> Figure:
    """How many pictures of each class (rows) are taken for each class (columns), as shares of the row."""
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    size = min(PAGE, max(COLUMN, 0.28 * len(names) + 1.2))
    figure = sheet(size, 0.85 * size, layout="compressed")
    axis = figure.subplots()
    image = _matrix(axis, 100 * shares, _pale_to_dark(), 0.0, 100.0)
    words = [short(name) for name in names]
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


def _chosen(seed: int, size: int | None, *counts: int) -> list[Tensor]:
    """For each count, `size` of its numbers at random, in their order; all of them where it has no more."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randperm(count, generator=generator)[:size].sort().values for count in counts]


def _panels(keys: list[str], notes: list[str]) -> tuple[Figure, list[Axes]]:
    """A page of square panels, one for each key."""
    rows = math.ceil(len(keys) / (6 if len(keys) > 12 else 4))
    columns = math.ceil(len(keys) / rows)
    cell = (PAGE - 0.7) / max(columns, 3)
    figure = sheet(max(cell * columns + 0.7, COLUMN), (cell + 0.33) * rows + 0.16, "", notes, "compressed")
    axes = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for empty in axes[len(keys) :]:
        empty.remove()
    return figure, axes[: len(keys)]


def _pale_to_dark(start: float = 0.0) -> Any:
    """White for 0, then matplotlib's magma backwards; a later `start` sets the smallest values off against 0."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    places = np.linspace(start, 1, 256)[:, None]
    white = np.clip(1 - places / 0.2, 0, 1)  # magma ends in yellow
    colours = white + (1 - white) * colormaps["magma_r"](places[:, 0])
    return ListedColormap([(1, 1, 1, 1), *colours[1:]])


def _matrix(axis: Axes, values: np.ndarray, colours: Any, low: float, high: float) -> Any:
    from matplotlib import colormaps

    colour_map = colormaps.get_cmap(colours).with_extremes(bad=MISSING)
    axis.set(xticks=[], yticks=[], box_aspect=1)
    # Cells large enough to be seen keep their edges; many small ones are averaged, so that none is dropped.
    smooth = "nearest" if max(values.shape) <= 100 else "auto"
    drawn = np.ma.masked_invalid(values)
    return axis.imshow(drawn, cmap=colour_map, vmin=low, vmax=high, aspect="auto", interpolation=smooth)


def _colour_bar(figure: Figure, image: Any, label: str, extend: str) -> None:
    width, height = figure.get_size_inches() / 0.12
    bar = figure.colorbar(image, ax=figure.axes, extend=extend, fraction=1 / width, aspect=height, pad=0.015)
    bar.set_label(label, fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL, labelcolor=INK, width=0.6, length=2.5, color=GREY)
    bar.outline.set_visible(False)
