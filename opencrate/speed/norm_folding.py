"""LayerNorm's scale and shift inside the product behind it.

With LN z = scale ⊙ N(z) + shift, where N(z) is z centred and divided by its standard deviation and so sums to 0 over
its d entries,

    LN(z) M + b = N(z) M₁ + b₁                                       M₁ = diag(scale) M, b₁ = shift M + b
                = (N(z) + c) (M₁ + 1 (b₁/c − 1ᵀM₁)/d)                for any number c, here OFFSET

For inference this is done once (fold.py): LayerNorm adds c at no cost, while a bias costs a CPU another pass over the
result. In training (`NormFoldedMSSA`, `NormFoldedISTA`) the gradients of scale and shift come from that of a matrix,
where they otherwise are two sums over all tokens in every half-step.
"""

from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers import HalfStep
from ..operators.ista import ISTA, ista_matrix
from ..operators.mssa import MSSA

OFFSET = 0.25
"""Below 1, the size of N(z)'s entries, whose rounding then hardly changes; not so small that b/(d·OFFSET) is large."""


_COMPUTES = ("forward", "of_first", "output", "code", "decode", "curvature", "replaces")


def computes_as(operator: nn.Module, known: type[nn.Module]) -> bool:
    """Whether an operator computes what `known` does: a subclass, or a parametrised copy, may do so or not."""
    kind = type(operator)
    return issubclass(kind, known) and all(getattr(kind, of, None) is getattr(known, of, None) for of in _COMPUTES)


def absorb(norm: nn.LayerNorm, weight: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """The matrix (m, d) of a linear map of LN z with a bias, as one of N(z) + OFFSET without."""
    return with_constant(weight * norm.weight, (weight * norm.bias).sum(1) + bias)


def with_constant(weight: Tensor, bias: Tensor) -> Tensor:
    """The matrix (m, d) of a linear map of N(z) with a bias, as one of N(z) + OFFSET without."""
    return weight + ((bias / OFFSET - weight.sum(1)) / weight.shape[1])[:, None]


def folds(norm: nn.Module, Z: Tensor | torch.fx.Proxy, weight: Tensor) -> bool:
    """Whether a training step is faster so: on CUDA, with tokens in half precision and weights that are not.

    Symbolic tracing, which cannot ask, takes the network as it is written.
    """
    if isinstance(Z, torch.fx.Proxy):
        return False
    affine = isinstance(norm, nn.LayerNorm) and norm.elementwise_affine and norm.bias is not None
    return affine and Z.is_cuda and Z.dtype in (torch.float16, torch.bfloat16) and weight.dtype == torch.float32


def normalise(Z: Tensor, eps: float) -> Tensor:
    """N(Z) + OFFSET."""
    return F.layer_norm(Z, Z.shape[-1:], eps=eps) + OFFSET


def normalise_saving_output(Z: Tensor, eps: float) -> Tensor:
    """The same in Z's type. The backward pass reads the result, so Z itself is not kept."""
    return _Normalise.apply(Z, eps)[0]


class _Normalise(torch.autograd.Function):
    """Z → Y = N(Z) + OFFSET and 1/σ(Z), both of which the backward pass reads: so it can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, Z: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        exact = torch.promote_types(Z.dtype, torch.float32)
        N, _, inverse_std = torch.native_layer_norm(Z.to(exact), Z.shape[-1:], None, None, eps)
        Y = (N + OFFSET).to(Z.dtype)
        ctx.save_for_backward(Y, inverse_std)
        return Y, inverse_std

    @staticmethod
    def backward(ctx: Any, dY: Tensor, d_inverse_std: Tensor) -> tuple[Tensor, None]:
        Y, inverse_std = ctx.saved_tensors
        N, g = Y.to(inverse_std.dtype) - OFFSET, dY.to(inverse_std.dtype)
        along = (g * N).mean(-1, keepdim=True) + d_inverse_std * inverse_std / Y.shape[-1]
        return (inverse_std * (g - g.mean(-1, keepdim=True) - N * along)).to(Y.dtype), None


class NormFoldedMSSA(HalfStep):
    """Z + MSSA(LN Z) with the norm's scale and shift inside U; in evaluation, the half-step as it is written."""

    norm: nn.LayerNorm
    operator: MSSA

    def forward(self, Z: Tensor, queries: int | None = None) -> Tensor:
        """Of all tokens, or of the first `queries`, which are compressed with all the same."""
        norm, mssa = self.norm, self.operator
        if self.training and folds(norm, Z, mssa.UT):
            move = mssa.of_first(normalise(Z, norm.eps), queries, absorb(norm, mssa.UT))
        else:
            move = mssa.of_first(norm(Z), queries)
        return self.skip(Z[:, :queries], move)


class NormFoldedISTA(HalfStep):
    """ISTA(LN Z) with the norm's scale and shift inside its one product, and without a kept Z."""

    norm: nn.LayerNorm
    operator: ISTA

    def forward(self, Z: Tensor) -> Tensor:
        norm, ista = self.norm, self.operator
        if not self.training or not folds(norm, Z, ista.D):
            return super().forward(Z)
        A = absorb(norm, ista_matrix(ista.D, ista.eta).mT).mT
        return torch.relu(normalise_saving_output(Z, norm.eps) @ A - ista.eta * ista.lam)
