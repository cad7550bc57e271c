"""Language modelling on bytes: cross-entropy of the next byte, and bits per byte."""

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..data import Batch
from .task import Network, Report, Task


class NextByte(Task):
    """Batches are bytes (b, n) and the byte after each of them (b, n), where −1 does not count.

    The network is causal and returns logits (b, n, 256).
    """

    headline = ("bits_per_byte",)
    counted = "bytes"
    higher_is_better = False
    chance_loss = math.log(256)

    def loss(self, model: Network, batch: Batch) -> tuple[Tensor, Report]:
        inputs, targets = batch
        loss = _cross_entropy(model(inputs), targets, "mean")
        return loss, {"loss": loss.detach(), "bits_per_byte": loss.detach() / math.log(2)}

    def totals(self, model: Network, batch: Batch) -> Report:
        inputs, targets = batch
        return {"loss": _cross_entropy(model(inputs), targets, "sum"), "bytes": torch.sum(targets >= 0)}

    def metrics(self, totals: dict[str, float]) -> dict[str, float]:
        """Bits per byte, mean loss in nats, and how many bytes were predicted."""
        metrics = super().metrics(totals)
        return {"bits_per_byte": metrics["loss"] / math.log(2)} | metrics


def _cross_entropy(logits: Tensor, targets: Tensor, reduction: str) -> Tensor:
    return cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction=reduction, ignore_index=-1)
