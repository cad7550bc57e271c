"""What passes through a network: `Step`, and `trajectory`, which walks the same half-steps as the forward pass."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

from .layers import Layer

__all__ = ["Step", "require_crate", "trajectory"]


@dataclass(frozen=True, eq=False)
class Step:
    """What passes through layer `layer` (counted from 1, as in the paper)."""

    layer: int
    Z: Tensor
    Z_half: Tensor
    Z_next: Tensor
    projections: Tensor | None = None
    attention: Tensor | None = None


def trajectory(model: Any, images: Tensor, *, projections: bool = False, attention: bool = False) -> Iterator[Step]:
    """Yield Z^l, Z^{l+1/2} and Z^{l+1} (b, n, d) of every layer.

    On request also the projections U_kᵀ LN Z^l (b, k, n, p) and the attention maps (b, k, n, n). It runs as the model
    is set (train or eval) and as gradients are set: wrap it in `torch.inference_mode()` to look only.
    """
    require_crate("trajectory", model)
    Z = model.embed(images)
    for layer, block in enumerate(cast("Iterable[Layer]", model.blocks), start=1):
        Z_half = block.compress(Z)
        Z_next = block.sparsify(Z_half)
        yield Step(
            layer,
            Z,
            Z_half,
            Z_next,
            block.compress.projections(Z) if projections else None,
            block.compress.attention(Z) if attention else None,
        )
        Z = Z_next


def require_crate(what: str, model: nn.Module) -> None:
    """That `what` was given a CRATE, not a ViT or a folded copy."""
    if not hasattr(model, "embed") or not hasattr(model, "blocks"):
        raise ValueError(f"{what} takes a CRATE, got {type(model).__name__}")
