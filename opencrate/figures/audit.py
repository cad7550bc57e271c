"""The audit as pictures: what each half-step changes, the rank of the tokens, the direction of the compression."""

import numpy as np
from torch import Tensor

from ..measures import interval
from ..measures.audit import Audit
from .canvas import COLOURS, GREY, PAGE, SMALL, Axes, Figure, layer_axis, sheet, style

BETTER, WORSE, *_ = COLOURS
BEFORE = "#9aa5b1"


@style()
def half_steps(audit: Audit) -> Figure:
    """How R^c changes by compression and the LASSO by sparsification, in per cent; rank; directions."""
    note = f"Bars and points: means over {audit.samples} pictures; whiskers: 95 % intervals."
    figure = sheet(PAGE, 4.6, notes=[note])
    (compressed, sparsified), (ranks, cosines) = figure.subplots(2, 2)
    aim = audit.weights[0].aim or "LASSO"
    _bars(compressed, audit.changes("compress"), "compression: change of $R^c$, per cent")
    _bars(sparsified, audit.changes("sparsify"), f"sparsification: change of the {aim}, per cent")
    for site, colour, marker, label in (
        ("Z", BEFORE, "o", "before the layer"),
        ("Z_half", BETTER, "s", "after compression"),
        ("Z_next", WORSE, "^", "after sparsification"),
    ):
        _line(ranks, audit.at("rank", site), colour, marker, label)
    ranks.set_title("effective rank of the tokens", loc="left")
    ranks.set_ylim(0, None)
    ranks.legend()
    for name, colour, marker, label in (
        ("gradient_cosine", BETTER, "o", "step taken, against $-\\nabla R^c$"),
        ("unit_cosine", GREY, "D", "the same, of tokens at unit length"),
        ("softmax_cosine", WORSE, "s", "softmax form, against exact gradient"),
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


def _bars(axis: Axes, changes: Tensor, title: str) -> None:
    """The means of relative changes (layers, samples) as bars, blue where the design wants them, with whiskers."""
    percent = 100 * changes
    mean, low, high = (values.numpy() for values in (percent.mean(-1), *interval(percent)))
    layers = np.arange(1, len(mean) + 1)
    axis.bar(layers, mean, color=np.where(mean <= 0, BETTER, WORSE), width=0.7)
    whiskers = np.stack([mean - low, high - mean]).clip(0)
    axis.errorbar(layers, mean, whiskers, fmt="none", ecolor=GREY, elinewidth=0.8, capsize=1.5)
    axis.axhline(0, color=GREY, linewidth=0.6)
    axis.set_title(title, loc="left")


def _line(axis: Axes, values: Tensor, colour: str, marker: str, label: str) -> None:
    """The means of values (layers, samples)."""
    layers = np.arange(1, len(values) + 1)
    axis.plot(layers, values.mean(-1), color=colour, marker=marker, markersize=3, linewidth=1.1, label=label)
