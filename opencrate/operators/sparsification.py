"""Sparsification: one proximal step towards a sparse, non-negative code of the tokens in the dictionary D.

    ISTA(Z | D)  = ReLU(Z + η (Z − Z Dᵀ) D − ηλ)                                              eq. ista-block
                 = ReLU(Z A − ηλ)  with  A = I + η (D − DᵀD)
    prox_mm      = ReLU((1 + 4/(9(1+α))) Z D − 4λ/(9α))                                       eq. prox_maj_min_iteration
    prox_mm_tight = ReLU((1 + 8/(1+α)) Z D − 8λ/α)

Tokens are rows, so the paper's D Z is Z Dᵀ and its D* Z is Z D. The two `prox_mm` differ in the curvature L that bounds
−R: the paper's 9α/4 and the exact α/8 (docs/ERRATA.md); both assume orthonormal tokens, where ∇R(Z) = α/(1+α) Z.
"""

import torch
from torch import Tensor, nn

from ..errors import require_nonnegative, require_positive
from ..objective.rates import coding_rate_gradient, curvature_bound, curvature_interval, rate_scale
from ..objective.sparsity import soft_threshold
from ..shapes import Float
from .table import OperatorTable, Options

__all__ = [
    "SPARSIFICATIONS",
    "Sparsification",
    "ista",
    "ista_matrix",
    "ista_reference",
    "ista_unrolled",
    "prox_mm",
    "prox_mm_tight",
    "proximal_step",
    "register",
    "solve_lasso",
]

SPARSIFICATIONS = OperatorTable("sparsification", weight="D")
register = SPARSIFICATIONS.register


def ista_reference(
    Z: Float[Tensor, "*batch n d"], D: Float[Tensor, "d d"], eta: float = 0.1, lam: float = 0.1
) -> Float[Tensor, "*batch n d"]:
    """The ISTA step as it stands in the paper: three products of the tokens with the dictionary."""
    return soft_threshold(Z + eta * (Z @ D - (Z @ D.mT) @ D), eta * lam)


def ista_matrix(D: Float[Tensor, "d d"], eta: float) -> Float[Tensor, "d d"]:
    """A = I + η(D − DᵀD), with which ISTA is one product; forming it costs d³ once for all tokens."""
    return torch.diag_embed(torch.ones_like(D[0])) + eta * (D - D.mT @ D)


@register
def ista(
    Z: Float[Tensor, "*batch n d"], D: Float[Tensor, "d d"], eta: float = 0.1, lam: float = 0.1
) -> Float[Tensor, "*batch n d"]:
    """ReLU(Z A − ηλ): a proximal gradient step on the LASSO of Z in D, started at Z."""
    require_positive("eta", eta)
    require_nonnegative("lam", lam)
    return torch.relu(Z @ ista_matrix(D, eta) - eta * lam)


@register
def ista_unrolled(
    Z: Float[Tensor, "*batch n d"], D: Float[Tensor, "d d"], eta: float = 0.1, lam: float = 0.1, steps: int = 2
) -> Float[Tensor, "*batch n d"]:
    """Several ISTA steps on the same LASSO, started at Z."""
    return solve_lasso(Z, D, lam, steps, eta, start=Z)


@register
def prox_mm(
    Z: Float[Tensor, "*batch n d"], D: Float[Tensor, "d d"], lam: float = 0.1, eps: float = 0.5
) -> Float[Tensor, "*batch n d"]:
    """The paper's majorise-minimise step on λ‖·‖₁ − R, with L = 9α/4."""
    require_nonnegative("lam", lam)
    alpha = rate_scale(Z.shape[-2], Z.shape[-1], eps)
    return torch.relu((1 + 4 / (9 * (1 + alpha))) * (Z @ D) - 4 * lam / (9 * alpha))


@register
def prox_mm_tight(
    Z: Float[Tensor, "*batch n d"], D: Float[Tensor, "d d"], lam: float = 0.1, eps: float = 0.5
) -> Float[Tensor, "*batch n d"]:
    """The same step with the exact curvature L = α/8: 18 times as long, and it still descends."""
    require_nonnegative("lam", lam)
    alpha = rate_scale(Z.shape[-2], Z.shape[-1], eps)
    return torch.relu((1 + 8 / (1 + alpha)) * (Z @ D) - 8 * lam / alpha)


def proximal_step(
    Z: Float[Tensor, "*batch n d"], eps: float, lam: float, *, tight: bool = True
) -> Float[Tensor, "*batch n d"]:
    """prox_{λ/L}(Z + ∇R(Z)/L) (eq. mm-iter): the step of which both `prox_mm` are the case of orthonormal tokens."""
    require_nonnegative("lam", lam)
    alpha = rate_scale(Z.shape[-2], Z.shape[-1], eps)
    L = -curvature_interval(alpha)[0] if tight else curvature_bound(alpha)
    return soft_threshold(Z + coding_rate_gradient(Z, eps) / L, lam / L).to(Z.dtype)


def solve_lasso(
    X: Float[Tensor, "*batch n d"],
    D: Float[Tensor, "d m"],
    lam: float,
    steps: int,
    eta: float | None = None,
    start: Float[Tensor, "*batch n m"] | None = None,
) -> Float[Tensor, "*batch n m"]:
    """`steps` of ISTA on min_{A ≥ 0} λ‖A‖₁ + ½‖X − A Dᵀ‖²; converges for η < 2/‖D‖², and 1/‖D‖² is the default."""
    require_nonnegative("lam", lam)
    require_positive("steps", steps)
    if eta is None:
        eta = 1 / (float(torch.linalg.matrix_norm(D, ord=2)) ** 2 or 1.0)  # any step will do for D = 0
    require_positive("eta", eta)
    A = X.new_zeros(*X.shape[:-1], D.shape[-1]) if start is None else start
    for _ in range(steps):
        A = soft_threshold(A + eta * (X - A @ D.mT) @ D, eta * lam)
    return A


class Sparsification(nn.Module):
    """Holds the dictionary D (d, d) and applies the sparsification of that name to tokens (…, n, d)."""

    def __init__(
        self,
        name: str,
        dim: int,
        options: Options | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.operator = SPARSIFICATIONS.named(name)
        self.options = SPARSIFICATIONS.options(name, options)
        self.is_recorded = name not in SPARSIFICATIONS.unrecorded
        self.D = nn.Parameter(torch.empty(dim, dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.D)

    def forward(self, Z: Tensor) -> Tensor:
        return self._scripted_ista(Z) if torch.jit.is_scripting() else self._apply_operator(Z)

    @torch.jit.unused
    def _apply_operator(self, Z: Tensor) -> Tensor:
        return self.operator(Z, self.D, **self.options)

    def _scripted_ista(self, Z: Tensor) -> Tensor:
        """`ista` for TorchScript, which reads neither shape annotations nor calls by keyword dictionary."""
        if self.name != "ista":
            raise RuntimeError("TorchScript knows the sparsification ista alone: use torch.export")
        eta, lam = self.options["eta"], self.options["lam"]
        A = torch.diag_embed(torch.ones_like(self.D[0])) + eta * (self.D - self.D.mT @ self.D)
        return torch.relu(Z @ A - eta * lam)

    def extra_repr(self) -> str:
        options = ", ".join(f"{option}={value}" for option, value in self.options.items())
        return f"{self.name}, dim={self.D.shape[0]}, {options}"
