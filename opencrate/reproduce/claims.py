"""The paper's claims, each held to what the plan's runs found.

A claim about accuracies holds if the difference of the means has the right sign and is larger than twice its standard
error over the seeds, and does not hold if it has the wrong one; between the two it is open. A claim about layers is one
about every seed and every size.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from ..measures import DEFINITIONS
from .plan import LIGHT, STRONG, Plan
from .results import Results, Sample

__all__ = ["Claim", "Difference", "claims", "pairs_of"]

Verdict = Literal["holds", "does not hold", "open", "not testable here"]
CLEAR = 0.1  # of R^c or of the non-zero fraction: a change that counts
LEVEL = 0.02  # of the non-zero fraction: a rise that counts


@dataclass(frozen=True)
class Claim:
    """What the paper says, whether it holds, and what says so."""

    text: str
    verdict: Verdict
    evidence: str


@dataclass(frozen=True)
class Difference:
    """Of the mean accuracies of two networks, with its standard error where there are seeds enough."""

    mean: float
    error: float | None

    @classmethod
    def of(cls, one: Sample, other: Sample) -> "Difference":
        mean = one.mean - other.mean
        if one.std is None or other.std is None:
            return cls(mean, None)
        return cls(mean, math.sqrt(one.std**2 / len(one.values) + other.std**2 / len(other.values)))

    @property
    def sign(self) -> int:
        """Of a difference that is clear, else 0; with one seed nothing says that it is not."""
        return 0 if abs(self.mean) <= 2 * (self.error or 0.0) else 1 if self.mean > 0 else -1

    def __str__(self) -> str:
        return f"{self.mean:+.2f}".replace("-", "−") + ("" if self.error is None else f" ± {self.error:.2f}")


def claims(plan: Plan, results: Results) -> Iterator[Claim]:
    """In the paper's order."""
    first = plan.runs[0].task
    yield from _against_vit(plan, results, first)
    yield _by_size(plan, results, first)
    layers = list(_layer_tables(plan, results))
    yield _claim("R^c falls with depth", layers, _rate_falls)
    yield _claim("sparsity improves with depth (the non-zero fraction falls)", layers, _sparser)
    yield _claim("the last layer is an exception: it is less sparse than the one before", layers, _last_layer)
    yield _claim("training is what makes it so", layers, _by_training)
    yield _incoherent(results)
    ablated = next((run.model for run in plan.runs if "table2" in run.parts), "")
    yield _costs(results, ablated, first, "eta_0.5", "a step of η = 0.5 costs accuracy")
    yield _robust(plan, results, ablated, first)
    yield _costs(results, ablated, first, "mssa_tied", "tied MSSA costs accuracy")
    yield _costs(results, ablated, first, "prox_mm", "the proximal majorisation step costs accuracy")


def pairs_of(plan: Plan) -> list[tuple[str, str]]:
    """Every CRATE of the plan with the ViT of its size, where it has one."""
    crates, vits = (
        list(dict.fromkeys(run.model for run in plan.runs if run.model.startswith(kind))) for kind in ("CRATE", "ViT")
    )
    if plan.scale == "full":  # the paper's tiny and base
        return [("CRATE-T", "ViT-T"), ("CRATE-B", "ViT-S")]
    return list(zip(crates, vits, strict=True))


def _against_vit(plan: Plan, results: Results, task: str) -> Iterator[Claim]:
    for variant, words in ((LIGHT, "the paper's settings"), (STRONG, "the strong recipe")):
        found = []
        for crate, vit in pairs_of(plan):
            one, other = results.accuracy(crate, task, variant), results.accuracy(vit, task, variant)
            if one and other:
                difference = Difference.of(one, other)
                found.append((f"{crate} {one}, {vit} {other} ({difference})", difference.sign))
        text = f"a CRATE is about as accurate as a ViT of its size, with {words}"
        yield _judged(text, found, lambda signs: "does not hold" if min(signs) < 0 else "holds")


def _by_size(plan: Plan, results: Results, task: str) -> Claim:
    crates = [crate for crate, _ in pairs_of(plan)]
    found = []
    for smaller, larger in pairwise(crates):
        one, other = results.accuracy(smaller, task), results.accuracy(larger, task)
        if one and other:
            found.append((f"{smaller} {one}, {larger} {other}", Difference.of(other, one).sign))
    text = "a larger CRATE is more accurate, with the same settings"
    return _judged(text, found, lambda s: "holds" if min(s) > 0 else "does not hold" if min(s) < 0 else "open")


def _judged(text: str, found: list[tuple[str, int]], verdict: Callable[[list[int]], Verdict]) -> Claim:
    if not found:
        return Claim(text, "not testable here", "no such runs")
    return Claim(text, verdict([sign for _, sign in found]), "; ".join(words for words, _ in found))


