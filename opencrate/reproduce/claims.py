"""Claims of the paper, and of ours, each held to what the plan's runs found.

A difference of accuracies is clear if its 95 % interval over the seeds leaves 0 out, by Student's t; a claim about one
holds if it is clear and has the right sign, does not hold if it is clear and has the wrong one, and is open in between.
Of one seed, the interval is that of the validation pictures. A claim about layers is one about every seed and every
size; it holds in part if it does by some definitions of R^c, in some networks, or less than all of what it says.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from ..measures import DEFINITIONS
from .plan import LIGHT, STRONG, Plan
from .results import Results, Sample

__all__ = ["WORDS", "Claim", "Difference", "claims", "pairs_of", "signed"]

Verdict = Literal["holds", "in part", "does not hold", "open", "not run", "not testable here"]
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)  # 97.5 % quantiles for 1, 2, … degrees
CLEAR = 0.1  # of R^c or of the non-zero fraction: a change that counts
LEVEL = 0.02  # of the non-zero fraction: a rise that counts
CLOSE = 1.0  # point of accuracy: no further behind than this is close
MOST = 1.3  # points: what the paper's other settings cost at most
NOT_RUN: tuple[Verdict, str] = ("not run", "no run for it is done")
WORDS = {
    "eta_0.02": "η = 0.02 (0.1)",
    "eta_0.5": "η = 0.5 (0.1)",
    "lam_0.02": "λ = 0.02 (0.1)",
    "lam_0.5": "λ = 0.5 (0.1)",
    "epochs_90": "0.6 × the epochs",
    "epochs_300": "2 × the epochs",
    "wd_1.0": "weight decay 1.0 (0.5)",
    "wd_0.05": "weight decay 0.05 (0.5)",
    "lr_4.8e-4": "2 × the learning rate",
    "lr_1.2e-4": "½ × the learning rate",
    "mssa_tied": "tied MSSA, without a free output map",
    "prox_mm": "proximal majorisation instead of ISTA",
    "prox_mm_tight": "the same with the tight bound (ours)",
    "softmax_step": "tied, −κγ Y beside κγ MSSA(Y) (ours)",
    "mssa_tied_short": "tied, as short a step, without −κγ Y (ours)",
    "gradient_step": "the exact gradient of R^c (ours)",
}
"""What a variant is called in tables."""


@dataclass(frozen=True)
class Claim:
    """What the paper says, whether it holds, and what says so."""

    text: str
    verdict: Verdict
    evidence: str


@dataclass(frozen=True)
class Difference:
    """Of the mean accuracies of two networks, with its standard error and degrees of freedom where they are known."""

    mean: float
    error: float | None = None
    degrees: int = 1
    one_seed: bool = False

    @classmethod
    def of(cls, one: Sample, other: Sample) -> "Difference":
        """With the degrees of freedom that Welch and Satterthwaite give unequal variances, rounded down."""
        mean, alone = one.mean - other.mean, min(len(one.values), len(other.values)) == 1
        if one.error is None or other.error is None:
            return cls(mean, one_seed=alone)
        a, b = one.error**2, other.error**2
        spread = a**2 / one.degrees + b**2 / other.degrees
        degrees = int((a + b) ** 2 / spread + 1e-9) if spread else one.degrees + other.degrees
        return cls(mean, math.sqrt(a + b), degrees, alone)

    @property
    def ends(self) -> tuple[float, float]:
        """Of its 95 % interval."""
        if self.error is None:
            return -math.inf, math.inf
        half = STUDENT[min(self.degrees, len(STUDENT)) - 1] * self.error
        return self.mean - half, self.mean + half

    @property
    def sign(self) -> int:
        """Of a difference that is clear, else 0."""
        low, high = self.ends
        return 1 if low > 0 else -1 if high < 0 else 0

    def __str__(self) -> str:
        error = "" if self.error is None else f" ± {self.error:.2f}"
        return signed(self.mean, 2) + error + (", one seed" if self.one_seed else "")


def signed(value: float, digits: int) -> str:
    """With a sign in any case, and a minus that can be read."""
    return f"{value:+.{digits}f}".replace("-", "−")


def claims(plan: Plan, results: Results) -> Iterator[Claim]:
    """In the paper's order."""
    first = plan.runs[0].task
    yield from _against_vit(plan, results, first)
    yield _by_size(plan, results, first)
    layers, strong = (list(_layer_tables(plan, results, variant)) for variant in (LIGHT, STRONG))
    yield _claim("R^c falls with depth", layers, _rate_falls)
    if plan.scale != "full":
        yield _claim("R^c falls with depth, with our strong recipe", strong, _rate_falls)
    yield _claim("sparsity improves with depth (the non-zero fraction falls)", layers, _sparser)
    yield _claim("the last layer is an exception: it is less sparse than the one before", layers, _last_layer)
    yield _claim("training is what makes R^c fall", layers, _falls_by_training)
    yield _claim("training is what makes it sparse", layers, _sparse_by_training)
    yield _incoherent(plan, results)
    ablated = next((run.model for run in plan.runs if "table2" in run.parts), "")
    yield _costs(results, ablated, first, "eta_0.5", "a step of η = 0.5 costs accuracy")
    yield _robust(plan, results, ablated, first)
    yield _costs(results, ablated, first, "mssa_tied", "tied MSSA costs accuracy")
    yield _costs(results, ablated, first, "prox_mm", "the proximal majorisation step costs accuracy")
    if plan.scale != "full":
        text = "the accuracies on ImageNet, and after transfer from it"
        yield Claim(text, "not testable here", "these are the plan of the scale full")


