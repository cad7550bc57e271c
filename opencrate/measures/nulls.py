"""Nulls: what a half-step is held against, on the same tokens.

    moves   Z + null   every token goes as far as in the layer's own step, in a direction that owes nothing to R^c
    codes   null       a code that nobody had to look for in the dictionary

A step that does what it was derived for does better than all of them. A null is one function under a name, in `MOVES`
or `CODES`. What is random is drawn anew for every picture, so that an interval over pictures covers the draws as well.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Generator, Tensor, float64
from torch.nn.functional import normalize

from ..operators.base import Sparsification
from ..stack import Step

F = TypeVar("F")


class Chance:
    """Random numbers of a layer's pictures, which depend on the layer and on each picture's number alone."""

    def __init__(self, layer: int, pictures: range) -> None:
        self.generators = [Generator().manual_seed(layer * 2**32 + picture) for picture in pictures]

    def normal(self, *shape: int) -> Tensor:
        """(b, …), standard normal."""
        return torch.stack([torch.randn(shape, generator=own, dtype=float64) for own in self.generators])

    def others(self, count: int) -> Tensor:
        """(b, count): for each of `count` another one, in a random circle."""
        others = torch.empty(len(self.generators), count, dtype=torch.long)
        for row, own in zip(others, self.generators, strict=True):
            circle = torch.randperm(count, generator=own)
            row[circle] = circle.roll(1)
        return others


Move = Callable[[Step, Tensor, Chance], Tensor]
"""The step, its move (b, n, d) and random numbers → directions (b, n or 1, d)."""
Code = Callable[[Sparsification, Tensor, Tensor, Chance], Tensor | None]
"""The operator, Y (b, n, d), its code (b, n, m) and random numbers → a code (b, n, m); None where there is none."""


@dataclass(frozen=True)
class Null(Generic[F]):
    words: str  # what it is, in a sentence
    function: F


MOVES: dict[str, Null[Move]] = {}
CODES: dict[str, Null[Code]] = {}


def register(table: dict[str, Null[F]], name: str, words: str) -> Callable[[F], F]:
    """Decorator: hold every half-step against this null, too."""

    def enter(function: F) -> F:
        table[name] = Null(words, function)
        return function

    return enter


@register(MOVES, "opposite", "its own opposite")
def _opposite(step: Step, move: Tensor, chance: Chance) -> Tensor:
    return -move


@register(MOVES, "shuffled", "its own moves, each given to another token")
def _shuffled(step: Step, move: Tensor, chance: Chance) -> Tensor:
    others = chance.others(move.shape[-2]).to(move.device)
    return move.gather(1, others[..., None].expand_as(move))


@register(MOVES, "common", "one random direction for all tokens")
def _common(step: Step, move: Tensor, chance: Chance) -> Tensor:
    return chance.normal(1, move.shape[-1]).to(move.device)


@register(MOVES, "uniform", "attention with uniform maps")
def _uniform(step: Step, move: Tensor, chance: Chance) -> Tensor:
    """What the operator does where every token is the mean token: then its attention maps are uniform."""
    half = step.layer.compress
    Y = half.norm(step.Z)
    return half.skip(step.Z, half.operator(Y.mean(-2, keepdim=True).expand_as(Y))) - step.Z


@register(MOVES, "mean", "moving toward the mean token")
def _mean(step: Step, move: Tensor, chance: Chance) -> Tensor:
    return step.Z.mean(-2, keepdim=True) - step.Z


@register(MOVES, "first", "moving toward the first token")
def _first(step: Step, move: Tensor, chance: Chance) -> Tensor:
    return step.Z[..., :1, :] - step.Z


@register(MOVES, "shorter", "making every token shorter")
def _shorter(step: Step, move: Tensor, chance: Chance) -> Tensor:
    return -step.Z


@register(MOVES, "noise", "white noise")
def _noise(step: Step, move: Tensor, chance: Chance) -> Tensor:
    return chance.normal(*move.shape[-2:]).to(move.device)


@register(CODES, "zero", "the code of zeros")
def _zero(operator: Sparsification, Y: Tensor, code: Tensor, chance: Chance) -> Tensor | None:
    return torch.zeros_like(code)


@register(CODES, "multiple", "the best multiple of ReLU(Y)")
def _multiple(operator: Sparsification, Y: Tensor, code: Tensor, chance: Chance) -> Tensor | None:
    """c·ReLU(Y) with the c ≥ 0 at which a parabola through the aim at 0, ½ and 1 is lowest: exact for a LASSO."""
    if code.shape != Y.shape:
        return None
    start = Y.relu()
    zero, half, one = (_aim(operator, Y, c * start) for c in (0.0, 0.5, 1.0))
    curvature = 2 * (zero + one - 2 * half)  # of zero + slope·c + curvature·c²
    slope = one - zero - curvature
    best = torch.where(curvature > 0, -slope / (2 * curvature.clamp_min(1e-30)), torch.where(one < zero, 1.0, 0.0))
    return best.clamp(0, 4)[:, None, None] * start


@register(CODES, "permuted", "the same code on other atoms")
def _permuted(operator: Sparsification, Y: Tensor, code: Tensor, chance: Chance) -> Tensor | None:
    """As if the columns of the dictionary had changed places; no null for an aim that does not see the dictionary."""
    others = chance.others(code.shape[-1]).to(code.device)[:, None].expand_as(code)
    probe = chance.normal(*code.shape[-2:]).to(code).abs()
    if torch.allclose(_aim(operator, Y, probe), _aim(operator, Y, probe.gather(-1, others)), rtol=1e-9):
        return None
    return code.gather(-1, others)


def null_moves(step: Step, first: int = 0) -> dict[str, Tensor]:
    """Every null's moves (b, n, d), each as long as the step's own, in float64; the first picture has this number."""
    move = (step.Z_half - step.Z).double()
    length, chance = move.norm(dim=-1, keepdim=True), Chance(step.number, range(first, first + len(move)))
    return {
        name: length * normalize(null.function(step, move, chance).double(), dim=-1, eps=1e-30)
        for name, null in MOVES.items()
    }


def null_codes(operator: Sparsification, Y: Tensor, code: Tensor, number: int, first: int = 0) -> dict[str, Tensor]:
    """Every null's code (b, n, m) of the tokens Y in layer `number`, where the null has one."""
    chance = Chance(number, range(first, first + len(Y)))
    codes = {name: null.function(operator, Y, code, chance) for name, null in CODES.items()}
    return {name: found for name, found in codes.items() if found is not None}


def _aim(operator: Sparsification, Y: Tensor, code: Tensor) -> Tensor:
    value = operator.aim(Y, code)
    assert value is not None, "only what states an aim is held against nulls"
    return value
