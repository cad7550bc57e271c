"""ISTA: proximal gradient steps toward a sparse, non-negative code of the tokens in a dictionary D.

    ISTA(Z | D)  = ReLU(Z + η (Z − Z Dᵀ) D − ηλ)                                                     eq. ista-block
                 = ReLU(Z A − ηλ)  with  A = I + η (D − DᵀD)

Tokens are rows, so the paper's D Z is Z Dᵀ and its D* Z is Z D. Each step lowers λ‖A‖₁ + ½‖Z − A Dᵀ‖² while η‖D‖² < 2.
"""

from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from ..errors import require_nonnegative, require_positive
from ..objective.sparsity import lasso, soft_threshold
from ..shapes import Codes, Dictionary, Float, Tokens
from .base import Certificate, Sparsification, sparsifications


def ista_reference(Z: Tokens, D: Float[Tensor, "d d"], eta: float = 0.1, lam: float = 0.1) -> Tokens:
    """The ISTA step as it stands in the paper: three products of the tokens with the dictionary."""
    return soft_threshold(Z + eta * (Z @ D - (Z @ D.mT) @ D), eta * lam)


def ista_matrix(D: Float[Tensor, "d d"], eta: float) -> Float[Tensor, "d d"]:
    """A = I + η(D − DᵀD), with which ISTA is one product; forming it costs d³ once for all tokens."""
    return _ISTAMatrix.apply(D, eta)


class _ISTAMatrix(torch.autograd.Function):
    """D → A with the derivative η(G − D(G + Gᵀ)) of ⟨G, A⟩: one product, where autograd would take two."""

    generate_vmap_rule = True

    @staticmethod
    def forward(D: Tensor, eta: float) -> Tensor:
        return torch.diag_embed(torch.ones_like(D[0])) + eta * (D - D.mT @ D)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        D, ctx.eta = inputs
        ctx.save_for_backward(D)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, None]:
        (D,) = ctx.saved_tensors
        return ctx.eta * (G - D @ (G + G.mT).to(D.dtype)), None


def ista(Z: Tokens, D: Float[Tensor, "d d"], eta: float = 0.1, lam: float = 0.1) -> Tokens:
    """ReLU(Z A − ηλ): a proximal gradient step on the LASSO of Z in D, started at Z."""
    require_positive("eta", eta)
    require_nonnegative("lam", lam)
    return torch.relu(Z @ ista_matrix(D, eta) - eta * lam)


def ista_unrolled(Z: Tokens, D: Float[Tensor, "d d"], eta: float = 0.1, lam: float = 0.1, steps: int = 2) -> Tokens:
    """Several ISTA steps on the same LASSO, started at Z."""
    return solve_lasso(Z, D, lam, steps, eta, start=Z)


def solve_lasso(
    X: Tokens,
    D: Dictionary,
    lam: float,
    steps: int,
    eta: float | None = None,
    start: Codes | None = None,
) -> Codes:
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


torch.fx.wrap("ista_matrix")  # symbolic tracing takes it as it is


@sparsifications.register("ista")
class ISTA(Sparsification):
    """One ISTA step from Y itself; its code takes the tokens' place, as in the paper's networks."""

    replaces = True
    token_wise = True
    aim_name = "LASSO"

    def __init__(self, dim: int, eta: float = 0.1, lam: float = 0.1) -> None:
        super().__init__()
        self.eta, self.lam = eta, lam
        self.D = nn.Parameter(torch.empty(dim, dim))
        self._kept: tuple[tuple[object, ...], Tensor] | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.D)

    def code(self, Y: Tensor) -> Tensor | None:
        return (Y @ self.matrix()).sub_(self.eta * self.lam).relu_()  # in place: two passes over the result fewer

    def aim(self, Y: Tensor, code: Tensor) -> Tensor | None:
        return lasso(code, Y, self.D.to(code.dtype), self.lam)

    def certificates(self) -> tuple[Certificate, ...]:
        size = self.eta * torch.linalg.matrix_norm(self.D.detach().double(), ord=2).item() ** 2
        statement = "an ISTA step lowers the LASSO of a non-negative code (this one begins at Y, which is none)"
        return (Certificate(statement, "η‖D‖² < 2", size, size < 2),)

    def matrix(self) -> Tensor:
        """A; while no gradient is asked for, it is formed once and kept until D or η changes.

        A D that was made in inference mode does not say when it changes.
        """
        D: Any = self.D
        is_traced = torch.compiler.is_compiling() or isinstance(D, torch.fx.Proxy)
        if is_traced or torch.is_grad_enabled() or D.is_inference():
            return ista_matrix(D, self.eta)
        kind = D.device.type
        mixed = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        state = (D.data_ptr(), D._version, D.dtype, D.device, mixed, self.eta)
        if self._kept is None or self._kept[0] != state:
            with torch.inference_mode(False), torch.no_grad():
                self._kept = state, ista_matrix(D, self.eta)
        return self._kept[1]

    def train(self, mode: bool = True) -> "ISTA":
        self._kept = None  # sharded weights change without a new version
        return super().train(mode)


@sparsifications.register("ista_unrolled")
class UnrolledISTA(ISTA):
    """Several ISTA steps on the same LASSO, from Y itself."""

    def __init__(self, dim: int, eta: float = 0.1, lam: float = 0.1, steps: int = 2) -> None:
        super().__init__(dim, eta, lam)
        self.steps = steps

    def code(self, Y: Tensor) -> Tensor | None:
        return ista_unrolled(Y, self.D, self.eta, self.lam, self.steps)
