"""A layer and its two half-steps.

    Z^{l+1/2} = Z^l + MSSA(LN Z^l | U_[K]^l)          `compress`
    Z^{l+1}   = ISTA(LN Z^{l+1/2} | D^l)              `sparsify`

Departure from the paper's equations, and as in its Algorithm 2: a norm stands before both halves. Whether a half-step
has a skip is its operator's to say: MSSA's result is added to the tokens, ISTA's takes their place.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .errors import shown, suggestion
from .operators.base import Operator


class HalfStep(nn.Module):
    """norm → operator → skip, whatever the operator."""

    def __init__(self, norm: nn.Module, operator: Operator, drop: nn.Module | None = None) -> None:
        super().__init__()
        self.norm, self.operator = norm, operator
        self.drop = nn.Identity() if drop is None else drop

    def forward(self, Z: Tensor) -> Tensor:
        return self.skip(Z, self.operator(self.norm(Z)))

    def skip(self, Z: Tensor, result: Tensor) -> Tensor:
        return result if self.operator.replaces else Z + self.drop(result)


class Layer(nn.Module):
    """Z^l → Z^{l+1}: compress, then sparsify."""

    def __init__(self, compress: HalfStep, sparsify: HalfStep) -> None:
        super().__init__()
        self.compress, self.sparsify = compress, sparsify

    def forward(self, Z: Tensor) -> Tensor:
        return self.sparsify(self.compress(Z))

    @property
    def U(self) -> Any:
        """U_[K]^l, (k, d, p); None if the compression has no subspaces."""
        return getattr(self.compress.operator, "U", None)

    @property
    def D(self) -> Any:
        """D^l, (d, m); None if the sparsification has no dictionary."""
        return getattr(self.sparsify.operator, "D", None)


class UnitNorm(nn.Module):
    """Every token scaled to length √d, the length that LayerNorm and RMSNorm give it, without weights."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, Z: Tensor) -> Tensor:
        return F.normalize(Z, dim=-1, eps=self.eps) * self.dim**0.5

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps}"


NORMS: dict[str, Callable[..., nn.Module]] = {"layernorm": nn.LayerNorm, "rmsnorm": nn.RMSNorm, "unit": UnitNorm}


def build_norm(
    name: str, dim: int, eps: float, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> nn.Module:
    if name not in NORMS:
        raise ValueError(f"unknown norm {shown(name)}{suggestion(name, NORMS)}")
    with nullcontext() if device is None else torch.device(device):
        return NORMS[name](dim, eps=eps).to(dtype=dtype)
