"""The audit: what every half-step of every layer does, against what it was designed to do, and against nulls.

    compress    Z^l → Z^{l+1/2}      should lower R^c(·; U_[K]^l), as a step against its gradient does
    sparsify    Z^{l+1/2} → Z^{l+1}  should lower its aim, for ISTA the LASSO of Y = LN Z^{l+1/2} in D^l

For every sample and layer, at Z^l, Z^{l+1/2} and Z^{l+1}: R, R^c, ΔR, of the tokens as they are and of tokens at unit
length, ‖·‖₀ and ‖·‖₁ as shares of N·d, the objective ΔR − λ‖·‖₀; of tokens at unit length also the effective rank and
the spread. LayerNorm makes each half blind to the length of the tokens, and adding a move to them makes them longer, so
tokens at unit length judge a compression.

Almost any move lowers that R^c: it falls whenever the tokens are given something in common. So the same rate is taken
of the tokens moved as far by every null of `nulls.MOVES`, and the aim of a sparsification at every code of
`nulls.CODES`. `verdicts.py` grades the difference. What an operator does not say is not a number here.

What the compression could have done is taken at its input X = LN Z^l: the exact gradient ∇R^c(X), its first-order
Neumann form and its softmax form, which is the paper's derivation of attention (eq. mssa and before).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from timm.utils import unwrap_model
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

from ..errors import require_positive
from ..layers import Layer
from ..objective import coding_rate, l0, l1, project, rate_scale, subspace_coding_rate, subspace_coding_rate_gradient
from ..operators.base import Certificate, Operator
from ..operators.gradient import neumann_step, softmax_step
from ..stack import Step, is_stack
from .geometry import (
    coherence_between,
    dead_heads,
    effective_rank,
    orthogonality_gap,
    orthonormality_gap,
    spread,
)
from .layerwise import by_layer, read_steps, summary
from .nulls import CODES, MOVES, null_codes, null_moves

HALVES = {"compress": ("Z", "Z_half"), "sparsify": ("Z_half", "Z_next")}
SITES = ("Z", "Z_half", "Z_next")
AT_SITES = ("R", "Rc", "dR", "R_unit", "Rc_unit", "dR_unit", "nonzero", "l1", "objective", "rank", "spread")
"""What is measured at every site."""
OF_A_STEP = (
    "compress_before",
    "compress_after",
    *(f"compress_null_{name}" for name in MOVES),
    *(f"compress_spread_{name}" for name in MOVES),
    "sparsify_before",
    "sparsify_after",
    *(f"sparsify_null_{name}" for name in CODES),
    "gradient_cosine",
    "unit_cosine",
    "neumann_residual",
    "neumann_cosine",
    "softmax_residual",
    "softmax_cosine",
    "gram",
)
"""What is measured of a step as a whole."""
LAM = 0.1  # λ of the objective where the sparsification has none


@dataclass(frozen=True)
class Weights:
    """What the weights of a layer are, against what the theory has: bases, subspaces, a dictionary, small steps."""

    layer: int
    aim: str | None  # what the sparsification was derived to lower
    compress_aim: str | None  # what the compression was derived to lower
    U_size: float | None  # mean over heads of c = ‖U_k‖²_F/p, which is 1 for an orthonormal basis
    orthonormality: float | None  # mean over heads of ‖U_kᵀU_k/c − I‖_F/√p
    coherence: float | None  # mean over pairs of heads of the cosine of their smallest angle
    coherence_max: float | None
    orthogonality: float | None  # ‖DᵀD − I‖_F/√d
    lam: float
    dead: tuple[int, ...] = ()  # heads
    certificates: tuple[Certificate, ...] = ()  # what holds of the layer by a theorem


@dataclass(frozen=True, eq=False)
class Audit:
    """Values (layers, samples) by name: "Rc@Z_half" for what is measured at a site, "gram" for what is of a step."""

    eps: float
    weights: tuple[Weights, ...]
    values: dict[str, Tensor] = field(repr=False)

    @property
    def samples(self) -> int:
        return next(iter(self.values.values())).shape[-1]

    def at(self, name: str, site: str) -> Tensor:
        return self.values[f"{name}@{site}"]

    def judged(self, half: str) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """What a half-step is judged by, (layers, samples): before and after it, a scale, and after every null."""
        prefix = f"{half}_null_"
        nulls = {name.removeprefix(prefix): values for name, values in self.values.items() if name.startswith(prefix)}
        before, after = self.values[f"{half}_before"], self.values[f"{half}_after"]
        scale = before if half == "compress" else torch.where(nulls["zero"] != 0, nulls["zero"], before)
        return before, after, scale, nulls

    def changes(self, half: str) -> Tensor:
        """How much a half-step changes what it is judged by, as a share of what that was, (layers, samples)."""
        before, after, *_ = self.judged(half)
        return relative(after - before, before)

    def differences(self, half: str) -> dict[str, Tensor]:
        """What it is judged by, less what that is after each null, as shares of its scale, (layers, samples).

        The scale is R^c before the step, or what the zero code costs. Below 0 the layer does better than the null.
        """
        _, after, scale, nulls = self.judged(half)
        return {name: relative(after - null, scale) for name, null in nulls.items()}

    def rows(self) -> list[dict[str, Any]]:
        """A row for every layer: means with deviation and interval, and the weights."""
        columns = summary(self.values)
        return [row | asdict(weights) for weights, row in zip(self.weights, by_layer(columns), strict=True)]

    def sample_rows(self) -> Iterator[dict[str, Any]]:
        """A row for every layer and sample."""
        for layer, weights in enumerate(self.weights):
            for sample in range(self.samples):
                values = {name: column[layer, sample].item() for name, column in self.values.items()}
                yield {"layer": weights.layer, "sample": sample, **values}


def audit(model: nn.Module, batches: Tensor | Iterable[Any], eps: float = 0.1) -> Audit:
    """Audit every half-step on pictures: a tensor of them, or batches, which stream through the network."""
    reader = AuditReader(unwrap_model(model), eps)
    (values,) = read_steps(model, batches, [reader])
    return reader.audit(values)


class AuditReader:
    """The audit of a network as a `Reader`, so that it can share a pass with layer tables."""

    def __init__(self, network: Any, eps: float) -> None:
        require_positive("eps", eps)
        if not is_stack(network):
            raise ValueError(
                f"an audit needs layers that state their design, which {type(network).__name__} does not have"
            )
        self.eps, self.layers = eps, [_AuditedLayer(layer) for layer in network.layers]
        self.before: dict[str, Tensor] = {}  # what was measured of the last layer's Z_next, which is the next one's Z
        self.seen = Counter[int]()  # pictures of earlier batches, by layer

    def __call__(self, steps: Sequence[Step]) -> dict[str, Tensor]:
        rows = [self._measured(step) for step in steps]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def _measured(self, step: Step) -> dict[str, Tensor]:
        layer, result = self.layers[step.number - 1], dict[str, Tensor]()
        of_tokens = self.before if step.number > 1 else _of_tokens(step.Z.double(), self.eps)
        for site in SITES:
            Z = getattr(step, site).double()
            if site != "Z":
                of_tokens = _of_tokens(Z, self.eps)
            values = of_tokens | layer.of_subspaces(Z, of_tokens, self.eps)
            result |= {f"{name}@{site}": values[name] for name in AT_SITES}
        self.before = of_tokens
        nothing = torch.full((len(step.Z),), torch.nan, dtype=torch.float64, device=step.Z.device)
        first = self.seen[step.number]
        self.seen[step.number] += len(step.Z)
        of_step = layer.of_the_sparsification(step, first) | layer.of_the_compression(step, self.eps, first)
        return result | dict.fromkeys(OF_A_STEP, nothing) | of_step

    def audit(self, values: dict[str, Tensor]) -> Audit:
        """Of values (layers, samples)."""
        weights = tuple(layer.weights(number) for number, layer in enumerate(self.layers, start=1))
        return Audit(self.eps, weights, values)


class _AuditedLayer:
    """A layer's weights and operators in float64, in which everything is measured."""

    def __init__(self, layer: Layer) -> None:
        self.compressor: Any = deepcopy(layer.compress.operator).double()
        self.sparsifier: Any = deepcopy(layer.sparsify.operator).double()
        self.lam = float(getattr(self.sparsifier, "lam", LAM))
        self.U: Tensor | None = None if layer.U is None else layer.U.detach().double()
        self.D: Tensor | None = None if layer.D is None else layer.D.detach().double()
        self.aim, self.compress_aim = (_stated_aim(half.operator) for half in (layer.sparsify, layer.compress))

    def weights(self, number: int) -> Weights:
        U, D = self.U, self.D
        mean, largest = (None, None) if U is None else coherence_between(U)
        return Weights(
            layer=number,
            aim=self.aim,
            compress_aim=self.compress_aim,
            U_size=None if U is None else (U.square().sum((1, 2)) / U.shape[-1]).mean().item(),
            orthonormality=None if U is None else orthonormality_gap(U).mean().item(),
            coherence=mean,
            coherence_max=largest,
            orthogonality=None if D is None else orthogonality_gap(D),
            lam=self.lam,
            dead=() if U is None else tuple(dead_heads(U)),
            certificates=(*self.compressor.certificates(), *self.sparsifier.certificates()),
        )

    def of_subspaces(self, Z: Tensor, of_tokens: dict[str, Tensor], eps: float) -> dict[str, Tensor]:
        """What the layer's U_[K] and λ add to `_of_tokens`."""
        R, R_unit = of_tokens["R"], of_tokens["R_unit"]
        Rc = Rc_unit = torch.full_like(R, torch.nan)
        if self.U is not None:
            Rc, Rc_unit = subspace_coding_rate(torch.stack([Z, normalize(Z, dim=-1)]), self.U, eps)
        differences = {"dR": R - Rc, "dR_unit": R_unit - Rc_unit, "objective": R - Rc - self.lam * l0(Z)}
        return {"Rc": Rc, "Rc_unit": Rc_unit} | differences

    def of_the_sparsification(self, step: Step, first: int) -> dict[str, Tensor]:
        if step.code is None or self.aim is None or not step.follows_from_code():
            return {}
        Y, code = step.layer.sparsify.norm(step.Z_half).double(), step.code.double()
        begins_at_tokens = self.sparsifier.replaces and code.shape == Y.shape
        start = Y.relu() if begins_at_tokens else torch.zeros_like(code)
        codes = {"sparsify_before": start, "sparsify_after": code}
        nulls = null_codes(self.sparsifier, Y, code, step.number, first)
        codes |= {f"sparsify_null_{name}": null for name, null in nulls.items()}
        return {name: self.sparsifier.aim(Y, code) for name, code in codes.items()}

    def of_the_compression(self, step: Step, eps: float, first: int) -> dict[str, Tensor]:
        result = {} if self.compress_aim is None else self._of_moves(step, eps, first)
        return result if self.U is None else result | self._of_gradients(step, self.U, eps)

    def _of_moves(self, step: Step, eps: float, first: int) -> dict[str, Tensor]:
        """The aim of tokens at unit length, before and after the step, and after every null, with the null's spread."""
        Z, Z_half, nulls = step.Z.double(), step.Z_half.double(), null_moves(step, first)
        tokens = {"compress_before": Z, "compress_after": Z_half}
        tokens |= {f"compress_null_{name}": Z + null for name, null in nulls.items()}
        together = normalize(torch.cat(list(tokens.values())), dim=-1)
        result = dict(zip(tokens, self.compressor.aim(together, eps).chunk(len(tokens)), strict=True))
        return result | {f"compress_spread_{name}": spread(Z + null) for name, null in nulls.items()}

    def _of_gradients(self, step: Step, U: Tensor, eps: float) -> dict[str, Tensor]:
        """The step's direction, and approximations of the gradient, beside the exact gradient of R^c."""
        X, Z, move = step.layer.compress.norm(step.Z).double(), step.Z.double(), (step.Z_half - step.Z).double()
        exact = subspace_coding_rate_gradient(X, U, eps)
        result = {
            "gradient_cosine": _cosine(move, -exact),
            "unit_cosine": _cosine(move, -_unit_gradient(Z, U, eps)),
        }
        size = exact.flatten(1).norm(dim=1).clamp_min(1e-30)
        forms = {
            "neumann": X - neumann_step(X, U, kappa=1.0, eps=eps),
            "softmax": X - softmax_step(X, U, kappa=1.0, eps=eps, scale=U.shape[-1] ** -0.5),
        }
        for name, form in forms.items():
            result[f"{name}_residual"] = (form - exact).flatten(1).norm(dim=1) / size
            result[f"{name}_cosine"] = _cosine(form, exact)
        singular = torch.linalg.matrix_norm(project(X, U), ord=2)  # (b, k)
        return result | {"gram": rate_scale(X.shape[-2], U.shape[-1], eps) * singular.square().amax(-1)}


