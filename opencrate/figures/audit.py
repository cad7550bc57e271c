"""The audit as pictures: what each half-step changes, the rank of the tokens, the direction of the compression."""

import numpy as np
from torch import Tensor

from ..measures import interval
from ..measures.audit import Audit
from .canvas import GREY, PAGE, SMALL, Axes, Figure, sheet, style, tidy

BETTER, WORSE = "#0072B2", "#D55E00"
LINES = {"Z": ("#9aa5b1", "o", "before the layer"), "Z_half": (BETTER, "s", "after compression"),
         "Z_next": (WORSE, "^", "after sparsification")}  # fmt: skip


@style()
def half_steps(audit: Audit, title: str = "") -> Figure:
    """How R^c changes by compression and the LASSO by sparsification, in per cent; rank; directions."""
    figure = sheet(
        PAGE, 4.6, title, [f"Bars and points: means over {audit.samples} pictures; whiskers: 95 % intervals."]
    )
    axes = figure.subplots(2, 2)
    aim = audit.weights[0].aim or "LASSO"
    _changes(axes[0, 0], 100 * audit.changes("compress"), "compression: change of $R^c$, per cent")
    _changes(axes[0, 1], 100 * audit.changes("sparsify"), f"sparsification: change of the {aim}, per cent")
    _ranks(axes[1, 0], audit)
    _cosines(axes[1, 1], audit)
    for axis in axes.flat:
        axis.set_xlabel("layer")
        tidy(axis)
    return figure


@style()
def head_map(importance: Tensor, title: str = "") -> Figure:
    """How far the output moves when a head is switched off, (layers, k): layers down, heads across."""
    values = np.asarray(importance, dtype=float)
    layers, heads = values.shape
    figure = sheet(max(2.6, 0.9 + 0.34 * heads), max(1.6, 0.9 + 0.24 * layers), title)
    axis = figure.subplots()
    drawn = axis.imshow(values, cmap="viridis", aspect="auto", vmin=0)
    axis.set(xlabel="head", ylabel="layer", xticks=range(heads), yticks=range(layers))
    axis.set_xticklabels([f"{head}" for head in range(1, heads + 1)])
    axis.set_yticklabels([f"{layer}" for layer in range(1, layers + 1)])
    axis.tick_params(length=0, labelsize=SMALL)
    bar = figure.colorbar(drawn, ax=axis, pad=0.02, label="change of the prediction, nats")
    bar.ax.tick_params(labelsize=SMALL)
    return figure


def _changes(axis: Axes, change: Tensor, label: str) -> None:
    """Per cent, (layers, samples)."""
    low, high = interval(change)
    mean, layers = change.mean(-1).numpy(), np.arange(1, len(change) + 1)
    whiskers = np.stack([mean - low.numpy(), high.numpy() - mean]).clip(0)
    axis.bar(layers, mean, color=np.where(mean <= 0, BETTER, WORSE), width=0.7)
    axis.errorbar(layers, mean, whiskers, fmt="none", ecolor=GREY, elinewidth=0.8, capsize=1.5)
    axis.axhline(0, color=GREY, linewidth=0.6)
    axis.set_title(label, loc="left")
    _ticks(axis, len(layers))


def _ranks(axis: Axes, audit: Audit) -> None:
    layers = np.arange(1, len(audit.weights) + 1)
    for site, (colour, marker, label) in LINES.items():
        axis.plot(
            layers,
            audit.at("rank", site).mean(-1),
            color=colour,
            marker=marker,
            markersize=3,
            linewidth=1.1,
            label=label,
        )
    axis.set_title("effective rank of the tokens", loc="left")
    axis.set_ylim(0, None)
    axis.legend(frameon=False)
    _ticks(axis, len(layers))


def _cosines(axis: Axes, audit: Audit) -> None:
    layers = np.arange(1, len(audit.weights) + 1)
    for name, colour, marker, label in (
        ("gradient_cosine", BETTER, "o", "step taken, against $-\\nabla R^c$"),
        ("unit_cosine", GREY, "D", "the same, of tokens at unit length"),
        ("softmax_cosine", WORSE, "s", "softmax form, against exact gradient"),
    ):
        axis.plot(
            layers, audit.values[name].mean(-1), color=colour, marker=marker, markersize=3, linewidth=1.1, label=label
        )
    axis.axhline(0, color=GREY, linewidth=0.6)
    axis.set_ylim(-1.05, 1.05)
    axis.set_title("cosine between directions", loc="left")
    axis.legend(frameon=False)
    _ticks(axis, len(layers))


def _ticks(axis: Axes, layers: int) -> None:
    axis.set_xticks(range(1, layers + 1) if layers <= 12 else range(2, layers + 1, 2))
