"""One pass through a network, kept: whatever is shown of its pictures is computed from it without another pass."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..models import CRATE
from ..shapes import Float
from ..stack import Step, trajectory
from .views import finite_projections

__all__ = ["Recording", "record"]


@dataclass(frozen=True, eq=False)
class Recording:
    """What b pictures are in every layer: `steps[l - 1]` is what passes through layer l, with projections."""

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
def record(model: CRATE, images: Tensor) -> Recording:
    """Pass a batch of normalised pictures (b, c, H, W) through the network once; it runs as it is set, train or eval.

    Attention maps are not kept: they take n²/d times the memory of the projections, which are enough for them.
    """
    subspaces = all(layer.U is not None for layer in model.layers)
    steps = tuple(trajectory(model, images, projections=subspaces))
    classifies = model.num_classes > 0 and model.global_pool != ""
    logits = model.forward_head(steps[-1].Z_next) if classifies else None
    rows, columns = model.patch_embed.grid_of(images)
    return Recording(steps, logits, (rows, columns))
