"""One pass through a network, recorded: what is shown of its pictures is computed from it without another pass."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..shapes import Float
from ..stack import Step, trajectory


@dataclass(frozen=True, eq=False)
class Recording:
    """b pictures in every layer: `steps[l - 1]` is what passes through layer l."""

    steps: tuple[Step, ...]
    logits: Float[Tensor, "b c"] | None  # None for a network without a classifier
    grid: tuple[int, int]  # rows and columns of patches

    @property
    def nbytes(self) -> int:
        """The memory of all tensors; a layer's Z^{l+1} is the next one's Z^l, and counts once."""
        tensors = [value for step in self.steps for value in vars(step).values() if isinstance(value, Tensor)]
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


@torch.inference_mode()
def record(
    model: Any, images: Tensor, first: int | None = None, visit: Callable[[Step], None] | None = None
) -> Recording:
    """Pass normalised pictures (b, c, H, W) through the network once; it runs as it is set, train or eval.

    Of many pictures, only the `first` are kept, while `visit` sees every layer's step of all of them: so never more
    than one layer of all pictures is in memory.
    """
    steps = list[Step]()
    for step in trajectory(model, images):
        if visit is not None:
            visit(step)
        steps.append(step if first is None else _of_first(step, first))
    classifies = model.num_classes > 0 and model.global_pool != ""
    logits = model.forward_head(steps[-1].Z_next) if classifies else None
    rows, columns = model.patch_embed.grid_of(images)
    return Recording(tuple(steps), logits, (rows, columns))


def _of_first(step: Step, count: int) -> Step:
    def part(tokens: Tensor) -> Tensor:
        return tokens[:count].clone()  # a view would keep the tokens of all pictures

    code = None if step.code is None else part(step.code)
    return replace(step, Z=part(step.Z), Z_half=part(step.Z_half), Z_next=part(step.Z_next), code=code)