def _stated_aim(operator: Operator) -> str | None:
    """What an operator says that it lowers."""
    return (operator.aim_name or "its aim") if operator.has("aim") else None


def _of_tokens(Z: Tensor, eps: float) -> dict[str, Tensor]:
    entries, unit = Z.shape[-2] * Z.shape[-1], normalize(Z, dim=-1)
    R, R_unit = coding_rate(torch.stack([Z, unit]), eps)
    return {
        "R": R,
        "R_unit": R_unit,
        "nonzero": l0(Z) / entries,
        "l1": l1(Z) / entries,
        "rank": effective_rank(unit),
        "spread": spread(Z),
    }


def _unit_gradient(Z: Tensor, U: Tensor, eps: float) -> Tensor:
    """∇ of R^c(Z/|Z|): the gradient at unit length, without what would change lengths, by the chain rule."""
    length = Z.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    N = Z / length
    G = subspace_coding_rate_gradient(N, U, eps)
    return (G - (G * N).sum(-1, keepdim=True) * N) / length


def _cosine(one: Tensor, other: Tensor) -> Tensor:
    """Of two moves of all tokens, (b,); 0 where one of them is none."""
    return cosine_similarity(one.flatten(1), other.flatten(1), dim=1, eps=1e-30)


def relative(change: Tensor, scale: Tensor) -> Tensor:
    """0 where there was nothing."""
    return change / scale.abs().where(scale != 0, torch.inf)
