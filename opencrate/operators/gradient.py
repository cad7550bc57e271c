"""Steps along −∇R^c: exact, by its first-order Neumann series, and by the softmax that the paper replaces that with.

    Z − κ∇R^c(Z)         = Z − κγ Σ_k (I + γ V_k V_kᵀ)⁻¹ V_k U_kᵀ   with V_k = Z U_k                 eq. rate-gradient
                         ≈ Z − κγ Σ_k (V_k − γ V_k V_kᵀ V_k) U_kᵀ                                    eq. gd-mcr-parts
                         ≈ (1 − κγ) Z + κγ MSSA(Z | U_[K])

Each function returns the tokens after the step. In a network's layer the step is taken at the normalised tokens Y, and
what is added to the tokens is its move, step(Y) − Y.
"""

from typing import Any

import torch
from torch import Tensor

from ..errors import require_positive
from ..objective.rates import project, rate_scale
from ..shapes import Bases, Tokens
from .attention import lift
from .base import SubspaceCompression, compressions
from .mssa import AttentionCompression, mssa_tied


def softmax_step(
    Z: Tokens,
    U: Bases,
    kappa: float = 0.5,
    eps: float = 0.5,
    scale: float = 1.0,
    dropout: float = 0.0,
    attention: str = "auto",
) -> Tokens:
    """(1 − κγ) Z + κγ MSSA(Z | U_[K]), the paper's approximation of the gradient step with the factors it needs."""
    require_positive("kappa", kappa)
    kappa_gamma = kappa * rate_scale(Z.shape[-2], U.shape[-1], eps)
    return (1 - kappa_gamma) * Z + kappa_gamma * mssa_tied(Z, U, eps, scale, dropout, attention)


def gradient_step(Z: Tokens, U: Bases, kappa: float = 0.5, eps: float = 0.5) -> Tokens:
    """Z − κγ Σ_k V_k (I + γ V_kᵀ V_k)⁻¹ U_kᵀ, the step along the exact ∇R^c(Z; U_[K]), in double precision."""
    require_positive("kappa", kappa)
    gamma = rate_scale(Z.shape[-2], U.shape[-1], eps)
    V = project(Z.double(), U.double())
    if V.shape[-2] < V.shape[-1]:  # the same with the smaller matrix: V (I + γVᵀV)⁻¹ = (I + γVVᵀ)⁻¹ V
        residual = _inverse_of_one_plus(gamma * V @ V.mT) @ V
    else:
        residual = V @ _inverse_of_one_plus(gamma * V.mT @ V)
    return (Z - kappa * gamma * lift(residual, U.double())).to(Z.dtype)


def _inverse_of_one_plus(A: Tensor) -> Tensor:
    """(I + A)⁻¹, whose derivative is two products; that of a Cholesky factor is one triangular system after another.

    The objective's own gradient uses such factors, in two rounds, because it takes tokens of any size; these have left
    a norm.
    """
    return torch.linalg.inv_ex(A + torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)).inverse


def neumann_step(Z: Tokens, U: Bases, kappa: float = 0.5, eps: float = 0.5) -> Tokens:
    """Z − κγ Σ_k (V_k − γ V_k V_kᵀ V_k) U_kᵀ: the inverse (I + γ V_k V_kᵀ)⁻¹ by its first-order Neumann series.

    The series converges only where γ‖V_k V_kᵀ‖ < 1 (docs/ERRATA.md).
    """
    require_positive("kappa", kappa)
    gamma = rate_scale(Z.shape[-2], U.shape[-1], eps)
    V = project(Z, U)
    return Z - kappa * gamma * lift(V - gamma * V @ (V.mT @ V), U)


@compressions.register("softmax_step")
class SoftmaxStep(AttentionCompression):
    """The move of `softmax_step`."""

    def __init__(self, dim: int, num_heads: int, kappa: float = 0.5, eps: float = 0.5, **attention: Any) -> None:
        super().__init__(dim, num_heads, **attention)
        self.kappa, self.eps = kappa, eps

    def forward(self, Y: Tensor) -> Tensor:
        U = self.active_U
        return softmax_step(Y, U, self.kappa, self.eps, self.scale, self.dropout, self.attention) - Y


@compressions.register("gradient_step")
class GradientStep(SubspaceCompression):
    """The move of `gradient_step`."""

    cuda_graph_safe = False  # the solver looks at its result on the host

    def __init__(self, dim: int, num_heads: int, kappa: float = 0.5, eps: float = 0.5, **subspaces: Any) -> None:
        super().__init__(dim, num_heads, **subspaces)
        self.kappa, self.eps = kappa, eps

    def forward(self, Y: Tensor) -> Tensor:
        return gradient_step(Y, self.active_U, self.kappa, self.eps) - Y


@compressions.register("neumann_step")
class NeumannStep(GradientStep):
    """The move of `neumann_step`."""

    cuda_graph_safe = True

    def forward(self, Y: Tensor) -> Tensor:
        return neumann_step(Y, self.active_U, self.kappa, self.eps) - Y
