"""How networks learn, as a picture: what they know of training pictures and of others, over the epochs."""

from collections.abc import Mapping, Sequence

from .canvas import PAGE, Figure, plain, sheet, style, tidy
from .curves import COLOURS, DASHES, MARKERS

Curve = Mapping[str, Sequence[int | float | None]]
"""By "epoch": "top1" (per cent) and "loss" on validation pictures, and maybe "training_top1" and "training_loss"."""


@style()
def learning_curves(panels: Mapping[str, Mapping[str, Curve]], title: str = "") -> Figure:
    """A column for every panel of networks: accuracy, loss on validation pictures and, if all have it, in training."""
    if not panels or not all(panels.values()):
        raise ValueError("there are no curves to draw")
    every = [curve for curves in panels.values() for curve in curves.values()]
    notes = ["Accuracy and loss are those of validation pictures."]
    if any("training_top1" in curve for curve in every):
        notes = ["Full lines: validation pictures. Thin dashed lines: training pictures, as they were varied."]
    rows = {"top1": "accuracy, per cent", "loss": "loss, nats"}
    if all("training_loss" in curve for curve in every):
        rows["training_loss"] = "training loss"
        notes.append("The training loss is of an epoch's pictures as they were varied or mixed, with label smoothing.")
    figure = sheet(PAGE, 1 + 1.2 * len(rows), title, notes)
    axes = figure.subplots(len(rows), len(panels), sharex="col", sharey="row", squeeze=False)
    for column, (name, curves) in zip(axes.T, panels.items(), strict=True):
        for i, (label, curve) in enumerate(curves.items()):
            look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "markersize": 2.6}
            for axis, row in zip(column, rows, strict=True):
                axis.plot(curve["epoch"], curve[row], linewidth=1.2, label=plain(label), **look)
            if "training_top1" in curve:
                column[0].plot(curve["epoch"], curve["training_top1"], DASHES[1], color=look["color"], linewidth=0.8)
        column[0].set_title(plain(name))
        column[0].legend(loc="lower right", frameon=False)
        column[-1].set_xlabel("epoch")
        for axis in column:
            tidy(axis)
    for axis, words in zip(axes[:, 0], rows.values(), strict=True):
        axis.set_ylabel(words)
    return figure
