"""One pass through a network, recorded: what is shown of its pictures is computed from it without another pass."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..shapes import Float
from ..stack import Step, trajectory
from .views import TOGETHER, finite_projections


@dataclass(frozen=True, eq=False)
class Recording:
    """b pictures in every layer: `steps[l - 1]` is what passes through layer l."""

    steps: tuple[Step, ...]
    logits: Float[Tensor, "b c"] | None  # None for a network without a classifier
    grid: tuple[int, int]  # rows and columns of patches

    def projections(self, layer: int) -> Float[Tensor, "b k n p"]:
        """U_kᵀ LN Z^l of all heads in a layer, which is counted from 1."""
        return finite_projections(self.steps[layer - 1])

    @property
    def nbytes(self) -> int:
        """The memory of all tensors; a layer's Z^{l+1} is the next one's Z^l, and counts once."""
        tensors = [value for step in self.steps for value in vars(step).values() if isinstance(value, Tensor)]
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


@torch.inference_mode()
def record(model: Any, images: Tensor) -> Recording:
    """Pass a batch of normalised pictures (b, c, H, W) through the network once; it runs as it is set, train or eval.

    Attention maps are not kept: they take n²/d times the memory of the projections, which are enough for them.
    """
    subspaces = all(layer.U is not None for layer in model.layers)
    return _recording(model, images, tuple(trajectory(model, images, projections=subspaces)))


@torch.inference_mode()
def record_first(model: Any, images: Tensor, count: int, visit: Callable[[Step], None]) -> Recording:
    """Pass many pictures through the network once and keep the tokens of the first `count`.

    `visit` sees the step of all pictures at every layer, which is dropped after it: never more than one layer of all
    pictures is in memory. TOGETHER pictures pass through a layer at a time. No codes and projections are kept.
    """
    first, kept = slice(count), list[Step]()
    for parts in zip(*(trajectory(model, batch) for batch in images.split(TOGETHER)), strict=True):
        step = parts[0] if len(parts) == 1 else _joined(parts)
        visit(step)
        Z = kept[-1].Z_next if kept else step.Z[first].clone()  # a view would keep all pictures in memory
        kept.append(Step(step.number, step.layer, Z, step.Z_half[first].clone(), step.Z_next[first].clone(), None))
    return _recording(model, images[first], tuple(kept))


def _recording(model: Any, images: Tensor, steps: tuple[Step, ...]) -> Recording:
    classifies = model.num_classes > 0 and model.global_pool != ""
    logits = model.forward_head(steps[-1].Z_next) if classifies else None
    rows, columns = model.patch_embed.grid_of(images)
    return Recording(steps, logits, (rows, columns))


def _joined(parts: Sequence[Step]) -> Step:
    """The step of all pictures from those of their batches."""
    Z, Z_half, Z_next = (torch.cat([getattr(part, site) for part in parts]) for site in ("Z", "Z_half", "Z_next"))
    codes = [part.code for part in parts if part.code is not None]
    return Step(parts[0].number, parts[0].layer, Z, Z_half, Z_next, torch.cat(codes) if codes else None)
