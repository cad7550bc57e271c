"""Evaluation: accuracy on a split, each picture counted once on any number of processes."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ..data import Feed
from .stepping import DTYPES
from .world import World

__all__ = ["evaluate"]

BATCH = 512


@torch.inference_mode()
def evaluate(model: nn.Module, feed: Feed, world: World, precision: str = "fp32", batch: int = BATCH) -> dict[str, Any]:
    """Top-1 and top-5 accuracy in per cent, mean loss, and how many pictures were counted."""
    was_training, device, dtype = model.training, world.device, DTYPES.get(precision)
    model.eval()
    sums = torch.zeros(4, dtype=torch.float64, device=device)  # top-1, top-5, loss, pictures
    try:
        # Eager: the last batch is smaller, and compiling for it would take longer than it saves.
        with torch.compiler.set_stance("force_eager"):
            for images, targets in feed.evaluate(batch, world.rank, world.size):
                with torch.autocast(device.type, dtype) if dtype else nullcontext():
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
