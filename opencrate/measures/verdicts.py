"""Grades of an audit: for each half of each layer, whether it does better than every null, and without a collapse.

    yes        its aim falls, and by EFFECT more than with every null
    collapse   the half-step takes more than half of the tokens' spread, or of their effective rank beyond 1
    no         some null does as well, or nearly
    unknown    the operator states no aim, or its forward pass does not follow from its code
    too few    there are fewer pictures than PICTURES

"Falls" means that the 95 % bootstrap interval of the mean over pictures lies below 0. A move that takes more than half
of the spread is no null: a layer may not do that either. ΔR is that of both halves together: even the exact gradient
step on R^c lowers R about as much.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from torch import Tensor

from .audit import HALVES, Audit
from .layerwise import interval
from .nulls import CODES, MOVES, Null

Grade = Literal["yes", "collapse", "no", "unknown", "too few"]
GRADES = get_args(Grade)
PICTURES = 20  # of fewer there is no grade
EFFECT = 0.01  # by which a half-step must do better than every null, as a share of R^c or of the zero code's cost
HALF = 0.5  # of the spread or the rank, which no step may take
NULLS: Mapping[str, Mapping[str, Null[Any]]] = {"compress": MOVES, "sparsify": CODES}


@dataclass(frozen=True)
class Mean:
    """Over the pictures, with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Tensor) -> "Mean":
        """Of the values (samples,) of a layer."""
        low, high = interval(values)
        return cls(values.mean().item(), low.item(), high.item())

    @property
    def falls(self) -> bool:
        return self.high < 0

    def __str__(self) -> str:
        digits = 1 if abs(self.mean) < 0.5 else 0
        low, high = (signed(end, digits).removesuffix(" %") for end in (self.low, self.high))
        return f"{signed(self.mean, digits)} ({low}…{high})"


@dataclass(frozen=True)
class Judgement:
    """A half-step of a layer: its grade, and the numbers behind it."""

    grade: Grade
    aim: str | None = None
    change: Mean | None = None  # of the aim
    nulls: dict[str, Mean] | None = None  # the aim less what it is after each null; below 0 is better than the null
    evidence: str = "the operator states no aim"

    @property
    def best(self) -> str:
        """The null that is hardest to beat."""
        nulls = self.nulls or {}
        return max(nulls, key=lambda name: nulls[name].high)

    @property
    def difference(self) -> Mean:
        """To the best null."""
        return (self.nulls or {})[self.best]


@dataclass(frozen=True)
class Verdict:
    """Whether the halves of a layer do what they were designed for."""

    layer: int
    compress: Judgement
    sparsify: Judgement
    reduction: Mean | None = None  # change of ΔR of tokens at unit length by both halves, nats
    notes: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        grades = {self.compress.grade, self.sparsify.grade}
        for grade in ("too few", "unknown"):
            if grade in grades:
                return grade
        return "yes" if grades == {"yes"} else "partly" if "yes" in grades else "no"

    @property
    def text(self) -> str:
        return f"{self.word}: " + "; ".join((self.compress.evidence, self.sparsify.evidence, *self.notes))


def verdicts(audit: Audit) -> tuple[Verdict, ...]:
    """Of every layer."""
    return tuple(
        Verdict(
            weights.layer,
            _judged(audit, "compress", weights.compress_aim, layer),
            _judged(audit, "sparsify", weights.aim, layer),
            _reduction(audit, layer),
            tuple(_notes(audit, layer)),
        )
        for layer, weights in enumerate(audit.weights)
    )


