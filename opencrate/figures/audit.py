"""The audit as pictures: what each half-step and every null changes, the tokens' rank and spread, directions."""

from itertools import cycle

import numpy as np
from torch import Tensor

from ..measures import interval
from ..measures.audit import Audit, relative
from ..measures.verdicts import verdicts
from .canvas import COLOURS, GREY, PAGE, SMALL, Axes, Figure, layer_axis, sheet, style

LAYER, OTHER, *_ = COLOURS
BEFORE = "#9aa5b1"
MARKERS = "ovsD^P*X"  # of nulls


@style()
def half_steps(audit: Audit) -> Figure:
    """How R^c and the sparsification's aim change, by the layer and by every null; rank; directions."""
    note = f"Bars and points: means over {audit.samples} pictures; whiskers: 95 % intervals of the layer's own."
    figure = sheet(PAGE, 5.4, notes=[note])
    (compressed, sparsified), (ranks, cosines) = figure.subplots(2, 2)
    aim = audit.weights[0].aim or "aim"
    _beside_nulls(compressed, audit, "compress", "change of $R^c$ of tokens at unit length, per cent")
    _beside_nulls(sparsified, audit, "sparsify", f"{aim} of the code less that of the zero code, per cent of it")
    for site, colour, marker, label in (
        ("Z", BEFORE, "o", "before the layer"),
        ("Z_half", LAYER, "s", "after compression"),
        ("Z_next", OTHER, "^", "after sparsification"),
    ):
        _line(ranks, audit.at("rank", site), colour, marker, label)
    ranks.set_title("effective rank of tokens at unit length", loc="left")
    ranks.set_ylim(0, None)
    ranks.legend()
    for name, colour, marker, label in (
        ("gradient_cosine", LAYER, "o", "step taken, against $-\\nabla R^c$"),
        ("unit_cosine", GREY, "D", "the same, of tokens at unit length"),
        ("softmax_cosine", OTHER, "s", "softmax form, against exact gradient"),
    ):
        _line(cosines, audit.values[name], colour, marker, label)
    cosines.axhline(0, color=GREY, linewidth=0.6)
    cosines.set_title("cosine between directions", loc="left")
    cosines.set_ylim(-1.05, 1.05)
    cosines.legend()
    for axis in figure.axes:
        layer_axis(axis, len(audit.weights))
    return figure


@style()
def head_map(importance: Tensor) -> Figure:
    """How far the output moves when a head is switched off, (layers, k): layers down, heads across."""
    layers, heads = importance.shape
    figure = sheet(max(2.6, 0.9 + 0.34 * heads), max(1.6, 0.9 + 0.24 * layers))
    axis = figure.subplots()
    drawn = axis.imshow(np.asarray(importance), cmap="viridis", aspect="auto", vmin=0)
    axis.set(xlabel="head", ylabel="layer")
    axis.set_xticks(range(heads), [str(head) for head in range(1, heads + 1)])
    axis.set_yticks(range(layers), [str(layer) for layer in range(1, layers + 1)])
    axis.tick_params(length=0, labelsize=SMALL)
    bar = figure.colorbar(drawn, ax=axis, pad=0.02, label="change of the prediction, nats")
    bar.ax.tick_params(labelsize=SMALL)
    return figure


def _beside_nulls(axis: Axes, audit: Audit, half: str, title: str) -> None:
    """What a half-step is judged by as bars, with whiskers, and the same after every null as points."""
    before, after, scale, nulls = audit.judged(half)
    start = nulls["zero"] if half == "sparsify" else before
    own = 100 * relative(after - start, scale)
    mean, low, high = (values.numpy() for values in (own.mean(-1), *interval(own)))
    layers = np.arange(1, len(mean) + 1)
    axis.bar(layers, mean, color=LAYER, alpha=0.55, width=0.75, label="the layer")
    whiskers = np.stack([mean - low, high - mean]).clip(0)
    axis.errorbar(layers, mean, whiskers, fmt="none", ecolor=GREY, elinewidth=0.8, capsize=1.5)
    counted = [getattr(verdict, half).nulls or {} for verdict in verdicts(audit)]
    for (name, values), marker, colour in zip(nulls.items(), cycle(MARKERS), cycle(COLOURS[1:]), strict=False):
        points = (100 * relative(values - start, scale).mean(-1)).numpy()
        points = np.where([name in names for names in counted], points, np.nan)  # others collapse the tokens
        axis.plot(layers, points, marker, color=colour, markersize=3, linestyle="none", label=name)
    axis.axhline(0, color=GREY, linewidth=0.6)
    axis.set_title(title, loc="left")
    axis.legend(ncols=3, fontsize=SMALL - 1, handletextpad=0.3, columnspacing=0.8)


def _line(axis: Axes, values: Tensor, colour: str, marker: str, label: str) -> None:
    """The means of values (layers, samples)."""
    layers = np.arange(1, len(values) + 1)
    axis.plot(layers, values.mean(-1), color=colour, marker=marker, markersize=3, linewidth=1.1, label=label)
