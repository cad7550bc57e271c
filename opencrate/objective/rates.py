"""Coding rates of a set of tokens, with their gradients and curvature.

    R(Z)          = ½ logdet(I + α Z Zᵀ),               α = d/(Nε²)    eq. coding_rate
    R^c(Z; U_[K]) = Σ_k ½ logdet(I + γ (Z U_k)(Z U_k)ᵀ), γ = p/(Nε²)    eq. def-mcr-parts

Tokens are the rows of Z (the paper's are columns). Every function takes any number of leading batch axes and gives one
value, or one gradient, per sample. The determinants are those of the smaller Gram side and are taken in float64
whatever the tokens' type (so not on devices without it): a repeated token makes I + αZZᵀ span ten orders of magnitude,
which float32 cannot hold.
"""

from typing import Literal

import torch
from torch import Tensor

from ..errors import require_positive
from ..shapes import Bases, Float, PerSample, Projections, Tokens

SMALL = 1e4  # a trace below which one Cholesky factor has an error of 1e-12 of the rate, in float64


def require_tokens(Z: Tensor) -> None:
    """Stop at anything that is not a set of finite tokens (…, n, d), of which a rate would silently be NaN."""
    if Z.dim() < 2 or 0 in Z.shape[-2:]:
        raise ValueError(f"Z must be tokens (…, n, d), got a tensor of shape {tuple(Z.shape)}")
    require_finite("Z", Z)


def require_finite(name: str, tokens: Tensor) -> None:
    if torch.compiler.is_compiling() or tokens.is_meta:  # where no value can be read
        return
    if not bool(tokens.isfinite().all()):
        raise ValueError(f"{name} holds NaN or infinite values")


def rate_scale(n: int, dim: int, eps: float) -> float:
    """dim/(Nε²): α where dim is the token dimension d, γ where it is the subspace dimension p."""
    require_positive("eps", eps)
    if eps**2 == 0:
        raise ValueError(f"eps {eps} is too small to be squared")
    return dim / (n * eps**2)


def project(Z: Tokens, U: Bases) -> Projections:
    """Z U_k for every subspace (the paper's U_k* Z), as one matrix product."""
    k, d, p = U.shape
    V = Z @ U.permute(1, 0, 2).reshape(d, k * p)  # (…, n, k·p)
    return V.unflatten(-1, (k, p)).transpose(-3, -2)


def coding_rate(Z: Tokens, eps: float) -> PerSample:
    """R(Z) = ½ logdet(I + α Z Zᵀ): nats needed to code the tokens up to precision ε."""
    require_tokens(Z)
    n, d = Z.shape[-2:]
    return _half_logdet(Z.double(), rate_scale(n, d, eps)).to(result_type(Z))


def subspace_coding_rate(
    Z: Tokens,
    U: Bases,
    eps: float,
    *,
    per_subspace: bool = False,
    scaling: Literal["p", "d"] = "p",
) -> Float[Tensor, "..."]:
    """R^c(Z; U_[K]) = Σ_k R(Z U_k); `per_subspace` keeps the K summands as the last axis.

    `scaling="p"` is the paper's γ = p/(Nε²). With `"d"` (α in its place) R^c is the upper bound of R that the text
    speaks of, for subspaces that together cover the space; with `"p"` it is not (docs/ERRATA.md).
    """
    require_tokens(Z)
    if scaling not in ("p", "d"):
        raise ValueError(f"scaling must be 'p' or 'd', got {scaling!r}")
    V = _project_exactly(Z, U)
    dim = U.shape[-1] if scaling == "p" else U.shape[-2]
    rates = _half_logdet(V, rate_scale(Z.shape[-2], dim, eps))
    return (rates if per_subspace else rates.sum(-1)).to(result_type(Z))


def rate_reduction(Z: Tokens, U: Bases, eps: float) -> PerSample:
    """ΔR(Z; U_[K]) = R(Z) − R^c(Z; U_[K])."""
    return coding_rate(Z, eps) - subspace_coding_rate(Z, U, eps)


def coding_rate_gradient(Z: Tokens, eps: float) -> Tokens:
    """∇R(Z) = α (I + α Z Zᵀ)⁻¹ Z."""
    require_tokens(Z)
    n, d = Z.shape[-2:]
    alpha = rate_scale(n, d, eps)
    return (alpha * _ridge_residual(Z.double(), alpha)).to(result_type(Z))


def subspace_coding_rate_gradient(Z: Tokens, U: Bases, eps: float) -> Tokens:
    """∇R^c(Z; U_[K]) = γ Σ_k (I + γ V_k V_kᵀ)⁻¹ V_k U_kᵀ with V_k = Z U_k (eq. rate-gradient)."""
    require_tokens(Z)
    V, gamma = _project_exactly(Z, U), rate_scale(Z.shape[-2], U.shape[-1], eps)
    residual = _ridge_residual(V, gamma)
    return (gamma * torch.einsum("...knp,kdp->...nd", residual, U.double())).to(result_type(Z))