def _judged(audit: Audit, half: str, aim: str | None, layer: int) -> Judgement:
    if aim is None:
        return Judgement("unknown")
    after = audit.values[f"{half}_after"][layer]
    if bool(after.isnan().all()):
        return Judgement("unknown", aim, evidence="the operator's forward pass follows from no code that it hands out")
    if not bool(after.isfinite().all()):
        return Judgement("no", aim, evidence=f"{aim} is infinite: its code is not one that the aim allows")
    change, nulls = Mean.of(audit.changes(half)[layer]), _nulls(audit, half, layer)
    if not nulls:
        return Judgement(
            "unknown", aim, change, evidence="no null counts: with each the aim is not finite, or the tokens collapse"
        )
    graded = Judgement("no", aim, change, nulls)
    words = NULLS[half][graded.best].words
    evidence = f"{aim} {signed(change.mean)}, {signed(graded.difference.mean)} beside {words}"
    grade: Grade = "no"
    if audit.samples < PICTURES:
        grade = "too few"
    elif collapses(audit, half, layer):
        grade = "collapse"
    elif change.falls and graded.difference.falls and graded.difference.mean <= -EFFECT:
        grade = "yes"
    return Judgement(grade, aim, change, nulls, evidence)


def _nulls(audit: Audit, half: str, layer: int) -> dict[str, Mean]:
    """How much better the half-step does than every null that has a finite aim and does not collapse the tokens."""
    nulls = {}
    for name, differences in audit.differences(half).items():
        taken = 0.0
        if half == "compress":
            before, after = audit.at("spread", "Z")[layer], audit.values[f"compress_spread_{name}"][layer]
            taken = _loss(before.mean().item(), after.mean().item())
        if bool(differences[layer].isfinite().all()) and taken <= HALF:
            nulls[name] = Mean.of(differences[layer])
    return nulls


def collapses(audit: Audit, half: str, layer: int) -> bool:
    """Whether a half-step takes more than half of the tokens' spread, or of their effective rank beyond 1."""
    return any(loss > HALF for loss in _losses(audit, half, layer).values())


def _losses(audit: Audit, half: str, layer: int) -> dict[str, float]:
    """The shares of spread and of rank beyond 1 that a half-step takes, means over the pictures."""
    losses = {}
    for name, floor in (("spread", 0.0), ("rank", 1.0)):
        before, after = (audit.at(name, site)[layer].mean().item() - floor for site in HALVES[half])
        losses[name] = _loss(before, after)
    return losses


def _loss(before: float, after: float) -> float:
    return 1 - after / before if before > 1e-9 else 0.0


def _reduction(audit: Audit, layer: int) -> Mean | None:
    change = audit.at("dR_unit", "Z_next")[layer] - audit.at("dR_unit", "Z")[layer]
    return Mean.of(change) if bool(change.isfinite().all()) else None


def _notes(audit: Audit, layer: int) -> Iterator[str]:
    weights = audit.weights[layer]
    for half, noun in (("compress", "compression"), ("sparsify", "sparsification")):
        if collapses(audit, half, layer):
            spread, rank = (f"{loss:.0%}" for loss in _losses(audit, half, layer).values())
            yield f"the tokens collapse in {noun}, which takes {spread} of their spread and {rank} of their rank"
    if weights.dead:
        heads = ", ".join(map(str, weights.dead))
        yield f"head {heads} is dead" if len(weights.dead) == 1 else f"heads {heads} are dead"


def summary(audit: Audit, untrained: Audit | None = None) -> tuple[str, str, str]:
    """The verdict on a network in three sentences: compression, sparsification, and the layers as a whole."""
    found = verdicts(audit)
    compression = _sentence([verdict.compress for verdict in found], "compress", "Compression")
    sparsification = _sentence([verdict.sparsify for verdict in found], "sparsify", "Sparsification")
    return compression, sparsification, _altogether(audit, untrained)


def _sentence(halves: list[Judgement], half: str, name: str) -> str:
    grades, total = Counter(judgement.grade for judgement in halves), len(halves)
    if grades["unknown"] == total:
        return f"{name}: the operator states no aim, so it cannot be judged."
    if grades["too few"]:
        return f"{name}: not graded, because fewer than {PICTURES} pictures are too few."
    what = f"{halves[0].aim} of the tokens at unit length" if half == "compress" else f"the {halves[0].aim}"
    more = f"by at least {100 * EFFECT:g} % more than with every null"
    parts = [f"{name}: {what} falls {more} at {grades['yes']} of {total} layers"]
    if grades["collapse"]:
        parts.append(f"at {grades['collapse']} the tokens collapse")
    equals = Counter(null for one in halves for null, to in (one.nulls or {}).items() if not to.falls)
    if equals:
        null, count = equals.most_common(1)[0]
        parts.append(f"{NULLS[half][null].words} does as well or better at {count}")
    return "; ".join(parts) + "."


