"""Ablation: switch off a subspace or an atom, and see what changes in the logits and in the later layers.

    head k of layer l          SSA(LN Z^l | U_k) contributes nothing to Z^{l+1/2}; the other heads are as they were
    coordinate j of layer l    column j of Z^{l+1} is 0 for all tokens: no token uses the atom D_j

A network without them is a copy that shares all weights with the original. How a head is switched off is its
operator's to say (`mute`); coordinates are set to zero between `code` and `decode`. Weights of 0 would not do in
general: without its column D_j, ISTA's coordinate j is still ReLU(z_j − ηλ), and in `mixture_step` a subspace U_k = 0
still has a share of every token. Layers, heads and coordinates are counted from 1, as in the paper.
"""

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div

from ..layers import Layer
from ..models import CRATE
from ..objective import nonzero_fraction
from ..objective.rates import require_finite
from ..operators.base import Sparsification
from ..shapes import Float
from ..stack import trajectory
from .views import TOGETHER, bare, looking, require_head, require_layer

M = TypeVar("M", bound=nn.Module)
Pairs = Iterable[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Ablation:
    """What changes for b pictures when parts of a network are switched off.

    `tokens` is ‖Z'^{l+1} − Z^{l+1}‖/‖Z^{l+1}‖ (Frobenius norms; 0 where both are 0, infinite where only Z^{l+1} is)
    and `nonzero` the non-zero fraction of Z'^{l+1} less that of Z^{l+1}. Both are exactly 0 before the first ablated
    layer.
    """

    logits: Float[Tensor, "b c"]
    logits_after: Float[Tensor, "b c"]
    tokens: Float[Tensor, "layers b"]
    nonzero: Float[Tensor, "layers b"]

    @property
    def probabilities(self) -> Float[Tensor, "b c"]:
        """The change of every class's probability, after less before."""
        return self.logits_after.double().softmax(-1) - self.logits.double().softmax(-1)

    @property
    def predicted(self) -> Tensor:
        """The class predicted before, (b,)."""
        return self.logits.argmax(-1)

    @property
    def predicted_after(self) -> Tensor:
        return self.logits_after.argmax(-1)

    @property
    def divergence(self) -> Float[Tensor, "b"]:
        """KL(p ‖ p') of the probabilities before and after, in nats: how far the prediction moves."""
        return _divergence(self.logits, self.logits_after)


def ablated(model: CRATE, heads: Pairs = (), atoms: Pairs = ()) -> CRATE:
    """A copy of the network without some heads, pairs (layer, head), and atoms, pairs (layer, coordinate).

    It shares all weights with the network, so it costs no memory, and training the one would train the other. Only what
    runs the operators runs without them: the copy does not fold.
    """
    model = bare(model)
    off_heads, off_atoms = _by_layer(model, "heads", heads), _by_layer(model, "atoms", atoms)
    copy = _sharing_weights(model)
    for layer in off_heads.keys() | off_atoms.keys():
        _switch_off(cast(Layer, copy.blocks[layer - 1]), off_heads.get(layer, []), off_atoms.get(layer, []))
    return copy


def ablate(model: CRATE, images: Tensor, heads: Pairs = (), atoms: Pairs = ()) -> Ablation:
    """Compare the network on normalised pictures (b, c, H, W) with itself without these heads and atoms."""
    with looking(model, images) as (model, batches):
        _require_logits(model)
        heads, atoms = tuple(heads), tuple(atoms)
        without = ablated(model, heads, atoms)
        first = min((layer for layer, _ in heads + atoms), default=len(model.blocks) + 1)
        parts = [_compare(model, without, first, batch) for batch in batches]
        return Ablation(*(torch.cat(part, dim=-1 if i > 1 else 0) for i, part in enumerate(zip(*parts, strict=True))))


def head_importance(model: CRATE, images: Tensor) -> Float[Tensor, "layers k"]:
    """How far the prediction moves when each head alone is switched off: the mean over pictures of KL(p ‖ p'), in nats.

    The tokens before a layer are the same whichever of its heads is off, so every head's run starts from them, and
    those of one layer go on together. All cost about K·L/2 passes through the network.
    """
    with looking(model, images, copies=bare(model).num_heads) as (model, batches):
        _require_logits(model)
        parts = [_divergences(model, [step.Z for step in trajectory(model, batch)]) for batch in batches]
        return torch.cat(parts, dim=-1).mean(-1)


@torch.inference_mode()
def recorded_head_importance(model: CRATE, inputs: Sequence[Tensor]) -> Float[Tensor, "layers k"]:
    """`head_importance` from the recorded tokens Z^l (b, n, d) of every layer: no picture is embedded again."""
    _require_logits(model)
    batches = zip(*(Z.split(max(1, TOGETHER // model.num_heads)) for Z in inputs), strict=True)
    return torch.cat([_divergences(model, batch) for batch in batches], dim=-1).mean(-1)


def _divergences(model: CRATE, inputs: Sequence[Tensor]) -> Float[Tensor, "layers k b"]:
    """KL(p ‖ p') of every sample without each head, from the tokens that enter every layer."""
    heads, layers = model.num_heads, cast("list[Layer]", list(model.blocks))
    logits = model.forward_head(layers[-1](inputs[-1])).repeat(heads, 1)
    divergences = []
    for number, (layer, Z) in enumerate(zip(layers, inputs, strict=True), start=1):
        after = torch.cat([without(Z) for without in _without_each_head(layer)])  # (k·b, n, d)
        after = model.forward_head(model.blocks[number:](after))
        divergences.append(_divergence(logits, after).unflatten(0, (heads, -1)))
    return torch.stack(divergences)


def _compare(model: CRATE, without: CRATE, first: int, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The parts of an `Ablation`, with one walk through the layers before the first that differs."""
    Z = after = model.embed(images)
    tokens, nonzero = [], []
    for layer, (block, other) in enumerate(zip(model.blocks, without.blocks, strict=True), start=1):
        Z = block(Z)
        after = Z if layer < first else other(after)
        tokens.append(_relative(after.double() - Z.double(), Z.double()))
        nonzero.append(nonzero_fraction(after) - nonzero_fraction(Z))
    return model.forward_head(Z), model.forward_head(after), torch.stack(tokens), torch.stack(nonzero)


def _relative(change: Tensor, Z: Tensor) -> Tensor:
    """‖change‖/‖Z‖ of every sample; 0/0 is 0."""
    moved, size = change.flatten(1).norm(dim=1), Z.flatten(1).norm(dim=1)
    return (moved / size).where(moved != 0, 0.0)


def _divergence(logits: Tensor, after: Tensor) -> Tensor:
    """KL(p ‖ p') of every sample; rounding below 0 is taken away."""
    require_finite("the classifier's output", torch.stack([logits, after]))
    p, p_after = logits.double().log_softmax(-1), after.double().log_softmax(-1)
    return kl_div(p_after, p, reduction="none", log_target=True).sum(-1).clamp_min(0)


def _sharing_weights(module: M) -> M:
    """A copy with modules of its own and the very parameters and buffers of the original."""
    return deepcopy(module, {id(tensor): tensor for tensor in [*module.parameters(), *module.buffers()]})


def _switch_off(layer: Layer, heads: Iterable[int] = (), coordinates: Iterable[int] = ()) -> Layer:
    """Switch these off in a layer, in place; the operators' names say so."""
    compress, sparsify = cast(Any, layer.compress.operator), cast(Any, layer.sparsify.operator)
    if off := sorted({head - 1 for head in heads}):
        compress.mute(off)
        compress.spec = (f"{compress.name} without heads {_listed(off)}", compress.spec[1])
    if off := sorted({coordinate - 1 for coordinate in coordinates}):
        layer.sparsify.operator = WithoutCoordinates(sparsify, off)
    return layer


def _without_each_head(layer: Layer) -> Iterator[Layer]:
    for head in range(1, cast(Any, layer.compress.operator).num_heads + 1):
        yield _switch_off(_sharing_weights(layer), heads=[head])


class WithoutCoordinates(Sparsification):
    """A sparsification whose code is 0 in the coordinates `off`, counted from 0."""

    def __init__(self, operator: Sparsification, off: list[int]) -> None:
        super().__init__()
        if not operator.has("code"):
            raise ValueError(f"the sparsification {operator.name} has no code whose coordinates could be switched off")
        self.operator, self.off = operator, off
        self.replaces, self.token_wise = operator.replaces, operator.token_wise
        self.spec = (f"{operator.name} without coordinates {_listed(off)}", operator.spec[1])

    def code(self, Y: Tensor) -> Tensor | None:
        code: Any = self.operator.code(Y)
        return code.index_fill(-1, torch.tensor(self.off, device=code.device), 0.0)

    def decode(self, code: Tensor) -> Tensor:
        return self.operator.decode(code)

    def aim(self, Y: Tensor, code: Tensor) -> Tensor | None:
        return self.operator.aim(Y, code)

    @property
    def D(self) -> Tensor:
        return cast(Any, self.operator).D


def _by_layer(model: CRATE, name: str, pairs: Pairs) -> dict[int, list[int]]:
    """What is to be switched off in every layer, checked."""
    found: dict[int, list[int]] = {}
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"{name} must be pairs such as [(1, 2)], the layer and the number in it, got {pair!r}")
        layer, number = pair
        require_layer(model, layer)
        if name == "heads":
            require_head(model, number)
        else:
            _require_coordinate(model, cast(Layer, model.blocks[layer - 1]), number)
        found.setdefault(layer, []).append(number)
    return found


def _require_coordinate(model: CRATE, layer: Layer, number: int) -> None:
    width = model.embed_dim if layer.D is None else layer.D.shape[1]
    if not isinstance(number, int) or not 1 <= number <= width:
        raise ValueError(f"coordinate must be a whole number from 1 to {width}, got {number!r}")


def _listed(off: list[int]) -> str:
    return ", ".join(str(number + 1) for number in off)


def _require_logits(model: CRATE) -> None:
    if model.num_classes == 0:
        raise ValueError("the network has no classifier, whose logits an ablation compares")
    if model.global_pool == "":
        raise ValueError("the network has global_pool='', so not one prediction for a picture: choose 'token' or 'avg'")