def hessian_vector(Z: Tokens, Delta: Tokens, alpha: float) -> Tokens:
    """∇²R(Z)[Δ] = α M Δ − α² M (Δ Zᵀ + Z Δᵀ) M Z with M = (I + α Z Zᵀ)⁻¹ (lemma logdet-hessian).

    R(Z) = R(Zᵀ), so where there are more tokens than dimensions the same formula is applied to the transposes.
    """
    require_positive("alpha", alpha)
    require_tokens(Z)
    require_finite("Delta", Delta)
    if Z.shape[-2] > Z.shape[-1]:
        return hessian_vector(Z.mT, Delta.mT, alpha).mT
    Z64, Delta64 = Z.double(), Delta.double()
    L = _cholesky(Z64, alpha)
    MZ, MDelta = torch.cholesky_solve(Z64, L), torch.cholesky_solve(Delta64, L)
    cross = Delta64 @ Z64.mT  # (n, n); Δ Zᵀ + Z Δᵀ is this plus its transpose
    curvature = alpha * MDelta - alpha**2 * torch.cholesky_solve((cross + cross.mT) @ MZ, L)
    return curvature.to(result_type(Z))


def curvature_interval(alpha: float) -> tuple[float, float]:
    """The exact range of ∇²R's eigenvalues over all Z: [−α/8, α]; a singular value with ασ² = 3 meets the lower end."""
    require_positive("alpha", alpha)
    return -alpha / 8, alpha


def curvature_bound(alpha: float) -> float:
    """The paper's bound ‖∇²R‖ ≤ 9α/4 (lemma logdet-grad-lipschitz): right, and 18 times the curvature of −R."""
    require_positive("alpha", alpha)
    return 9 * alpha / 4


def result_type(Z: Tensor) -> torch.dtype:
    """The tokens' own type, but at least float32: sums of half-precision numbers are not worth much."""
    return torch.promote_types(Z.dtype, torch.float32)


def _project_exactly(Z: Tensor, U: Tensor) -> Tensor:
    if U.dim() != 3:
        raise ValueError(f"U must be bases (k, d, p), got a tensor of shape {tuple(U.shape)}")
    if Z.shape[-1] != U.shape[-2]:
        raise ValueError(f"tokens have dimension {Z.shape[-1]}, but the subspaces lie in dimension {U.shape[-2]}")
    require_finite("U", U)
    return project(Z.double(), U.double())


def _cholesky(V: Tensor, alpha: float) -> Tensor:
    """The Cholesky factor of I + α V Vᵀ, in two rounds, for V with no more rows than columns.

    A Gram matrix rounds away its eigenvalues near 1 beside large ones. So its factor L, with a shift that keeps it
    positive, only preconditions: L⁻¹ (I + α V Vᵀ) L⁻ᵀ, formed from L⁻¹ [I, √α V] and not from the Gram matrix, is
    close to I, and its own factor gives the rest (as in shifted CholeskyQR). Where no eigenvalue is large, as with
    tokens at unit length, one round is exact.
    """
    gram = alpha * V @ V.mT
    identity = torch.eye(V.shape[-2], dtype=V.dtype, device=V.device)
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    if not torch.compiler.is_compiling() and not V.is_meta and bool((trace < SMALL).all()):
        return torch.linalg.cholesky(gram + identity)
    shift = V.shape[-2] * torch.finfo(V.dtype).eps * trace
    L = torch.linalg.cholesky(gram + (1 + shift) * identity)
    inverse = torch.linalg.solve_triangular(L, identity.expand_as(L), upper=False)
    whitened = alpha**0.5 * inverse @ V
    return L @ torch.linalg.cholesky(inverse @ inverse.mT + whitened @ whitened.mT)


def _smaller_side(V: Tensor) -> Tensor:
    """V or its transpose, whichever has the smaller Gram matrix V Vᵀ: the determinants are the same."""
    return V if V.shape[-2] <= V.shape[-1] else V.mT


def _half_logdet(V: Tensor, alpha: float) -> Tensor:
    """½ logdet(I + α V Vᵀ) = Σ_i log L_ii."""
    return _cholesky(_smaller_side(V), alpha).diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _ridge_residual(V: Tensor, alpha: float) -> Tensor:
    """(I + α V Vᵀ)⁻¹ V: what is left of each token after a ridge regression on all of them."""
    side = _smaller_side(V)
    residual = torch.cholesky_solve(side, _cholesky(side, alpha))
    return residual if V.shape[-2] <= V.shape[-1] else residual.mT  # (I + αVVᵀ)⁻¹ V = V (I + αVᵀV)⁻¹
