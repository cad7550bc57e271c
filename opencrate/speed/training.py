"""Fast forms for training, put on a network in place: its weights, their names and its results stay as they are."""

from typing import Any

from torch import nn

from ..layers import HalfStep, Layer
from ..operators.ista import ISTA
from ..operators.mssa import MSSA
from .first_token import FirstTokenLayer
from .norm_folding import NormFoldedISTA, NormFoldedMSSA, computes_as

FAST: dict[type[nn.Module], type[HalfStep]] = {MSSA: NormFoldedMSSA, ISTA: NormFoldedISTA}
"""The fast half-step of an operator. One without an entry, or with a forward pass of its own, stays as it is."""


def training_forms(network: Any, first_token: bool = False) -> Any:
    """Give every half-step its fast form, and return the network.

    `first_token` says that the loss sees the class token alone: in training the last layer then computes no other,
    where its operators allow it. Only the modules' class changes, as with torch's FSDP, so that hooks stay, too.
    """
    for layer in getattr(network, "layers", ()):
        for half in (layer.compress, layer.sparsify):
            fast = _fast_form(half.operator)
            if fast is not None and type(half) is HalfStep:
                half.__class__ = fast
    if first_token and _computes_first_token_alone(network):
        network.layers[-1].__class__ = FirstTokenLayer
    return network


def _fast_form(operator: nn.Module) -> type[HalfStep] | None:
    return next((fast for known, fast in FAST.items() if computes_as(operator, known)), None)


def _computes_first_token_alone(network: Any) -> bool:
    layers: Any = getattr(network, "layers", ())
    if not len(layers) or getattr(network, "global_pool", None) != "token" or type(layers[-1]) is not Layer:
        return False
    compress, sparsify = layers[-1].compress, layers[-1].sparsify
    return isinstance(compress, NormFoldedMSSA) and not compress.operator.causal and sparsify.operator.token_wise
