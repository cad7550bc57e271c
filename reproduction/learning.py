"""Learning curves: training and validation accuracy of a CRATE and the ViT of its size over the epochs."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from opencrate.figures.canvas import COLOURS, PAGE, Figure, plain, sheet, style, tidy
from opencrate.figures.curves import DASHES, MARKERS

from .claims import pairs_of
from .difference import signed
from .paper import WORDS
from .plan import HALF, LIGHT, SETTINGS, Plan, file_name
from .results import Results

Pairs = dict[str, dict[str, Any]]
"""By "CRATE-T, ViT-T": the learning curves of both networks, as in their rows.

A curve has "epoch", "top1" (per cent) and "loss" on validation pictures, and maybe "training_top1", "training_loss".
"""
LOSS = "training loss"
LEARNING_COLUMNS = (
    "",
    "training accuracy",
    "validation accuracy",
    "between them",
    LOSS,
    "lowest validation loss",
    "validation loss in the end",
)
UNKNOWN = "–"
VARIANTS = {LIGHT: SETTINGS[LIGHT], HALF: WORDS[HALF]} | SETTINGS


def pairs_learning(plan: Plan, results: Results) -> Iterator[tuple[str, str, Pairs]]:
    """A file name, a title and the pairs of networks, for every variant and dataset; first seed, from scratch."""
    curves = {
        (run.task, run.variant, run.model): row.get("curve", {})
        for run, row in results.of(plan)
        if run.start is None and run.recipe.seed == 0
    }
    for task, (variant, words) in product(dict.fromkeys(task for task, *_ in curves), VARIANTS.items()):
        both = [{model: curves.get((task, variant, model), {}) for model in pair} for pair in pairs_of(plan)]
        known = {", ".join(pair): pair for pair in both if all(len(of.get("epoch", ())) > 1 for of in pair.values())}
        if known:
            yield f"{file_name(task)}_{variant}", f"{task}, with {words}", known


@style()
def learning_figure(pairs: Pairs, title: str = "") -> Figure:
    """A column for every pair: accuracy, loss on validation pictures and, if all have it, in training."""
    every = [curve for curves in pairs.values() for curve in curves.values()]
    notes = ["Accuracy and loss are those of validation pictures."]
    if any("training_top1" in curve for curve in every):
        notes = ["Full lines: validation pictures. Thin dashed lines: training pictures, as they were varied."]
    rows = {"top1": "accuracy, per cent", "loss": "loss, nats"}
    if all("training_loss" in curve for curve in every):
        rows["training_loss"] = "training loss"
        notes.append("The training loss is of an epoch's pictures as they were varied or mixed, with label smoothing.")
    figure = sheet(PAGE, 1 + 1.2 * len(rows), title, notes)
    axes = figure.subplots(len(rows), len(pairs), sharex="col", sharey="row", squeeze=False)
    for column, (name, curves) in zip(axes.T, pairs.items(), strict=True):
        for i, (label, curve) in enumerate(curves.items()):
            look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "markersize": 2.6}
            for axis, row in zip(column, rows, strict=True):
                axis.plot(curve["epoch"], curve[row], linewidth=1.2, label=plain(label), **look)
            if "training_top1" in curve:
                column[0].plot(curve["epoch"], curve["training_top1"], DASHES[1], color=look["color"], linewidth=0.8)
        column[0].set_title(plain(name))
        column[0].legend(loc="lower right")
        column[-1].set_xlabel("epoch")
        for axis in column:
            tidy(axis)
    for axis, words in zip(axes[:, 0], rows.values(), strict=True):
        axis.set_ylabel(words)
    return figure


def learning_table(pairs: Pairs) -> list[list[str]]:
    """Head and rows: the accuracies and losses at the end, and the lowest loss; columns without values are left out.

    The training loss is left out unless all networks have it, because it means something only in comparison.
    """
    rows = [_row(model, curve) for networks in pairs.values() for model, curve in networks.items()]
    wanted = {name: all if name == LOSS else any for name in LEARNING_COLUMNS}
    known = [i for i, name in enumerate(LEARNING_COLUMNS) if wanted[name](row[i] != UNKNOWN for row in rows)]
    return [[row[i] for i in known] for row in (list(LEARNING_COLUMNS), *rows)]


def _row(model: str, curve: dict[str, Any]) -> list[str]:
    trained, top1 = curve.get("training_top1", [None])[-1], curve["top1"][-1]
    training_loss = curve.get("training_loss", [None])[-1]
    losses = [(loss, epoch) for loss, epoch in zip(curve["loss"], curve["epoch"], strict=True) if loss is not None]
    lowest, last = min(losses, default=None), curve["loss"][-1]
    return [
        model,
        UNKNOWN if trained is None else f"{trained:.2f}",
        f"{top1:.2f}",
        UNKNOWN if trained is None else signed(trained - top1, 2),
        UNKNOWN if training_loss is None else f"{training_loss:.3f}",
        UNKNOWN if lowest is None else f"{lowest[0]:.3f}, epoch {lowest[1]}",
        UNKNOWN if last is None else f"{last:.3f}",
    ]