def pairs_of(plan: Plan) -> list[tuple[str, str]]:
    """Every CRATE of the plan with the ViT of its size, where it has one."""
    crates, vits = (
        list(dict.fromkeys(run.model for run in plan.runs if run.model.startswith(kind))) for kind in ("CRATE", "ViT")
    )
    if plan.scale == "full":  # the paper's tiny and base
        return [("CRATE-T", "ViT-T"), ("CRATE-B", "ViT-S")]
    return list(zip(crates, vits, strict=True))


def _against_vit(plan: Plan, results: Results, task: str) -> Iterator[Claim]:
    """Close: less than a point behind, or ahead."""
    for variant, words in ((LIGHT, "the paper's settings"), (STRONG, "our strong recipe")):
        found, planned = [], {run.model for run in plan.runs if run.variant == variant}
        pairs = [pair for pair in pairs_of(plan) if planned.issuperset(pair)]
        for crate, vit in pairs:
            one, other = results.accuracy(crate, task, variant), results.accuracy(vit, task, variant)
            if one and other:
                low, high = (difference := Difference.of(one, other)).ends
                close = 1 if low > -CLOSE else -1 if high < -CLOSE else 0
                found.append((f"{crate} {one}, {vit} {other} ({difference})", close))
        if 0 < len(found) < len(pairs):
            found.append((f"{len(found)} of {len(pairs)} sizes have run", 1))
        yield _judged(f"a CRATE comes close to a ViT of its size (a point behind at most), with {words}", found)


def _by_size(plan: Plan, results: Results, task: str) -> Claim:
    crates = dict.fromkeys(run.model for run in plan.runs if run.model.startswith("CRATE"))
    found = []
    for smaller, larger in pairwise(crates):
        one, other = results.accuracy(smaller, task), results.accuracy(larger, task)
        if one and other:
            found.append((f"{smaller} {one}, {larger} {other}", Difference.of(other, one).sign))
    return _judged("a larger CRATE is more accurate, with the same settings", found)


def _judged(text: str, found: list[tuple[str, int]]) -> Claim:
    """Of several comparisons, each with its evidence, and 1, 0 or −1: the worst decides."""
    if not found:
        return Claim(text, *NOT_RUN)
    worst = min(sign for _, sign in found)
    verdict: Verdict = "holds" if worst > 0 else "does not hold" if worst < 0 else "open"
    return Claim(text, verdict, "; ".join(words for words, _ in found))


def _costs(results: Results, model: str, task: str, variant: str, text: str) -> Claim:
    base, other = results.accuracy(model, task), results.accuracy(model, task, variant)
    if base is None or other is None:
        return Claim(text, *NOT_RUN)
    difference = Difference.of(other, base)
    return _judged(text, [(f"{other} against {base} ({difference})", -difference.sign)])


def _robust(plan: Plan, results: Results, model: str, task: str) -> Claim:
    """All settings of the table but η = 0.5."""
    others = [run.variant for run in plan.runs if "table2" in run.parts and run.variant not in (LIGHT, "eta_0.5")]
    base = results.accuracy(model, task)
    found = {name: results.accuracy(model, task, name) for name in dict.fromkeys(others)}
    done = {name: Difference.of(sample, base) for name, sample in found.items() if sample and base}
    text = f"other settings in the table cost little ({MOST:g} points at most in the paper)"
    if not done:
        return Claim(text, *NOT_RUN)
    worst = min(done, key=lambda name: done[name].mean)
    ends = [difference.ends for difference in done.values()]
    little = [1 if low > -MOST else -1 if high < -MOST else 0 for low, high in ends]
    told = f"the worst is {WORDS[worst]}: {done[worst]}; {little.count(1)} of {len(found)} are sure to"
    if len(done) < len(found):
        return Claim(text, "does not hold" if min(little) < 0 else "open", f"{told}, {len(done)} have run")
    return _judged(text, [(told, min(little))])


Layers = tuple[str, dict[str, Any]]


def _layer_tables(plan: Plan, results: Results, variant: str) -> Iterator[Layers]:
    """Of every CRATE so trained from scratch, and every seed; without those with numbers that are none."""
    for run, row in results.of(plan):
        found = row.get("looks", {}).get("fig3")
        if run.variant == variant and run.start is None and found and _is_whole(found):
            yield run.model, found


def _is_whole(found: dict[str, Any]) -> bool:
    tables = [found.get(name, {}).get(which) for name in DEFINITIONS for which in ("validation", "untrained")]
    return all(
        table and None not in table["Rc"] + table["nonzero"] and min(table["Rc"][0], table["nonzero"][0]) > 0
        for table in tables
    )


