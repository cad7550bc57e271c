"""How networks learn, as a picture: what they know of training pictures and of others, over the epochs."""

from collections.abc import Mapping, Sequence

from .canvas import PAGE, Figure, plain, sheet, style, tidy
from .figures import COLOURS, DASHES, MARKERS

__all__ = ["learning_curves"]

Curve = Mapping[str, Sequence[int | float | None]]
"""By "epoch": "top1" (per cent) and "loss" on validation pictures, and maybe "training_top1"; more is let be."""


@style()
def learning_curves(panels: Mapping[str, Mapping[str, Curve]], title: str = "") -> Figure:
    """A column for every panel of networks: accuracy above, the loss on validation pictures below."""
    if not panels or not all(panels.values()):
        raise ValueError("there are no curves to draw")
    notes = ["Full lines: validation pictures."]
    if any("training_top1" in curve for curves in panels.values() for curve in curves.values()):
        notes = ["Full lines: validation pictures. Thin dashed lines: training pictures, as they were varied."]
    figure = sheet(PAGE, 3.4, title, notes)
    axes = figure.subplots(2, len(panels), sharex="col", sharey="row", squeeze=False)
    for (above, below), (name, curves) in zip(axes.T, panels.items(), strict=True):
        for i, (label, curve) in enumerate(curves.items()):
            look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "markersize": 2.6}
            above.plot(curve["epoch"], curve["top1"], linewidth=1.2, label=plain(label), **look)
            below.plot(curve["epoch"], curve["loss"], linewidth=1.2, **look)
            if "training_top1" in curve:
                above.plot(curve["epoch"], curve["training_top1"], DASHES[1], color=look["color"], linewidth=0.8)
        above.set_title(plain(name))
        above.legend(loc="lower right", frameon=False)
        below.set_xlabel("epoch")
        for axis in (above, below):
            tidy(axis)
    axes[0, 0].set_ylabel("accuracy, per cent")
    axes[1, 0].set_ylabel("loss, nats")
    return figure
