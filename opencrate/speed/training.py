"""Fast forms for training, put on a network in place: its weights, their names and its results stay as they are."""

from typing import Any

from torch import nn

from ..layers import HalfStep, Layer
from ..operators.ista import ISTA
from ..operators.mssa import MSSA
from .first_token import FirstTokenLayer, has_first_token_alone
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
    layers: Any = getattr(network, "layers", ())
    takes_token = first_token and getattr(network, "global_pool", None) == "token" and len(layers) > 0
    if takes_token and type(layers[-1]) is Layer and has_first_token_alone(layers[-1]):
        layers[-1].__class__ = FirstTokenLayer
    return network


def _fast_form(operator: nn.Module) -> type[HalfStep] | None:
    return next((fast for known, fast in FAST.items() if computes_as(operator, known)), None)
