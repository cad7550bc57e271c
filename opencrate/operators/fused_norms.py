"""What stands between a layer's products, with a backward pass of one kernel each.

    add_norm     Z, M, b → LN(Z + M + b)                  in front of the sparsification
    relu_norm    P → Z = ReLU(P − t), LN(Z)               behind it, in front of the next layer's compression

torch.compile fuses their forward pass as well as it can be done. In the backward pass it sums over rows, for the
gradients of LayerNorm's scale and shift and of the bias, in kernels that reach two thirds of the memory's speed, and
with one more pass over the tokens: here the sums, the residual's gradient and ReLU's mask are part of one pass.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["add_norm", "relu_norm"]


def add_norm(Z: Tensor, M: Tensor, bias: Tensor, norm: nn.LayerNorm) -> Tensor:
    """LN(Z + M + bias), in Z's type."""
    return _AddNorm.apply(Z, M, bias, norm.weight, norm.bias, norm.eps)


def relu_norm(P: Tensor, threshold: float, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """Z = ReLU(P − threshold) and LN(Z), in P's type."""
    return _ReluNorm.apply(P, threshold, norm.weight, norm.bias, norm.eps)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, Z: Tensor, M: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, eps: float) -> Tensor:
        Z_half = Z + M + bias.to(Z.dtype)
        Y, mean, rstd = _norm(Z_half, weight, shift, eps)
        ctx.save_for_backward(Z_half, mean, rstd, weight)
        return Y

    @staticmethod
    def backward(ctx: Any, dY: Tensor) -> tuple[Any, ...]:
        Z_half, mean, rstd, weight = ctx.saved_tensors
        dZ, sums = torch.ops.opencrate.layer_norm_backward(dY, Z_half, mean, rstd, weight, None, None, True)
        return dZ, dZ, sums[2], sums[0], sums[1], None


class _ReluNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, P: Tensor, threshold: float, weight: Tensor, shift: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        Z = torch.relu(P - threshold)
        Y, mean, rstd = _norm(Z, weight, shift, eps)
        ctx.save_for_backward(P, mean, rstd, weight)
        ctx.threshold = threshold
        return Z, Y

    @staticmethod
    def backward(ctx: Any, dZ: Tensor, dY: Tensor) -> tuple[Any, ...]:
        P, mean, rstd, weight = ctx.saved_tensors
        dP, sums = torch.ops.opencrate.layer_norm_backward(dY, P, mean, rstd, weight, dZ, ctx.threshold, False)
        return dP, None, sums[0], sums[1], None


def _norm(Z: Tensor, weight: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    Y, mean, rstd = torch.native_layer_norm(Z.float(), [Z.shape[-1]], weight.float(), shift.float(), eps)
    return Y.to(Z.dtype), mean, rstd


@torch.library.custom_op("opencrate::layer_norm_backward", mutates_args=())
def _backward(
    dY: Tensor,
    X: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    threshold: float | None,
    total: bool,
) -> tuple[Tensor, Tensor]:
    """dX, and the sums over rows of dY·N(Z), dY and, if `total`, dX: (3, d)."""
    dY, X = dY.contiguous(), X.contiguous()
    residual = None if residual is None else residual.contiguous()
    d = X.shape[-1]
    rows = X.numel() // d
    dX, programs = torch.empty_like(X), _programs(X, rows)
    shares = torch.zeros(programs, 3, d, dtype=torch.float32, device=X.device)
    _kernels(X).layer_norm_backward[(programs,)](
        dY, X, mean, rstd, weight, dX if residual is None else residual, dX, shares, rows, d, threshold or 0.0,
        ROWS=ROWS, D=1 << (d - 1).bit_length(), RELU=threshold is not None, ADDS=residual is not None, TOTAL=total,
        num_warps=WARPS,
    )  # fmt: skip
    return dX, shares.sum(0)


ROWS, WARPS, PROGRAMS = 2, 4, 8  # rows at a time, warps of a program, programs on a multiprocessor


@_backward.register_fake
def _(
    dY: Tensor,
    X: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    threshold: float | None,
    total: bool,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(X, memory_format=torch.contiguous_format), X.new_empty(
        (3, X.shape[-1]), dtype=torch.float32
    )


def _programs(X: Tensor, rows: int) -> int:
    if not X.is_cuda:
        return min(3, rows)
    return min(-(-rows // ROWS), PROGRAMS * torch.cuda.get_device_properties(X.device).multi_processor_count)


def _kernels(X: Tensor) -> ModuleType:
    """Imported when first used, for Triton is not on every machine."""
    from . import norm_kernels

    if not X.is_cuda and not norm_kernels.INTERPRETED:
        raise ValueError(f"the kernels run on CUDA, not on {X.device.type}")
    return norm_kernels