def _claim(text: str, layers: list[Layers], judge: Callable[[list[Layers]], tuple[Verdict, str]]) -> Claim:
    if not layers:
        return Claim(text, *NOT_RUN)
    verdict, told = judge(layers)
    counts = Counter(model for model, _ in layers)
    seen = ", ".join(f"{model} ({count} seed{'s' * (count > 1)})" for model, count in counts.items())
    return Claim(text, verdict, f"{seen}: {told}")


def _fall(values: list[float], start: int = 0) -> float:
    return 1 - values[-1] / values[start]


def _rate_falls(layers: list[Layers]) -> tuple[Verdict, str]:
    """To the last layer from the first, and from the second too: one layer is not depth."""
    told, held = [], []
    for name in DEFINITIONS:
        curves = [found[name]["validation"]["Rc"] for _, found in layers]
        falls, later = ([_fall(curve, start) for curve in curves] for start in (0, 1))
        held.append(min(falls + later) > CLEAR)
        told.append(f"by {name} {_range(falls)} from the first to the last layer, {_range(later)} from the second")
    return "holds" if all(held) else "in part" if any(held) else "does not hold", "; ".join(told)


def _thinned(curve: list[float]) -> float:
    """How much of the non-zero fraction goes from the first layer to the lowest of the second half."""
    return 1 - min(curve[len(curve) // 2 :]) / curve[0]


def _sparser(layers: list[Layers]) -> tuple[Verdict, str]:
    curves = [found["unit"]["validation"]["nonzero"] for _, found in layers]
    falls = [_thinned(curve) for curve in curves]
    lowest = sorted({curve.index(min(curve)) + 1 for curve in curves})
    told = (
        f"from the first layer to the lowest of the second half {_range(falls)},"
        f" the lowest of all at layer {', '.join(map(str, lowest))}"
    )
    return "holds" if min(falls) > CLEAR else "does not hold", told


def _last_layer(layers: list[Layers]) -> tuple[Verdict, str]:
    """Where it rises, and more than between any two layers before."""
    curves = [found["unit"]["validation"]["nonzero"] for _, found in layers]
    rises = [curve[-1] - curve[-2] for curve in curves]
    before = [max([0.0, *(b - a for a, b in pairwise(curve[:-1]))]) for curve in curves]
    shown = sum(rise > max(LEVEL, earlier) for rise, earlier in zip(rises, before, strict=True))
    each = ", ".join(f"{signed(rise, 3)} ({earlier:.3f})" for rise, earlier in zip(rises, before, strict=True))
    told = f"so in {shown} of {len(curves)}: the fraction's rise there, and the largest before it: {each}"
    return "holds" if shown == len(curves) else "in part" if shown else "does not hold", told


def _falls_by_training(layers: list[Layers]) -> tuple[Verdict, str]:
    told, held = [], []
    for name in DEFINITIONS:
        trained, untrained = (
            [_fall(found[name][which]["Rc"]) for _, found in layers] for which in ("validation", "untrained")
        )
        held.append(min(trained) > max(untrained) + CLEAR)
        told.append(f"{name}: {_range(trained)} trained, {_range(untrained)} untrained")
    return "holds" if all(held) else "in part" if any(held) else "does not hold", "R^c by " + "; ".join(told)


def _sparse_by_training(layers: list[Layers]) -> tuple[Verdict, str]:
    trained, untrained = (
        [_thinned(found["unit"][which]["nonzero"]) for _, found in layers] for which in ("validation", "untrained")
    )
    told = f"the non-zero fraction, to the lowest: {_range(trained)} trained, {_range(untrained)} untrained"
    if min(trained) > max(untrained) + CLEAR:
        return "holds", told
    return "in part" if min(trained) > max(untrained) else "does not hold", told


def _incoherent(plan: Plan, results: Results) -> Claim:
    """Of the one network whose subspaces are drawn."""
    text = "subspaces are more incoherent in later layers"
    seen = [(run, row) for run, row in results.of(plan) if "subspaces" in row.get("looks", {})]
    if not seen:
        return Claim(text, *NOT_RUN)
    run, row = seen[0]
    values = row["looks"]["subspaces"]["coherence"]
    half = len(values) // 2
    early, late = sum(values[:half]) / half, sum(values[half:]) / (len(values) - half)
    told = f"{run.model}, seed {run.recipe.seed}: mean |cos| between their directions {early:.3f} in the first half"
    verdict: Verdict = "holds" if late < (1 - CLEAR) * early else "does not hold" if late >= early else "open"
    fresh = row["looks"]["subspaces"].get("untrained")
    baseline = "" if fresh is None else f"; untrained {fresh:.3f}"
    return Claim(text, verdict, f"{told} of the layers, {late:.3f} in the second{baseline}")


def _range(falls: list[float]) -> str:
    """Falls as changes, in per cent: "−28 %", or "−28 … −31 %" over seeds and sizes, the larger change last."""
    low, high = (signed(round(-100 * fall), 0) for fall in sorted((min(falls), max(falls)), key=abs))
    return f"{low} %" if low == high else f"{low} … {high} %"
