"""Evaluation: accuracy on a split, each picture counted once on any number of processes."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.functional import cross_entropy

from ..data import Batch, Feed
from ..distributed import World, autocast

__all__ = ["evaluate"]

BATCH = 512


def _rounds(model: nn.Module, feed: Feed, world: World, batch: int) -> Iterator[Batch]:
    """This process's batches. Passing through a sharded network takes all processes, so all do as many rounds."""
    done = 0
    for images, targets in feed.evaluate(batch, world.rank, world.size):
        done += 1
        yield images, targets
    if isinstance(model, FSDPModule):
        share = -(-len(feed) // world.size)
        for _ in range(done, -(-share // batch)):
            first = next(iter(feed.evaluate(1)))[0]
            yield first, torch.full((1,), -1, device=world.device)


@torch.inference_mode()
def evaluate(model: nn.Module, feed: Feed, world: World, precision: str = "fp32", batch: int = BATCH) -> dict[str, Any]:
    """Top-1 and top-5 accuracy in per cent, mean loss, and how many pictures were counted."""
    was_training, device = model.training, world.device
    model.eval()
    sums = torch.zeros(4, dtype=torch.float64, device=device)  # top-1, top-5, loss, pictures
    try:
        # Eager: the last batch is smaller, and compiling for it would take longer than it saves.
        with torch.compiler.set_stance("force_eager"):
            for images, targets in _rounds(model, feed, world, batch):
                with autocast(device, precision):
                    logits = model(images).float()
                counted = targets >= 0
                best = logits.topk(min(5, logits.shape[-1])).indices == targets[:, None]
                loss = cross_entropy(logits, targets, reduction="sum", ignore_index=-1)
                sums += torch.stack([best[:, 0].sum(), best.sum(), loss, counted.sum()]).double()
    finally:
        model.train(was_training)
    top1, top5, loss, pictures = world.sum(sums).tolist()
    if pictures == 0:
        raise ValueError("no picture of the validation split could be decoded")
    return {
        "top1": 100 * top1 / pictures,
        "top5": 100 * top5 / pictures,
        "loss": loss / pictures,
        "pictures": int(pictures),
    }
