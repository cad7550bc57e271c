"""The figures of the paper's section 3.1 and appendix B.2, and ours: each by one function of plain values.

    layer_curves     R^c and the non-zero fraction by layer
    heat_maps        token matrices Z^l (in `matrices`, as the next)
    subspace_grams   [U_1 … U_K]ᵀ[U_1 … U_K] with columns of unit norm
    attention_grid, token_colours, patch_rows   what the layers see, on pictures (in `pictures_grid`)

All return matplotlib's `Figure`, which `save` writes and `to_png` embeds. Nothing here runs a network. What has no
value (NaN, infinite) is left out and named in the note below the figure.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..measures import Definition, LayerTable
from ..measures.layerwise import LEVEL
from .canvas import PAGE, Axes, Figure, plain, sheet, style, tidy

# Okabe and Ito's colours, told apart by colour-blind readers too; and by line and marker in black and white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS, DASHES = ("o", "s", "^", "D", "v", "P", "X", "<"), ("-", "--", "-.", ":")
FEW = 3  # more curves than these, of keys in an order, are coloured by their order


@style()
def layer_curves(tables: Mapping[str, LayerTable], title: str = "") -> Figure:
    """R^c and the non-zero fraction by layer, a curve per table, with a band where the table has one.

    The band is the bootstrap interval (`Rc_low`, `Rc_high`) where the rows have one, else ± one standard deviation.
    """
    definition = _one_definition(tables)
    measures = {"Rc": f"coding rate $R^c$\n(definition {plain(definition.name)})", "nonzero": "non-zero fraction"}
    figure = sheet(PAGE, 2.2, title, _curve_notes(tables))
    looks = list(_looks(list(tables)))
    for axis, (name, label) in zip(figure.subplots(1, 2), measures.items(), strict=True):
        for table, look in zip(tables.values(), looks, strict=True):
            layers, mean, low, high = _curve(table, name)
            axis.fill_between(layers, low, high, color=look["color"], alpha=0.18, linewidth=0)
            axis.plot(layers, mean, linewidth=1.2, markersize=3.2, markeredgewidth=0.8, **look)
        _tidy(axis, max(len(table.rows) for table in tables.values()))
        axis.set(xlabel="layer", ylabel=label, ylim=(0, None))
    figure.legend(
        figure.axes[0].lines,
        [plain(key) for key in tables],
        loc="outside right upper",
        frameon=False,
        handlelength=2.6,
        ncols=math.ceil(len(tables) / 14),
    )
    return figure


def _one_definition(tables: Mapping[str, LayerTable]) -> Definition:
    if not tables:
        raise ValueError("there are no tables to draw")
    first, definition = next((key, table.definition) for key, table in tables.items())
    for key, table in tables.items():
        if not table.rows:
            raise ValueError(f"the table {key!r} has no layers")
        if table.definition != definition:
            one, other = definition.name, table.definition.name
            more = "" if one != other else f", and the two differ: {definition}, {table.definition}"
            raise ValueError(
                f"one figure needs one definition, but {first!r} is measured by {one!r}, {key!r} by {other!r}{more}"
            )
    return definition


def _curve(table: LayerTable, name: str) -> tuple[np.ndarray, ...]:
    """Layers, values, and the lower and upper end of the band; NaN where there is none."""
    layers, mean, std, low, high = (
        np.array([row.get(key, math.nan) for row in table.rows], dtype=float)
        for key in ("layer", name, f"{name}_std", f"{name}_low", f"{name}_high")
    )
    if not _has_interval(table, name):
        low, high = mean - std, mean + std
    mean, low, high = (np.where(np.isfinite(values), values, np.nan) for values in (mean, low, high))
    return layers, mean, np.where(np.isnan(mean), np.nan, low), np.where(np.isnan(mean), np.nan, high)


def _has_interval(table: LayerTable, name: str) -> bool:
    return all(f"{name}_low" in row and f"{name}_high" in row for row in table.rows)


def _curve_notes(tables: Mapping[str, LayerTable]) -> list[str]:
    notes, kinds = [], dict[str, list[str]]()
    for key, table in tables.items():
        interval = _has_interval(table, "Rc") or _has_interval(table, "nonzero")
        kind = f"{100 * LEVEL:g} % bootstrap interval of the mean" if interval else "± one standard deviation"
        kinds.setdefault(kind, []).append(key)
    counts = sorted({table.samples for table in tables.values()})
    samples = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
    bands = (kind if len(kinds) == 1 else f"{kind} ({', '.join(keys)})" for kind, keys in kinds.items())
    notes.append(f"Bands: {'; '.join(bands)}, over {samples} sample{'s' * (counts[-1] != 1)}.")
    for name, words in (("Rc", "coding rate"), ("nonzero", "non-zero fraction")):
        for key, table in tables.items():
            layers, mean, low, high = _curve(table, name)
            no_band = ~np.isnan(mean) & (np.isnan(low) | np.isnan(high))
            for what, lacking in (("value", np.isnan(mean)), ("band", no_band)):
                if lacking.any():
                    where = "any layer" if lacking.all() else _layers(layers[lacking])
                    notes.append(f"The {words} of {key} has no finite {what} at {where}.")
    return notes


def _layers(numbers: Sequence[float] | np.ndarray) -> str:
    return f"layer{'s' * (len(numbers) > 1)} {', '.join(f'{number:g}' for number in numbers)}"


def _looks(keys: list[str]) -> Iterator[dict[str, Any]]:
    """Colour, marker and line of every curve: along one colour map where the keys have an order, else as distinct."""
    from matplotlib import colormaps

    order = _order(keys) if len(keys) > FEW else None
    for i in range(len(keys)):
        if order is None:
            look = {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i % len(DASHES)]}
            yield look | {"marker": MARKERS[i % len(MARKERS)], "markerfacecolor": "white" if i % 2 else look["color"]}
        else:  # without the palest colours, which paper does not show
            yield {"color": colormaps["viridis"](0.92 * order[i] / (len(keys) - 1)), "linestyle": "-", "marker": "o"}


def _order(keys: list[str]) -> list[int] | None:
    """The rank of each key if all are one text with different numbers ("epoch 10"); "untrained" is the first."""
    found = [re.fullmatch(r"(\D*)(\d+(?:\.\d+)?)(\D*)", key) for key in keys]
    numbers = [float(match[2]) if match else -1.0 for match in found]
    texts = {(match[1], match[3]) for match in found if match}
    others = {key for key, match in zip(keys, found, strict=True) if not match}
    if len(texts) != 1 or not others <= {"untrained"} or len(set(numbers)) < len(numbers):
        return None
    return [sorted(numbers).index(number) for number in numbers]


def _tidy(axis: Axes, layers: int) -> None:
    step = math.ceil(layers / 6)
    tidy(axis)
    axis.set_xticks([1, *range(step, layers + 1, step)] if layers > 12 else range(1, layers + 1))