def _costs(results: Results, model: str, task: str, variant: str, text: str) -> Claim:
    base, other = results.accuracy(model, task), results.accuracy(model, task, variant)
    if base is None or other is None:
        return Claim(text, "not testable here", "no such runs")
    difference = Difference.of(other, base)
    verdict: Verdict = "holds" if difference.sign < 0 else "does not hold" if difference.sign > 0 else "open"
    return Claim(text, verdict, f"{other} against {base} ({difference})")


def _robust(plan: Plan, results: Results, model: str, task: str) -> Claim:
    """The paper's other settings cost 1.3 points at most."""
    others = [run.variant for run in plan.runs if "table2" in run.parts and run.variant not in (LIGHT, "eta_0.5")]
    base = results.accuracy(model, task)
    found = {name: sample for name in dict.fromkeys(others) if (sample := results.accuracy(model, task, name))}
    text = "other settings in the table cost little (1.3 points at most in the paper)"
    if base is None or not found:
        return Claim(text, "not testable here", "no such runs")
    worst = min(found, key=lambda name: found[name].mean)
    difference = Difference.of(found[worst], base)
    holds = difference.mean > -1.3
    return Claim(text, "holds" if holds else "does not hold", f"the worst is {worst}: {difference}")


Layers = tuple[str, dict[str, Any]]


def _layer_tables(plan: Plan, results: Results) -> Iterator[Layers]:
    """Of every CRATE trained with the paper's settings, and every seed."""
    for run, row in results.of(plan):
        if run.variant == LIGHT and run.start is None and (found := row.get("looks", {}).get("fig3")):
            yield run.model, found


def _claim(text: str, layers: list[Layers], judge: Callable[[list[Layers]], tuple[Verdict, str]]) -> Claim:
    if not layers:
        return Claim(text, "not testable here", "no such runs")
    return Claim(text, *judge(layers))


def _fall(values: list[float]) -> float:
    return 1 - values[-1] / values[0]


def _rate_falls(layers: list[Layers]) -> tuple[Verdict, str]:
    told, held = [], []
    for name in DEFINITIONS:
        falls = [_fall(found[name]["validation"]["Rc"]) for _, found in layers]
        held.append(min(falls) > CLEAR)
        told.append(f"by the definition {name}, from the first to the last layer {_range(falls)}")
    return "holds" if all(held) else "open" if any(held) else "does not hold", "; ".join(told)


def _sparser(layers: list[Layers]) -> tuple[Verdict, str]:
    curves = [found["unit"]["validation"]["nonzero"] for _, found in layers]
    falls = [1 - min(curve) / curve[0] for curve in curves]
    lowest = sorted({curve.index(min(curve)) + 1 for curve in curves})
    told = f"from the first layer to the lowest {_range(falls)}, the lowest at layer {', '.join(map(str, lowest))}"
    return "holds" if min(falls) > CLEAR else "does not hold", told


def _last_layer(layers: list[Layers]) -> tuple[Verdict, str]:
    curves = [found["unit"]["validation"]["nonzero"] for _, found in layers]
    rises = [curve[-1] - curve[-2] for curve in curves]
    before = [max([b - a for a, b in pairwise(curve[:-1])], default=0.0) for curve in curves]
    ends = " … ".join(f"{value:+.2f}".replace("-", "−") for value in (min(rises), max(rises)))
    told = f"there it changes by {ends} of all entries; between layers before it rises by {max(before):.2f} at most"
    return "holds" if min(rises) > LEVEL and max(before) <= LEVEL else "open" if min(
        rises
    ) > 0 else "does not hold", told


def _by_training(layers: list[Layers]) -> tuple[Verdict, str]:
    told, held = [], []
    for name in DEFINITIONS:
        trained, untrained = (
            [_fall(found[name][which]["Rc"]) for _, found in layers] for which in ("validation", "untrained")
        )
        held.append(min(trained) > max(untrained) + CLEAR)
        told.append(f"{name}: {_range(trained)} trained, {_range(untrained)} untrained")
    return "holds" if all(held) else "open" if any(held) else "does not hold", "R^c by " + "; ".join(told)


def _incoherent(results: Results) -> Claim:
    text = "subspaces are more incoherent in later layers"
    rows = [row["looks"]["subspaces"] for row in results.rows.values() if "subspaces" in row.get("looks", {})]
    if not rows:
        return Claim(text, "not testable here", "no such runs")
    values = rows[0]["coherence"]
    half = len(values) // 2
    early, late = sum(values[:half]) / half, sum(values[half:]) / (len(values) - half)
    told = f"mean |cos| between their directions {early:.3f} in the first half of the layers, {late:.3f} in the second"
    return Claim(text, "holds" if late < early else "does not hold", told)


def _range(falls: list[float]) -> str:
    """Falls as changes, in per cent: "−28 %", or "−28 … −31 %" over seeds and sizes."""
    low, high = (f"{-100 * fall:+.0f}".replace("-", "−") for fall in (min(falls), max(falls)))
    return f"{low} %" if low == high else f"{low} … {high} %"
