"""Attention with one input, fused: query, key and value of SSA are the same V_k = Z U_k, so the logits are symmetric.

    forward    O_i = Σ_j P_ij V_j,  P_ij = exp(S_ij − ℓ_i),  S = scale · V Vᵀ,  ℓ_i = log Σ_j exp S_ij
    backward   dV_i = Σ_j [ scale · (dS_ij + dS_ji) V_j + P_ji dO_j ],  dS_ij = P_ij (⟨dO_i, V_j⟩ − ⟨dO_i, O_i⟩)

One tile of S serves both P_ij and P_ji, so a program that owns the tokens i finds their whole gradient in one pass over
j: one output, nothing to add up between programs (hence the same bits every time), no gradients of query, key and value
to store and sum. A head of up to 255 tokens is one program's, which meets every two blocks of tokens once for both:
seven products for what took ten. Tensors are read and written as (b, n, k, p), as the projection writes them.

The definition is `ssa_reference` in attention.py; the kernels are in symmetric_triton.py.
"""

import math
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
HEAD_DIMS = range(16, 129)
SHORT = 255  # tokens of a head whose gradient one program finds whole: three blocks of 64 and a rest fit its registers


def symmetric_attention(V: Tensor, scale: float, causal: bool = False) -> Tensor:
    """softmax(scale · V_k V_kᵀ) V_k for every head of V (b, n, k, p); `causal` lets token i see tokens j ≤ i only.

    Differentiable once. Float32 is true float32, without TF32.
    """
    if V.dim() != 4:
        raise ValueError(f"V must have axes (batch, token, head, p), got shape {list(V.shape)}")
    if V.dtype not in DTYPES or V.shape[-1] not in HEAD_DIMS:
        raise ValueError(f"symmetric attention takes p from 16 to 128 in half or single precision, not {_named(V)}")
    return torch.ops.opencrate.symmetric_attention(V, scale, causal)[0]


def is_supported(V: Tensor) -> bool:
    return V.is_cuda and V.dim() == 4 and V.dtype in DTYPES and V.shape[-1] in HEAD_DIMS


@torch.library.custom_op("opencrate::symmetric_attention", mutates_args=())
def _forward(V: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """O (b, n, k, p) and ℓ/log 2 (b, k, n)."""
    V = V.contiguous()
    O, L = torch.empty_like(V), _per_token(V)
    if V.numel():
        _kernels(V).forward[_grid(V)](V, O, L, *_geometry(V), scale / math.log(2), **_constants(V, causal))
    return O, L


@torch.library.custom_op("opencrate::symmetric_attention_backward", mutates_args=())
def _backward(dO: Tensor, V: Tensor, O: Tensor, L: Tensor, scale: float, causal: bool) -> Tensor:
    V, dO = V.contiguous(), dO.contiguous()
    dV = torch.empty_like(V)
    if not V.numel():
        return dV
    kernels, constants, scales = _kernels(V), _constants(V, causal), (scale, scale / math.log(2))
    D = torch.empty_like(L, dtype=torch.float32)
    if V.dtype == torch.float32:
        chosen = {name: constants[name] for name in ("P", "CAUSAL", "PRECISION")}
        kernels.delta_exact[_grid(V)](V, dO, L, D, *_geometry(V), scales[1], ROWS=32, **chosen)
    else:
        kernels.delta[_grid(V)](dO, O, D, *_geometry(V), ROWS=64, P=constants["P"])
    if V.shape[1] <= SHORT and V.dtype != torch.float32 and constants["P"] <= 64 and not causal:
        b, n, k, _ = V.shape
        sizes = {"ROWS": 64, "BLOCKS": n // 64, "REST": kernels.rest(n, 64)}
        chosen = {name: constants[name] for name in ("P", "WHOLE_P", "PRECISION")}
        kernels.backward_whole[(b * k,)](V, dO, L, D, dV, *_geometry(V), *scales, **sizes, **chosen)
    else:
        kernels.backward[_grid(V)](V, dO, L, D, dV, *_geometry(V), *scales, **constants)
    return dV


@_forward.register_fake
def _(V: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(V, memory_format=torch.contiguous_format), _per_token(V)


@_backward.register_fake
def _(dO: Tensor, V: Tensor, O: Tensor, L: Tensor, scale: float, causal: bool) -> Tensor:
    return torch.empty_like(V, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Tensor, float, bool], output: tuple[Tensor, Tensor]) -> None:
    V, ctx.scale, ctx.causal = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(V, *output)


def _differentiate(ctx: Any, dO: Tensor, dL: Tensor) -> tuple[Tensor, None, None]:
    V, O, L = ctx.saved_tensors
    return torch.ops.opencrate.symmetric_attention_backward(dO, V, O, L, ctx.scale, ctx.causal), None, None


_forward.register_autograd(_differentiate, setup_context=_keep)


def _per_token(V: Tensor) -> Tensor:
    b, n, k, _ = V.shape
    return V.new_empty((b, k, n), dtype=torch.float64 if V.dtype == torch.float32 else torch.float32)


def _geometry(V: Tensor) -> tuple[int, ...]:
    """n, k, p, and the strides of the batch and of a token."""
    _, n, k, p = V.shape
    return n, k, p, n * k * p, k * p


def _grid(V: Tensor) -> Any:
    b, n, k, _ = V.shape
    return lambda chosen: (-(-n // chosen["ROWS"]) * b * k,)


def _constants(V: Tensor, causal: bool) -> dict[str, Any]:
    P, SPAN = (max(16, 1 << (size - 1).bit_length()) for size in (V.shape[-1], V.shape[1]))
    precision = "ieee" if V.dtype == torch.float32 else "tf32"  # of float32 products: there are no others than float32
    return {"P": P, "WHOLE_P": V.shape[-1] == P, "SPAN": SPAN, "CAUSAL": causal, "PRECISION": precision}


def _kernels(V: Tensor) -> ModuleType:
    """Imported when first used, for Triton is not on every machine."""
    from . import symmetric_triton

    if not V.is_cuda and not symmetric_triton.INTERPRETED:
        raise ValueError(f"the symmetric attention kernel runs on CUDA, not on {V.device.type}")
    return symmetric_triton


def _named(V: Tensor) -> str:
    return f"p = {V.shape[-1]} in {str(V.dtype).removeprefix('torch.')}"
