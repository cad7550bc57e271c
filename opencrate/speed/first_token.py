"""The last layer for the class token alone, where nobody sees another token.

The compression compares that token with all others; the sparsification treats every token by itself.
"""

from typing import Any

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from ..layers import HalfStep, Layer
from ..operators.mssa import MSSA
from .norm_folding import NormFoldedMSSA, computes_as

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class FirstTokenLayer(Layer):
    """Z^L → the first token of Z^{L+1} in training; all tokens in evaluation, for whoever looks."""

    def forward(self, Z: Tensor) -> Tensor:
        return first_token(self, Z) if self.training else super().forward(Z)


def first_token(layer: Any, Z: Tensor) -> Tensor:
    """The first token of Z^{l+1} (b, 1, d), for a layer that has it alone."""
    half = layer.compress
    if isinstance(half, NormFoldedMSSA):
        return layer.sparsify(half(Z, 1))
    return layer.sparsify(half.skip(Z[:, :1], half.operator.of_first(half.norm(Z), 1)))


def has_first_token_alone(layer: Any) -> bool:
    """Whether the first token of a layer can be computed without the others."""
    if type(layer) not in (Layer, FirstTokenLayer):
        return False
    compress, sparsify = layer.compress.operator, layer.sparsify.operator
    return (
        type(layer.compress) in (HalfStep, NormFoldedMSSA)
        and computes_as(compress, MSSA)
        and not compress.causal
        and sparsify.token_wise
    )


def is_watched(module: nn.Module, inputs: object) -> bool:
    """Whether anybody sees what passes through a module's parts: a hook, a compiler, a function in a part's place."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or isinstance(inputs, torch.fx.Proxy):
        return True
    if hooks._has_any_global_hook():
        return True
    return any("forward" in vars(part) or any(getattr(part, kind) for kind in HOOKS) for part in module.modules())