def _altogether(audit: Audit, untrained: Audit | None) -> str:
    ranks = [audit.at("rank", site)[layer].mean().item() for site, layer in (("Z", 0), ("Z_next", -1))]
    sentence = f"Altogether: the tokens' effective rank goes from {ranks[0]:.1f} to {ranks[1]:.1f}"
    if audit.samples < PICTURES:
        return f"{sentence}."
    counts = _counts(audit)
    if counts["ΔR"] is not None:
        sentence += f", and ΔR rises over both halves at {counts['ΔR']} of {len(audit.weights)} layers"
    if untrained is not None:
        of = ", ".join(f"{count} for {name}" for name, count in _counts(untrained).items() if count is not None)
        sentence += f"; in the untrained network such layers are {of}"
    return f"{sentence}."


def _counts(audit: Audit) -> dict[str, int | None]:
    """How many layers compress and sparsify as designed, and raise ΔR."""
    found = verdicts(audit)
    halves = {"compression": "compress", "sparsification": "sparsify"}
    counts = {name: sum(getattr(verdict, half).grade == "yes" for verdict in found) for name, half in halves.items()}
    reductions = [verdict.reduction for verdict in found if verdict.reduction is not None]
    return counts | {"ΔR": sum(reduction.low > 0 for reduction in reductions) if reductions else None}


def certified(audit: Audit) -> Iterator[str]:
    """What theorems say, with the number of layers for which their conditions hold."""
    found = defaultdict(list)
    for weights in audit.weights:
        for certificate in weights.certificates:
            found[certificate.statement, certificate.condition].append(certificate)
    for (statement, condition), certificates in found.items():
        holding = sum(certificate.holds for certificate in certificates)
        values = [certificate.value for certificate in certificates if certificate.value is not None]
        span = f"; here it is {min(values):.2f} to {max(values):.2f}" if values else ""
        where = f"at {holding} of {len(audit.weights)} layers"
        yield f"{statement} if {condition}, which holds {where}{span}" if condition else f"{statement}, {where}"


def null_rows(audit: Audit) -> Iterator[dict[str, Any]]:
    """A row for every layer, half and null: how much better the layer does, with the interval; below 0 is better."""
    for verdict in verdicts(audit):
        for half in HALVES:
            judgement: Judgement = getattr(verdict, half)
            for name, difference in (judgement.nulls or {}).items():
                yield {"layer": verdict.layer, "half": half, "null": name, **asdict(difference)}


def to_dict(audit: Audit, untrained: Audit | None = None) -> dict[str, Any]:
    """Plain values, for a JSON file."""

    def layers(network: Audit) -> list[dict[str, Any]]:
        pairs = zip(network.rows(), verdicts(network), strict=True)
        return [row | {"verdict": verdict.text, "grades": _plain(verdict)} for row, verdict in pairs]

    result = {
        "definition": {"name": "audit", "eps": audit.eps},
        "samples": audit.samples,
        "summary": summary(audit, untrained),
        "rows": layers(audit),
    }
    return result if untrained is None else result | {"untrained": layers(untrained)}


def _plain(verdict: Verdict) -> dict[str, Any]:
    halves = {half: asdict(getattr(verdict, half)) | {"best": _best(getattr(verdict, half))} for half in HALVES}
    return halves | {"reduction": None if verdict.reduction is None else asdict(verdict.reduction)}


def _best(judgement: Judgement) -> str | None:
    return judgement.best if judgement.nulls else None


def signed(change: float, digits: int = 1) -> str:
    """A relative change in per cent, with a minus that can be read."""
    return f"{100 * change:+.{digits}f} %".replace("-", "−")
