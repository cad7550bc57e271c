"""The audit: what every half-step of every layer does, against what it was designed to do.

    compress    Z^l → Z^{l+1/2}      should lower R^c(·; U_[K]^l), as a step against its gradient does
    sparsify    Z^{l+1/2} → Z^{l+1}  should lower the LASSO of Y = LN Z^{l+1/2} in D^l, and leave few entries

For every sample and layer, at Z^l, Z^{l+1/2} and Z^{l+1}: R, R^c, ΔR, of the tokens as they are and of tokens at unit
norm, ‖·‖₀ and ‖·‖₁ as shares of N·d, the objective ΔR − λ‖·‖₀, the effective rank. LayerNorm makes each half blind to
the size of the tokens, and adding a move to them makes them longer, so it is the rates at unit norm that judge a half.

ISTA starts with Y as its own code, which has entries of both signs, while the LASSO is over codes that have none below
zero: `lasso_before` is its value at ReLU(Y), the nearest such code, `lasso_signed` at Y with the sign let pass, and
`lasso_zero` at the code that is 0, which any code worth its price is below. What a sparsification aims at (`aim_…`) it
says itself: the LASSO for ISTA, λ‖·‖₁ − R for prox_mm. It is compared with the aim at ReLU(Y) where the code takes the
tokens' place, and at the zero code where it is added to them. What an operator does not say is not a number here.

What the compression could have done is taken at its input X = LN Z^l: the exact gradient ∇R^c(X), its first-order
Neumann form and its softmax form, which is the paper's derivation of attention (eq. mssa and before).
"""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from timm.utils import unwrap_model
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

from ..errors import require_positive
from ..layers import Layer
from ..objective import (
    coding_rate,
    l0,
    l1,
    lasso,
    project,
    rate_scale,
    subspace_coding_rate,
    subspace_coding_rate_gradient,
)
from ..operators.base import Operator
from ..operators.gradient import neumann_step, softmax_step
from ..stack import Step, is_stack
from .geometry import (
    coherence_between,
    dead_heads,
    effective_rank,
    orthogonality_gap,
    orthonormality_gap,
    spectral_norm,
)
from .layerwise import RESAMPLES, read_steps, summary

