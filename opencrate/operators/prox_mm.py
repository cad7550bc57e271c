"""Proximal majorise-minimise steps on λ‖Z‖₁ − R(Z), the paper's other sparsification (appendix A.3).

    prox_mm        = ReLU((1 + 4/(9(1+α))) Z D − 4λ/(9α))                                  eq. prox_maj_min_iteration
    prox_mm_tight  = ReLU((1 + 8/(1+α)) Z D − 8λ/α)

They differ in the curvature L that bounds −R: the paper's 9α/4 and the exact α/8 (docs/ERRATA.md). Both assume
orthonormal tokens, where ∇R(Z) = α/(1+α) Z.
"""

import torch
from torch import Tensor, nn

from ..errors import require_nonnegative
from ..objective.rates import coding_rate, coding_rate_gradient, curvature_bound, curvature_interval, rate_scale
from ..objective.sparsity import l1, soft_threshold
from ..shapes import Float, Tokens
from .base import Sparsification, sparsifications


def prox_mm(Z: Tokens, D: Float[Tensor, "d d"], lam: float = 0.1, eps: float = 0.5) -> Tokens:
    """The paper's majorise-minimise step on λ‖·‖₁ − R, with L = 9α/4."""
    require_nonnegative("lam", lam)
    alpha = rate_scale(Z.shape[-2], Z.shape[-1], eps)
    return torch.relu((1 + 4 / (9 * (1 + alpha))) * (Z @ D) - 4 * lam / (9 * alpha))


def prox_mm_tight(Z: Tokens, D: Float[Tensor, "d d"], lam: float = 0.1, eps: float = 0.5) -> Tokens:
    """The same step with the exact curvature L = α/8: 18 times as long, and it still descends."""
    require_nonnegative("lam", lam)
    alpha = rate_scale(Z.shape[-2], Z.shape[-1], eps)
    return torch.relu((1 + 8 / (1 + alpha)) * (Z @ D) - 8 * lam / alpha)


def proximal_step(Z: Tokens, eps: float, lam: float, *, tight: bool = True) -> Tokens:
    """prox_{λ/L}(Z + ∇R(Z)/L) (eq. mm-iter): the step of which both `prox_mm` are the case of orthonormal tokens."""
    require_nonnegative("lam", lam)
    alpha = rate_scale(Z.shape[-2], Z.shape[-1], eps)
    L = -curvature_interval(alpha)[0] if tight else curvature_bound(alpha)
    return soft_threshold(Z + coding_rate_gradient(Z, eps) / L, lam / L).to(Z.dtype)


@sparsifications.register("prox_mm")
class ProxMM(Sparsification):
    """The paper's majorise-minimise step; its code takes the tokens' place."""

    replaces = True
    aim_name = "λ‖Z‖₁ − R"

    def __init__(self, dim: int, lam: float = 0.1, eps: float = 0.5) -> None:
        super().__init__()
        self.lam, self.eps = lam, eps
        self.D = nn.Parameter(torch.empty(dim, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.D)

    def code(self, Y: Tensor) -> Tensor | None:
        return prox_mm(Y, self.D, self.lam, self.eps)

    def aim(self, Y: Tensor, code: Tensor) -> Tensor | None:
        return self.lam * l1(code) - coding_rate(code, self.eps)

    @staticmethod
    def curvature(alpha: float) -> float:
        """The L that majorises −R."""
        return curvature_bound(alpha)


@sparsifications.register("prox_mm_tight")
class TightProxMM(ProxMM):
    """The majorise-minimise step with the exact curvature."""

    def code(self, Y: Tensor) -> Tensor | None:
        return prox_mm_tight(Y, self.D, self.lam, self.eps)

    @staticmethod
    def curvature(alpha: float) -> float:
        return -curvature_interval(alpha)[0]
