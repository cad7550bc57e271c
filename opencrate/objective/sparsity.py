"""Sparsity of a set of tokens, and the objectives in which it is one term.

    R(Z) − R^c(Z; U_[K]) − λ‖Z‖₀                        the objective that CRATE maximises       eq. sparse-rr
    λ‖A‖₁ + ½‖X − A Dᵀ‖²_F  over A ≥ 0                  the LASSO that ISTA lowers               eq. sparse-nonnegative
    λ‖Z‖₁ + χ(Z ≥ 0) − R(Z)                             what `prox_mm` lowers                    appendix A.3, φ

Departure: the paper's LASSO lacks the ½ that its ISTA step assumes (docs/ERRATA.md).
"""

import torch
from torch import Tensor

from ..errors import require_nonnegative
from ..shapes import Bases, Codes, Dictionary, Float, PerSample, Tokens
from .rates import coding_rate, rate_reduction, require_finite, require_tokens, result_type


def l0(Z: Tokens) -> PerSample:
    """‖Z‖₀: how many entries are not zero."""
    require_tokens(Z)
    return (Z != 0).sum((-2, -1)).to(result_type(Z))


def nonzero_fraction(Z: Tokens) -> PerSample:
    """‖Z‖₀/(d·N), the paper's sparsity measure: 0 is sparsest, 1 is dense."""
    return l0(Z) / (Z.shape[-2] * Z.shape[-1])


def l1(Z: Tokens) -> PerSample:
    """‖Z‖₁ = Σ |Z_ij|."""
    require_tokens(Z)
    return Z.abs().sum((-2, -1), dtype=result_type(Z))


def soft_threshold(Z: Float[Tensor, "*shape"], threshold: float) -> Float[Tensor, "*shape"]:
    """max(Z − t, 0), the proximal operator of t‖·‖₁ + χ(· ≥ 0)."""
    require_nonnegative("threshold", threshold)
    return torch.relu(Z - threshold)


def lasso(A: Codes, X: Tokens, D: Dictionary, lam: float) -> PerSample:
    """λ‖A‖₁ + ½‖X − A Dᵀ‖²_F, and infinity where a code A is not non-negative."""
    require_nonnegative("lam", lam)
    require_finite("X", X)
    value = lam * l1(A) + 0.5 * (X - A @ D.mT).square().sum((-2, -1), dtype=result_type(A))
    return _infinite_if_negative(value, A)


def expansion_objective(Z: Tokens, eps: float, lam: float) -> PerSample:
    """φ(Z) = λ‖Z‖₁ + χ(Z ≥ 0) − R(Z)."""
    require_nonnegative("lam", lam)
    return _infinite_if_negative(lam * l1(Z) - coding_rate(Z, eps), Z)


def sparse_rate_reduction(Z: Tokens, U: Bases, eps: float, lam: float) -> PerSample:
    """ΔR(Z; U_[K]) − λ‖Z‖₀: larger is better."""
    require_nonnegative("lam", lam)
    return rate_reduction(Z, U, eps) - lam * l0(Z)


def _infinite_if_negative(value: Tensor, Z: Tensor) -> Tensor:
    return value.masked_fill((Z < 0).any(-1).any(-1), torch.inf)