SITES = ("Z", "Z_half", "Z_next")
HALVES = {"compress": ("Z", "Z_half"), "sparsify": ("Z_half", "Z_next")}
AT_SITES = {
    "R": +1,
    "Rc": -1,
    "dR": +1,
    "R_unit": +1,
    "Rc_unit": -1,
    "dR_unit": +1,
    "nonzero": -1,
    "l1": -1,
    "objective": +1,
    "rank": 0,
}
"""What is measured at every site, and whether the objective wants it larger or smaller."""
OF_A_STEP = (
    "aim_before",
    "aim_after",
    "lasso_signed",
    "lasso_zero",
    "lasso_before",
    "lasso_after",
    "gradient_cosine",
    "unit_cosine",
    "neumann_residual",
    "neumann_cosine",
    "softmax_residual",
    "softmax_cosine",
    "gram",
)
"""What is measured of a step as a whole."""
LASSO = "LASSO"
CLEARLY, MOSTLY, EFFECT = 0.9, 0.5, 0.01  # shares of samples that improve, and by how much on average


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
    eta_D: float | None  # η‖D‖², which must be below 2 for ISTA to descend; none where there is no η
    lam: float
    dead: tuple[int, ...] = ()  # heads


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

    def improved(self, name: str, half: str) -> Tensor:
        """The share of samples for which a half-step moves a measure as the objective wants it, (layers,)."""
        before, after = HALVES[half]
        better = AT_SITES[name] * (self.at(name, after) - self.at(name, before)) > 0
        return better.double().mean(-1)

    def aim_improved(self) -> Tensor:
        """The same for what the sparsification aims at."""
        return (self.values["aim_after"] < self.values["aim_before"]).double().mean(-1)

    def verdicts(self) -> tuple["Verdict", ...]:
        return tuple(_verdict(self, layer) for layer in range(len(self.weights)))

    def rows(self, resamples: int = RESAMPLES) -> list[dict[str, Any]]:
        """A row for every layer: means with deviation and interval, shares of improved samples, weights, verdict."""
        columns = summary(self.values, resamples)
        for half in HALVES:
            for name, wish in AT_SITES.items():
                if wish:
                    columns[f"{half}_improves_{name}"] = self.improved(name, half)
        columns["sparsify_improves_aim"] = self.aim_improved()
        return [
            {"layer": weights.layer, "verdict": verdict.text}
            | {name: column[layer].item() for name, column in columns.items()}
            | {name: value for name, value in asdict(weights).items() if name != "layer"}
            for layer, (weights, verdict) in enumerate(zip(self.weights, self.verdicts(), strict=True))
        ]

    def to_dict(self, rows: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """Plain values, for a JSON file; `rows` if they are at hand."""
        return {"definition": {"name": "audit", "eps": self.eps}, "samples": self.samples, "rows": rows or self.rows()}

    def changes(self, half: str) -> Tensor:
        """How much a half-step changes what it is judged by, relative to what that was, (layers, samples)."""
        if half == "sparsify":
            return _relative(self.values["aim_before"], self.values["aim_after"])
        return _relative(self.at("Rc_unit", "Z"), self.at("Rc_unit", "Z_half"))

    def sample_rows(self) -> Iterator[dict[str, Any]]:
        """A row for every layer and sample."""
        for layer, weights in enumerate(self.weights):
            for sample in range(self.samples):
                values = {name: column[layer, sample].item() for name, column in self.values.items()}
                yield {"layer": weights.layer, "sample": sample, **values}

    def __str__(self) -> str:
        lines = [f"audit, ε = {self.eps:g}, {self.samples} samples"]
        return "\n".join(lines + [f"layer {v.layer:2d}  {v.text}" for v in self.verdicts()])


@dataclass(frozen=True)
class Verdict:
    """Whether each half of a layer does what it was designed for: 2 clearly, 1 a little or for most samples, 0 not.

    Clearly: better for 90 % of the pictures, by a per cent on average, and for a LASSO below that of the zero code. A
    layer with a half-step whose operator states no aim is "unknown".
    """

    layer: int
    compresses: int | None
    sparsifies: int | None
    evidence: tuple[str, str]
    warnings: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        grades = [grade for grade in (self.compresses, self.sparsifies) if grade is not None]
        if len(grades) < 2:
            return "unknown"
        return "yes" if min(grades) == 2 else "no" if max(grades) == 0 else "partly"

    @property
    def text(self) -> str:
        return f"{self.word}: " + "; ".join((*self.evidence, *self.warnings))


def audit(
    model: nn.Module, batches: Tensor | Iterable[Any], eps: float = 0.1, samples: int | None = None, lam: float = 0.1
) -> Audit:
    """Audit every half-step on pictures: a tensor of them, or batches, which stream through the network.

    λ is that of the layer's sparsification; `lam` where it has none.
    """
    reader = AuditReader(unwrap_model(model), eps, lam)
    (values,) = read_steps(model, batches, [reader], samples)
    return reader.audit(values)


class AuditReader:
    """The audit of a network as a `Reader`, so that it can share a pass with layer tables."""

    def __init__(self, network: Any, eps: float = 0.1, lam: float = 0.1) -> None:
        require_positive("eps", eps)
        if not is_stack(network):
            raise ValueError(
                f"an audit needs layers that state their design, which {type(network).__name__} does not have"
            )
        self.eps, self.layers = eps, [_AuditedLayer(layer, lam) for layer in network.layers]
        self.rows, self.known = list[dict[str, Tensor]](), dict[str, Tensor]()

    def read(self, step: Step) -> None:
        layer = self.layers[step.number - 1]
        self.rows.append(layer.at_sites(step, self.eps, self.known) | layer.of_a_step(step, self.eps))

    def values(self) -> dict[str, Tensor]:
        values = {name: torch.stack([row[name] for row in self.rows]) for name in self.rows[0]}
        self.rows, self.known = [], {}
        return values

    def audit(self, values: dict[str, Tensor]) -> Audit:
        """Of values (layers, samples)."""
        weights = tuple(layer.weights(number) for number, layer in enumerate(self.layers, start=1))
        return Audit(self.eps, weights, values)


class _AuditedLayer:
    """A layer's weights and sparsification in float64, in which everything is measured."""

    def __init__(self, layer: Layer, lam: float) -> None:
        self.sparsifier: Any = deepcopy(layer.sparsify.operator).double()
        self.lam = float(getattr(self.sparsifier, "lam", lam))
        with torch.no_grad():
            self.U = None if layer.U is None else layer.U.detach().double()
            self.D = None if layer.D is None else layer.D.detach().double()
        self.aim, self.compress_aim = (_stated_aim(half.operator) for half in (layer.sparsify, layer.compress))

    def weights(self, number: int) -> Weights:
        U, D = self.U, self.D
        mean, largest = (None, None) if U is None else coherence_between(U)
        eta = getattr(self.sparsifier, "eta", None)
        return Weights(
            layer=number,
            aim=self.aim,
            compress_aim=self.compress_aim,
            U_size=None if U is None else (U.square().sum((1, 2)) / U.shape[-1]).mean().item(),
            orthonormality=None if U is None else orthonormality_gap(U).mean().item(),
            coherence=mean,
            coherence_max=largest,
            orthogonality=None if D is None else orthogonality_gap(D),
            eta_D=None if eta is None or D is None else eta * spectral_norm(D) ** 2,
            lam=self.lam,
            dead=() if U is None else tuple(dead_heads(U)),
        )

    def at_sites(self, step: Step, eps: float, known: dict[str, Tensor]) -> dict[str, Tensor]:
        """`known` is what the layer before said of its Z_next, which is our Z, without its subspaces."""
        result = dict[str, Tensor]()
        for site in SITES:
            Z = getattr(step, site).double()
            if site != "Z" or not known:
                known |= _of_tokens(Z, eps)
            if self.U is None:
                Rc = Rc_unit = torch.full_like(known["R"], torch.nan)
            else:
                Rc = subspace_coding_rate(Z, self.U, eps)
                Rc_unit = subspace_coding_rate(normalize(Z, dim=-1), self.U, eps)
            values = known | {
                "Rc": Rc,
                "dR": known["R"] - Rc,
                "Rc_unit": Rc_unit,
                "dR_unit": known["R_unit"] - Rc_unit,
                "objective": known["R"] - Rc - self.lam * l0(Z),
            }
            result |= {f"{name}@{site}": values[name] for name in AT_SITES}
        return result

    def of_a_step(self, step: Step, eps: float) -> dict[str, Tensor]:
        nothing = torch.full((len(step.Z),), torch.nan, dtype=torch.float64, device=step.Z.device)
        values = dict.fromkeys(OF_A_STEP, nothing) | self._of_the_sparsification(step)
        return values if self.U is None else values | self._of_the_compression(step, self.U, eps)

    def _of_the_sparsification(self, step: Step) -> dict[str, Tensor]:
        if step.code is None:
            return {}
        Y, code = step.layer.sparsify.norm(step.Z_half).double(), step.code.double()
        start = Y.relu() if self.sparsifier.replaces else torch.zeros_like(code)
        result = {"lasso_zero": 0.5 * Y.square().sum((-2, -1))}
        if self.aim is not None:
            floor = 0.0 if self.aim == LASSO else -torch.inf
            values = [self.sparsifier.aim(Y, tokens.clamp_min(floor)) for tokens in (start, code)]
            result |= {"aim_before": values[0], "aim_after": values[1]}
        if self.D is not None and self.D.shape[1] == code.shape[-1]:
            fits = [lasso(tokens.clamp_min(0), Y, self.D, self.lam) for tokens in (start, code)]
            result |= {"lasso_before": fits[0], "lasso_after": fits[1]}
            if self.D.shape[0] == self.D.shape[1]:
                signed_fit = 0.5 * (Y - Y @ self.D.mT).square().sum((-2, -1))
                result["lasso_signed"] = self.lam * l1(Y) + signed_fit
        return result

    @staticmethod
    def _of_the_compression(step: Step, U: Tensor, eps: float) -> dict[str, Tensor]:
        X = step.layer.compress.norm(step.Z).double()
        exact = subspace_coding_rate_gradient(X, U, eps)
        forms = {
            "neumann": X - neumann_step(X, U, kappa=1.0, eps=eps),
            "softmax": X - softmax_step(X, U, kappa=1.0, eps=eps, scale=U.shape[-1] ** -0.5),
        }
        moved = (step.Z_half - step.Z).double()
        result = {
            "gradient_cosine": _cosine(moved, -exact),
            "unit_cosine": _cosine(moved, -_unit_gradient(step.Z.double(), U, eps)),
        }
        size = exact.flatten(1).norm(dim=1).clamp_min(1e-30)
        for name, form in forms.items():
            result[f"{name}_residual"] = (form - exact).flatten(1).norm(dim=1) / size
            result[f"{name}_cosine"] = _cosine(form, exact)
        singular = torch.linalg.matrix_norm(project(X, U), ord=2)  # (b, k)
        return result | {"gram": rate_scale(X.shape[-2], U.shape[-1], eps) * singular.square().amax(-1)}


def _stated_aim(operator: Operator) -> str | None:
    """What an operator says that it lowers."""
    return (operator.aim_name or "its aim") if operator.has("aim") else None


def _of_tokens(Z: Tensor, eps: float) -> dict[str, Tensor]:
    entries = Z.shape[-2] * Z.shape[-1]
    return {
        "R": coding_rate(Z, eps),
        "R_unit": coding_rate(normalize(Z, dim=-1), eps),
        "nonzero": l0(Z) / entries,
        "l1": l1(Z) / entries,
        "rank": effective_rank(Z),
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


def _verdict(result: Audit, layer: int) -> Verdict:
    weights = result.weights[layer]
    rate, fit = result.improved("Rc_unit", "compress")[layer].item(), result.aim_improved()[layer].item()
    moved, aimed = (result.changes(half)[layer].mean().item() for half in HALVES)
    raw = _relative(result.at("Rc", "Z"), result.at("Rc", "Z_half"))[layer].mean().item()
    left = result.at("nonzero", "Z_next")[layer].mean().item()
    compresses = None if weights.compress_aim is None else _grade(rate, moved)
    sparsifies = None if weights.aim is None else _grade(fit, aimed)
    price = ""
    if weights.aim == LASSO and sparsifies is not None:
        of_zero = (
            (result.values["lasso_after"][layer] / result.values["lasso_zero"][layer].clamp_min(1e-30)).mean().item()
        )
        price = f", {of_zero:.0%} of the zero code's"
        sparsifies = min(sparsifies, 2 if of_zero < 1 else 1)
    aim = (
        "the operator states no aim"
        if weights.aim is None
        else f"{weights.aim} {signed(aimed)}, lower in {fit:.0%}{price}"
    )
    lowered = f"R^c {signed(moved)} at unit length ({signed(raw)} as it is), lower in {rate:.0%} of the pictures"
    evidence = (
        "the operator states no aim" if compresses is None else lowered,
        f"{aim}; {left:.0%} of the entries left",
    )
    warnings = []
    if weights.eta_D is not None and weights.eta_D >= 2:
        warnings.append(f"η‖D‖² = {weights.eta_D:.2f} is not below 2, so ISTA need not descend")
    if weights.dead:
        warnings.append(f"{_counted('head', weights.dead)} dead")
    return Verdict(weights.layer, compresses, sparsifies, evidence, tuple(warnings))


def _grade(share: float, change: float) -> int:
    """Of a quantity that should fall."""
    return 2 if share >= CLEARLY and change <= -EFFECT else 1 if share > MOSTLY else 0


def _relative(before: Tensor, after: Tensor) -> Tensor:
    """0 where there was nothing."""
    return (after - before) / before.abs().where(before != 0, torch.inf)


def signed(change: float) -> str:
    """A relative change in per cent, with a minus that can be read."""
    return f"{change:+.1%}".replace("-", "−")


def _counted(word: str, numbers: tuple[int, ...]) -> str:
    names = ", ".join(map(str, numbers))
    return f"{word} {names} is" if len(numbers) == 1 else f"{word}s {names} are"
