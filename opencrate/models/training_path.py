"""The layers of a training step with what stands between their products fused (operators/fused_norms.py).

The same network as `CRATE.forward` in training: the same products in the same order, and the norms, residuals and ReLUs
between them by two functions whose backward pass is one kernel each. The last layer is the class token's alone.
"""

from itertools import pairwise
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from ..blocks import Layer
from ..operators.fused_norms import add_norm, relu_norm
from ..operators.sparsification import ista_matrix

if TYPE_CHECKING:
    from .crate import CRATE

__all__ = ["class_tokens", "is_fused"]


def is_fused(model: "CRATE", Z: Tensor) -> bool:
    """Whether a step runs so: on CUDA in half precision, with the paper's two operators and no dropout in the layers."""
    layers = cast("list[Layer]", list(model.blocks))
    return Z.is_cuda and Z.dtype in (torch.float16, torch.bfloat16) and all(_is_plain(layer) for layer in layers)


def class_tokens(model: "CRATE", Z: Tensor) -> Tensor:
    """Z¹ → the class token of Z^{L+1}, (b, 1, d)."""
    layers = cast("list[Layer]", list(model.blocks))
    X = layers[0].compress.norm(Z).to(Z.dtype)
    for layer, following in pairwise(layers):
        Z, X = _layer(layer, Z, X, cast(nn.LayerNorm, following.compress.norm))
    last = layers[-1]
    return last.sparsify(Z[:, :1] + last.compress.step(X, 1))


def _layer(layer: Layer, Z: Tensor, X: Tensor, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """Z^l and LN Z^l → Z^{l+1} and its LN, by the next layer's norm."""
    compress, sparsify = layer.compress.step, layer.sparsify.step
    W = cast(nn.Linear, compress.W)
    move = compress.operator(X, compress.U, W=W.weight, scale=compress.scale, attention=compress.attention)
    Y = add_norm(Z, move, W.bias, cast(nn.LayerNorm, layer.sparsify.norm))
    eta, lam = sparsify.options["eta"], sparsify.options["lam"]
    return relu_norm(Y @ ista_matrix(sparsify.D, eta), eta * lam, norm)


def _is_plain(layer: Layer) -> bool:
    compress, sparsify = layer.compress, layer.sparsify.step
    dropped = compress.proj_drop.p or compress.drop_path.drop_prob or compress.step.attn_drop
    free = compress.step.W is not None and compress.step.W.bias is not None
    return compress.step.name == "mssa" and free and sparsify.name == "ista" and not dropped
