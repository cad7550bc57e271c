"""R^c and the non-zero fraction by layer, and the accuracy by epoch, as curves."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..measures import Definition, LayerTable
from ..measures.layerwise import LEVEL
from .canvas import COLOURS, COLUMN, GREY, PAGE, Figure, layer_axis, plain, sheet, style, tidy

MARKERS, DASHES = ("o", "s", "^", "D", "v", "P", "X", "<"), ("-", "--", "-.", ":")  # for readers in black and white
FEW = 3  # more curves than these, of keys in an order, are coloured by their order
MEASURES = {"Rc": "coding rate", "nonzero": "non-zero fraction"}


@style()
def layer_curves(tables: Mapping[str, LayerTable], title: str = "") -> Figure:
    """R^c and the non-zero fraction by layer, a curve per table, with a band where the table has one.

    The band is the bootstrap interval (`Rc_low`, `Rc_high`) where the rows have one, else ± one standard deviation.
    """
    definition, looks = _one_definition(tables), list(_looks(list(tables)))
    labels = MEASURES | {"Rc": f"coding rate $R^c$\n(definition {plain(definition.name)})"}
    figure = sheet(PAGE, 2.2, title, _notes(tables))
    for axis, (name, label) in zip(figure.subplots(1, 2), labels.items(), strict=True):
        for table, look in zip(tables.values(), looks, strict=True):
            layers, mean, low, high = _curve(table, name)
            axis.fill_between(layers, low, high, color=look["color"], alpha=0.18, linewidth=0)
            axis.plot(layers, mean, linewidth=1.2, markersize=3.2, markeredgewidth=0.8, **look)
        layer_axis(axis, max(len(table.rows) for table in tables.values()))
        axis.set(ylabel=label, ylim=(0, None))
    figure.legend(
        figure.axes[0].lines,
        [plain(key) for key in tables],
        loc="outside right upper",
        handlelength=2.6,
        ncols=math.ceil(len(tables) / 14),
    )
    return figure


@style()
def accuracy_curve(accuracies: Mapping[int, float], marked: Mapping[str, int], title: str = "") -> Figure:
    """Top-1 accuracy by epoch; `marked` has the epochs that a point marks, by what they are."""
    figure = sheet(COLUMN, 2.2, title)
    axis = figure.subplots()
    epochs = sorted(accuracies)
    axis.plot(epochs, [accuracies[epoch] for epoch in epochs], color=GREY, linewidth=1.2)
    for (label, epoch), colour, marker in zip(marked.items(), COLOURS, MARKERS, strict=False):
        if epoch in accuracies:
            text = f"{label}, epoch {epoch}: {accuracies[epoch]:.1f} %"
            axis.plot([epoch], [accuracies[epoch]], marker, color=colour, markersize=4.5, label=text)
    tidy(axis)
    axis.set(xlabel="epoch", ylabel="top-1 accuracy on\nvalidation pictures (%)")
    figure.legend(loc="outside upper center")
    return figure


def _one_definition(tables: Mapping[str, LayerTable]) -> Definition:
    first, *others = tables
    definition = tables[first].definition
    for key in others:
        other = tables[key].definition
        if other != definition:
            differ = f", and the two differ: {definition}, {other}" if other.name == definition.name else ""
            raise ValueError(
                f"one figure needs one definition, but {first!r} is measured by {definition.name!r}, {key!r} by"
                f" {other.name!r}{differ}"
            )
    return definition


def _curve(table: LayerTable, name: str) -> tuple[np.ndarray, ...]:
    """Layers, values, and the lower and upper end of the band; NaN where there is none."""
    layers, mean, std, low, high = (
        np.array([row.get(key, math.nan) for row in table.rows], dtype=float)
        for key in ("layer", name, f"{name}_std", f"{name}_low", f"{name}_high")
    )
    if not _has_intervals(table):
        low, high = mean - std, mean + std
    known = np.isfinite(mean)
    return layers, *(np.where(known & np.isfinite(values), values, np.nan) for values in (mean, low, high))


def _has_intervals(table: LayerTable) -> bool:
    return "nonzero_low" in table.rows[0]


def _notes(tables: Mapping[str, LayerTable]) -> Iterator[str]:
    """What the bands are, over how many samples, and which values are missing."""
    kinds = dict[str, list[str]]()
    for key, table in tables.items():
        interval = f"{100 * LEVEL:g} % bootstrap interval of the mean"
        kinds.setdefault(interval if _has_intervals(table) else "± one standard deviation", []).append(key)
    bands = (kind if len(kinds) == 1 else f"{kind} ({', '.join(keys)})" for kind, keys in kinds.items())
    counts = sorted({table.samples for table in tables.values()})
    samples = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
    yield f"Bands: {'; '.join(bands)}, over {samples} sample{'s' * (counts[-1] != 1)}."
    for name, words in MEASURES.items():
        for key, table in tables.items():
            layers, mean, *band = _curve(table, name)
            no_value, no_band = np.isnan(mean), np.isnan(band).any(0)
            for what, lacking in (("value", no_value), ("band", no_band & ~no_value)):
                if lacking.any():
                    where = "any layer" if lacking.all() else _layers(layers[lacking])
                    yield f"The {words} of {key} has no finite {what} at {where}."


def _layers(numbers: np.ndarray) -> str:
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
    matches = [re.fullmatch(r"(\D*)(\d+)(\D*)", key) for key in keys]
    numbers = [int(match[2]) if match else -1 for match in matches]
    texts = {(match[1], match[3]) for match in matches if match}
    others = {key for key, match in zip(keys, matches, strict=True) if not match}
    if len(texts) != 1 or not others <= {"untrained"} or len(set(numbers)) < len(numbers):
        return None
    return [sorted(numbers).index(number) for number in numbers]
