"""Compression in which every token chooses among the heads.

    Σ_k π_k(z_i) SSA(Z | U_k)_i U_kᵀ   with π(z) = softmax_k(‖U_kᵀ z‖²/(2σ²))                eq. mog-score-as-attention

The paper leaves this aggregation for future work; for one token it is the denoiser of a mixture of Gaussians.
"""

from typing import Any

from torch import Tensor

from ..errors import require_positive
from ..objective.rates import project
from ..shapes import Bases, Float, Tokens
from .attention import lift, ssa
from .base import compressions
from .mssa import AttentionCompression


def membership(Z: Tokens, U: Bases, sigma: float) -> Float[Tensor, "*batch k n"]:
    """π_k(z_i): the share of token i that belongs to subspace k."""
    require_positive("sigma", sigma)
    return (project(Z, U).square().sum(-1) / (2 * sigma**2)).softmax(-2)


def mixture_step(
    Z: Tokens,
    U: Bases,
    sigma: float = 1.0,
    scale: float = 1.0,
    dropout: float = 0.0,
    attention: str = "auto",
) -> Tokens:
    """Σ_k π_k(z_i) SSA(Z | U_k)_i U_kᵀ: the tokens after the step."""
    return lift(membership(Z, U, sigma).unsqueeze(-1) * ssa(Z, U, scale, dropout, attention), U)


@compressions.register("mixture_step")
class MixtureStep(AttentionCompression):
    """The move of `mixture_step`. Tokens choose among all heads, also among those that are muted."""

    def __init__(self, dim: int, num_heads: int, sigma: float = 1.0, **attention: Any) -> None:
        super().__init__(dim, num_heads, **attention)
        self.sigma = sigma

    def forward(self, Y: Tensor) -> Tensor:
        shares = membership(Y, self.U, self.sigma).unsqueeze(-1)
        return lift(shares * ssa(Y, self.U, self.scale, self.dropout, self.attention), self.active_U) - Y
