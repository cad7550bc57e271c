"""Warnings that training may be going wrong: the loss is back at chance level, or tokens are collapsing.

Also the measurements behind the second: R^c and non-zero fraction of every layer, on the same images every time.
"""

import logging
import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data import Feed
from ..measures import LayerTable, layerwise_by
from .journal import Journal
from .step import Outcome

log = logging.getLogger("opencrate")

COLLAPSE = "unit"  # the definition of R^c that falls when tokens take one direction, whatever their length does
LEARNED, NOTHING = 0.2, 0.01  # nats below the loss at chance level


@dataclass
class RelapseMonitor:
    """Notices a network that has lost what it had learned: the mean loss of an epoch is back at chance level."""

    chance_loss: float
    lowest: float = math.inf  # of earlier epochs
    loss: float = 0.0  # the sum over the steps of this epoch
    steps: int = 0

    def add(self, outcome: Outcome) -> None:
        if outcome.finite:
            self.loss, self.steps = self.loss + outcome.loss, self.steps + 1

    def end_epoch(self) -> tuple[float, float] | None:
        """The loss of the epoch and the lowest before it, if this is the epoch in which the network relapsed."""
        if not self.steps:
            return None
        loss, self.loss, self.steps = self.loss / self.steps, 0.0, 0
        if self.lowest < self.chance_loss - LEARNED and loss > self.chance_loss - NOTHING:
            lowest, self.lowest = self.lowest, math.inf  # so that the next warning needs another relapse
            return loss, lowest
        self.lowest = min(self.lowest, loss)
        return None

    def check(self, journal: Journal, step: int, epoch: int) -> None:
        """At the end of an epoch, record a relapse and warn about it."""
        relapse = self.end_epoch()
        if relapse is None:
            return
        loss, lowest = relapse
        journal.record("relapse", step, epoch=epoch, loss=loss, lowest=lowest)
        journal.warn(
            f"epoch {epoch}: loss {loss:.2f} is back at chance level (best so far {lowest:.2f}); try a lower --optim.lr"
        )


class LayerMonitor:
    """Measures every layer on `samples` validation images, for the log, and warns when R^c falls too fast."""

    def __init__(self, samples: int, definition: str) -> None:
        self.samples, self.definition = samples, definition
        self.images: Tensor | None = None  # the same every time, spread over the validation split
        self.table: LayerTable | None = None  # by `definition`, which is shown
        self.watched: LayerTable | None = None  # by the definition COLLAPSE

    def to_dict(self) -> dict[str, Any]:
        """What a resumed run needs: the newest tables."""
        tables = {"table": self.table, "watched": self.watched}
        return {name: table.to_dict() if table else None for name, table in tables.items()}

    def restore(self, values: dict[str, Any]) -> None:
        for name in ("table", "watched"):  # older checkpoints have one of them, or none
            if values.get(name):
                setattr(self, name, LayerTable.from_dict(values[name]))

    def measure(self, model: Any, feed: Feed, journal: Journal, step: int, epoch: int, shown: bool) -> None:
        """Record the layer table after an epoch, and warn about layers whose R^c has halved since the last."""
        begun, previous = time.perf_counter(), self.watched
        if self.images is None:
            self.images = torch.cat([images for images, _ in feed.sample(self.samples, self.samples)])
        definitions = tuple(dict.fromkeys((self.definition, COLLAPSE)))
        try:
            with torch.compiler.set_stance("force_eager"):
                tables = layerwise_by(model, self.images, definitions, resamples=0)
        except torch.linalg.LinAlgError:
            journal.warn(
                f"epoch {epoch}: the layers are not measured, because their tokens are too large for R^c in float64;"
                " try a lower --optim.lr"
            )
            return
        self.table, self.watched = tables[0], tables[-1]
        journal.layers(self.table, step, epoch, time.perf_counter() - begun, shown)
        # Not in the first epoch: R^c of fresh weights may fall because they learn.
        if previous and epoch > 1 and (layers := halved_layers(previous, self.watched)):
            spread = halved_layers(previous, self.watched, "spread")
            journal.record("halved", step, epoch=epoch, layers=layers, spread=spread)
            journal.warn(
                f"epoch {epoch}: R^c (definition {COLLAPSE}) has halved since the epoch before, at {len(layers)} of"
                f" {len(self.table.rows)} layers, and the tokens' spread at {len(spread)}: tokens may be collapsing"
                " onto one direction; if the loss rises, try a lower --optim.lr"
            )


def halved_layers(before: LayerTable, now: LayerTable, measure: str = "Rc") -> list[int]:
    """The layers whose R^c, or spread, has fallen to less than half.

    By the definition `unit` R^c shows tokens that take one direction epochs before the loss does (docs/LOG.md). Tables
    of 0.1 have no spread.
    """
    pairs = [pair for pair in zip(before.rows, now.rows, strict=True) if all(measure in row for row in pair)]
    return [int(row["layer"]) for earlier, row in pairs if row[measure] < 0.5 * earlier[measure]]
