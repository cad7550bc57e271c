"""Ablation: switch off a subspace or an atom, and see what changes in the logits and in the later layers.

    head k of layer l          SSA(LN Z^l | U_k) contributes nothing to Z^{l+1/2}; the other heads are as they were
    coordinate j of layer l    column j of Z^{l+1} is 0 for all tokens: no token uses the atom D_j

A network without them is a copy that shares all weights with the original: what changes is seen by comparing their
recordings. How a head is switched off is its operator's to say (`mute`); coordinates are set to zero between `code` and
`decode`. Weights of 0 would not do in general: without its column D_j, ISTA's coordinate j is still ReLU(z_j − ηλ), and
in `mixture_step` a subspace U_k = 0 still has a share of every token. Layers, heads and coordinates are counted from 1,
as in the paper.
"""

from collections.abc import Collection, Sequence
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div

from ..layers import Layer
from ..models import CRATE
from ..objective.rates import require_finite
from ..operators.base import Sparsification
from ..shapes import Float
from ..stack import require_stack
from .views import require_within

M = TypeVar("M", bound=nn.Module)
Pairs = Collection[tuple[int, int]]

TOGETHER = 64  # copies of pictures, each without another head, that pass through a layer together


def ablated(model: CRATE, heads: Pairs = (), atoms: Pairs = ()) -> CRATE:
    """A copy of the network without some heads, pairs (layer, head), and atoms, pairs (layer, coordinate).

    It shares all weights with the network, so it costs no memory, and training the one would train the other. Only what
    runs the operators runs without them: the copy does not fold.
    """
    require_stack("ablated", model)
    for layer, _ in (*heads, *atoms):
        require_within("layer", layer, 1, len(model.layers))
    for _, head in heads:
        require_within("head", head, 1, model.num_heads)
    for layer, coordinate in atoms:
        D = model.layers[layer - 1].D
        require_within("coordinate", coordinate, 1, model.embed_dim if D is None else D.shape[1])
    copy = _sharing_weights(model)
    for number, layer in enumerate(copy.layers, start=1):
        _switch_off(layer, *([part for at, part in pairs if at == number] for pairs in (heads, atoms)))
    return copy


@torch.inference_mode()
def head_importance(model: CRATE, inputs: Sequence[Tensor]) -> Float[Tensor, "layers k"]:
    """How far the prediction moves when each head alone is switched off: the mean over pictures of KL(p ‖ p'), in nats.

    `inputs` are the recorded tokens Z^l (b, n, d) of every layer. The tokens before a layer are the same whichever of
    its heads is off, so every head's run starts from them, no picture is embedded again, and the runs of one layer go
    on together. All cost about K·L/2 passes through the network.
    """
    batches = zip(*(Z.split(max(1, TOGETHER // model.num_heads)) for Z in inputs), strict=True)
    return torch.cat([_divergences(model, batch) for batch in batches], dim=-1).mean(-1)


def _divergences(model: CRATE, inputs: Sequence[Tensor]) -> Float[Tensor, "layers k b"]:
    """KL(p ‖ p') of every sample without each head, from the tokens that enter every layer."""
    heads = range(1, model.num_heads + 1)
    logits = model.forward_head(model.layers[-1](inputs[-1])).repeat(len(heads), 1)
    divergences = []
    for number, (layer, Z) in enumerate(zip(model.layers, inputs, strict=True), start=1):
        after = torch.cat([_switch_off(_sharing_weights(layer), [head])(Z) for head in heads])  # (k·b, n, d)
        after = model.forward_head(model.layers[number:](after))
        divergences.append(divergence(logits, after).unflatten(0, (len(heads), -1)))
    return torch.stack(divergences)


def divergence(logits: Float[Tensor, "b c"], after: Float[Tensor, "b c"]) -> Float[Tensor, "b"]:
    """KL(p ‖ p') of the probabilities before and after, in nats: how far the prediction moves."""
    require_finite("the classifier's output", torch.stack([logits, after]))
    p, p_after = logits.double().log_softmax(-1), after.double().log_softmax(-1)
    return kl_div(p_after, p, reduction="none", log_target=True).sum(-1).clamp_min(0)  # rounding may be below 0


def _sharing_weights(module: M) -> M:
    """A copy with modules of its own and the very parameters and buffers of the original."""
    return deepcopy(module, {id(tensor): tensor for tensor in [*module.parameters(), *module.buffers()]})


def _switch_off(layer: Layer, heads: Sequence[int], coordinates: Sequence[int] = ()) -> Layer:
    """Switch these off in a layer, in place; the operators' names say so."""
    compress: Any = layer.compress.operator
    if heads:
        compress.mute([head - 1 for head in heads])
        compress.spec = (f"{compress.name} without heads {_listed(heads)}", compress.options)
    if coordinates:
        layer.sparsify.operator = WithoutCoordinates(layer.sparsify.operator, coordinates)
    return layer


class WithoutCoordinates(Sparsification):
    """A sparsification whose code is 0 in some coordinates."""

    def __init__(self, operator: Any, coordinates: Sequence[int]) -> None:
        super().__init__()
        if not operator.has("code"):
            raise ValueError(f"the sparsification {operator.name} has no code whose coordinates could be switched off")
        self.operator, self.off = operator, [coordinate - 1 for coordinate in coordinates]
        self.replaces, self.token_wise = operator.replaces, operator.token_wise
        self.spec = (f"{operator.name} without coordinates {_listed(coordinates)}", operator.options)

    def code(self, Y: Tensor) -> Tensor | None:
        code = self.operator.code(Y)
        return code.index_fill(-1, torch.tensor(self.off, device=code.device), 0.0)

    def decode(self, code: Tensor) -> Tensor:
        return self.operator.decode(code)

    def aim(self, Y: Tensor, code: Tensor) -> Tensor | None:
        return self.operator.aim(Y, code)

    @property
    def D(self) -> Tensor:
        return self.operator.D


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(set(numbers))))
