"""The claims of the paper, and some of ours, each with a verdict from the results of the plan.

A difference of accuracies is clear if its 95 % interval over the seeds (Student's t) leaves out 0. A claim about one
holds if it is clear and has the right sign, does not hold if it is clear and has the wrong sign, and is open otherwise.
With one seed the interval is that of the validation pictures. A claim about layers (`depth`) is about every seed and
size; it holds in part if it does by some definitions of R^c or other measures, or, for the last layer, in some
networks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal

from opencrate.measures.verdicts import NULLS
from opencrate.recipes.imagenet import ARCHITECTURES, HYPERPARAMETERS

from .depth import CLEAR, DEPTH_CLAIMS, measured_networks
from .difference import Difference, signed
from .paper import BASE, PAIRS, PAPER, WORDS
from .plan import HALF, LIGHT, SETTINGS, Plan, plural
from .results import Results

Verdict = Literal["holds", "in part", "does not hold", "open", "not run", "not testable here"]
CLOSE = 1.0  # point of accuracy: a CRATE that is at most this far behind is close
LARGEST_COST = 1.3  # points: the largest cost of the other settings in the paper
FIRST_NULLS = {
    "compress": ("opposite", "shuffled", "common", "uniform", "noise"),
    "sparsify": ("zero", "multiple", "permuted"),
}
"""Of audits that do not say which they had."""
OUTLINES = ("attention", "code", "cut")
NOT_RUN: tuple[Verdict, str] = ("not run", "no run for it is done")


@dataclass(frozen=True)
class Claim:
    """A statement, the verdict on it, and the numbers behind the verdict."""

    text: str
    verdict: Verdict
    evidence: str


def claims(plan: Plan, results: Results) -> Iterator[Claim]:
    """In the paper's order."""
    first, variants = plan.runs[0].task, {run.variant for run in plan.runs}
    settings = {variant: words for variant, words in SETTINGS.items() if variant in variants}
    for variant, words in settings.items():
        yield _against_vit(plan, results, first, variant, f"on {first}, with {words}, a CRATE comes close to a ViT")
    for task in dict.fromkeys(run.task for run in plan.runs if run.start and run.variant == plan.main):
        yield _against_vit(plan, results, task, plan.main, f"{task}: fine-tuned, a CRATE comes close to a ViT")
    yield _by_size(plan, results, first)
    for variant, words in settings.items():
        yield from _by_depth(plan, results, variant, words)
    yield from _as_designed(plan, results)
    yield _incoherent(plan, results)
    for run in [run for run in plan.runs if "table2" in run.parts][:1]:
        yield _costs(results, run.model, first, "eta_0.5", "a step of η = 0.5 costs accuracy")
        yield _robust(plan, results, run.model, first)
        yield _costs(results, run.model, first, "mssa_tied", "tied MSSA costs accuracy")
        yield _costs(results, run.model, first, "prox_mm", "the proximal majorisation step costs accuracy")
    if any("masks" in run.parts for run in plan.runs):
        yield _outlines(plan, results)
    if plan.scale != "full":
        text = "the accuracies on ImageNet, and after transfer from it"
        yield Claim(text, "not testable here", "these are the plan of the scale full")


def pairs_of(plan: Plan) -> list[tuple[str, str]]:
    """Every CRATE of the plan that has a ViT of its size, with it."""
    crates, vits = (
        list(dict.fromkeys(run.model for run in plan.runs if run.model.startswith(kind))) for kind in ("CRATE", "ViT")
    )
    return list(zip(crates, vits, strict=True)) if len(crates) == len(vits) else PAIRS


def _against_vit(plan: Plan, results: Results, task: str, variant: str, text: str) -> Claim:
    """Close: less than a point behind, or ahead. Results with half the learning rate are listed, and decide nothing."""
    comparisons, planned = _beside_vits(plan, results, task, variant)
    claim = _judged(f"{text} of its size ({CLOSE:g} point behind at most)", comparisons, planned, "sizes")
    halved = _beside_vits(plan, results, task, HALF)[0] if variant == plan.main else []
    beside = f"; with {WORDS[HALF]}: {'; '.join(evidence for evidence, _ in halved)}" if halved else ""
    return replace(claim, evidence=claim.evidence + beside)


def _beside_vits(plan: Plan, results: Results, task: str, variant: str) -> tuple[list[tuple[str, int]], int]:
    """Evidence and 1, 0 or −1 (close, open, not close) for every pair that has run, and the number of pairs."""
    comparisons, planned = [], {run.model for run in plan.runs if (run.task, run.variant) == (task, variant)}
    pairs = [pair for pair in pairs_of(plan) if planned.issuperset(pair)]
    for crate, vit in pairs:
        one, other = results.accuracy(crate, task, variant), results.accuracy(vit, task, variant)
        if one and other:
            low, high = (difference := Difference.of(one, other)).interval
            close = 1 if low > -CLOSE else -1 if high < -CLOSE else 0
            theirs = _theirs(crate, vit, task) if variant == plan.main else ""
            comparisons.append((f"{crate} {one}, {vit} {other} ({difference}{theirs})", close))
    return comparisons, len(pairs)


def _theirs(crate: str, vit: str, task: str) -> str:
    """The paper's difference: for the same transfer, or on ImageNet if the task is another dataset."""
    pictures = task.replace("Tiny-ImageNet", "ImageNet") if " → " in task else "ImageNet"
    values = PAPER.get(pictures, {})
    if not values or (crate, vit) not in PAIRS:
        return ""
    return f"; in the paper, {pictures}, {signed(values[crate] - values[vit], 1)}"


def _by_size(plan: Plan, results: Results, task: str) -> Claim:
    crates = {run.model for run in plan.runs if run.model.startswith("CRATE")}
    crates_by_size = sorted(crates, key=lambda model: "TSBL".index(model[-1]))
    comparisons = []
    for smaller, larger in pairwise(crates_by_size):
        one, other = (results.accuracy(model, task, plan.main) for model in (smaller, larger))
        if one and other:
            difference = Difference.of(other, one)
            comparisons.append((f"{smaller} {one}, {larger} {other} ({difference})", difference.sign))
    text = f"on {task}, with {SETTINGS[plan.main]}, a larger CRATE is more accurate"
    return _judged(text, comparisons, len(crates) - 1, "steps")


def _judged(text: str, comparisons: list[tuple[str, int]], planned: int = 1, unit: str = "") -> Claim:
    """The verdict of the worst comparison (evidence, and 1, 0 or −1); with one that has not run it is open at best."""
    if not comparisons:
        return Claim(text, *NOT_RUN)
    if len(comparisons) < planned:
        comparisons = [*comparisons, (_have_run(len(comparisons), f"{planned} {unit}"), 0)]
    worst = min(sign for _, sign in comparisons)
    verdict: Verdict = "holds" if worst > 0 else "does not hold" if worst < 0 else "open"
    return Claim(text, verdict, "; ".join(words for words, _ in comparisons))


def _costs(results: Results, model: str, task: str, variant: str, text: str) -> Claim:
    base, other = results.accuracy(model, task), results.accuracy(model, task, variant)
    if base is None or other is None:
        return Claim(text, *NOT_RUN)
    difference = Difference.of(other, base)
    papers = signed((HYPERPARAMETERS | ARCHITECTURES)[variant][1] - BASE, 1)
    return _judged(text, [(f"{other} against {base} ({difference}; in the paper {papers})", -difference.sign)])


def _have_run(done: int, planned: str) -> str:
    return f"{done} of {planned} {'has' if done == 1 else 'have'} run"


def _robust(plan: Plan, results: Results, model: str, task: str) -> Claim:
    """About all settings of the table but η = 0.5."""
    others = [run.variant for run in plan.runs if "table2" in run.parts and run.variant not in (LIGHT, "eta_0.5")]
    base = results.accuracy(model, task)
    samples = {name: results.accuracy(model, task, name) for name in dict.fromkeys(others)}
    done = {name: Difference.of(sample, base) for name, sample in samples.items() if sample and base}
    text = f"other settings in the table cost little ({LARGEST_COST:g} points at most in the paper)"
    if not done:
        return Claim(text, *NOT_RUN)
    worst = min(done, key=lambda name: done[name].mean)
    intervals = [difference.interval for difference in done.values()]
    little = [1 if low > -LARGEST_COST else -1 if high < -LARGEST_COST else 0 for low, high in intervals]
    cheap = f"{little.count(1)} of {len(done)} clearly cost less than {LARGEST_COST:g}"
    evidence = f"the worst is {WORDS[worst]}: {done[worst]}; {cheap}"
    unrun = [] if len(done) == len(samples) else [(_have_run(len(done), str(len(samples))), 0)]
    return _judged(text, [(evidence, min(little)), *unrun])


def _by_depth(plan: Plan, results: Results, variant: str, words: str) -> Iterator[Claim]:
    """The claims of `depth` about every network whose layers were measured."""
    networks = measured_networks(plan, results, variant)
    count = plural(len(networks), "network")
    for text, judge in DEPTH_CLAIMS.items():
        text = text if variant == LIGHT else f"{text}, with {words}"
        if networks:
            held, evidence = judge(networks)
            verdict: Verdict = "holds" if all(held) else "in part" if any(held) else "does not hold"
            yield Claim(text, verdict, f"{count}, {evidence}")
        else:
            yield Claim(text, *NOT_RUN)


def _as_designed(plan: Plan, results: Results) -> Iterator[Claim]:
    """By the audit of one network, half by half."""
    name, audit = _first_analysis(plan, results, "audit")
    for half, what in (("compress", "attention lowers R^c"), ("sparsify", "ISTA lowers its LASSO")):
        text = f"{what} more than every null does, at every layer"
        if not audit:
            yield Claim(text, *NOT_RUN)
        elif "trained_layers" not in audit:
            yield Claim(text, "not run", f"the audit of {name} was made without nulls, so this row needs a run")
        else:
            grades = [layer[half]["grade"] for layer in audit["trained_layers"]]
            fresh = [layer[half]["grade"] for layer in audit.get("untrained_layers", [])].count("yes")
            passed = grades.count("yes")
            verdict: Verdict = "holds" if passed == len(grades) else "in part" if passed else "does not hold"
            collapses = f", collapse at {grades.count('collapse')}" if "collapse" in grades else ""
            evidence = f"{name}: yes at {passed} of {len(grades)} layers{collapses}; untrained {fresh}"
            known, today = set(audit.get("nulls", FIRST_NULLS)[half]), NULLS[half].keys()
            if not today <= known:
                verdict, few = "open", f"with {len(known & today)} of today's {len(today)} nulls"
                evidence = f"{evidence}; {few}, so this row needs a run"
            yield Claim(text, verdict, evidence)


def _incoherent(plan: Plan, results: Results) -> Claim:
    """By the subspaces of one network."""
    text = "subspaces are more incoherent in later layers"
    name, subspaces = _first_analysis(plan, results, "subspaces")
    if not subspaces:
        return Claim(text, *NOT_RUN)
    values, half = subspaces["coherence"], len(subspaces["coherence"]) // 2
    early, late = fmean(values[:half]), fmean(values[half:])
    verdict: Verdict = "holds" if late < (1 - CLEAR) * early else "does not hold" if late >= early else "open"
    evidence = f"{name}: mean |cos| between their directions {early:.3f} in the first half of the layers, {late:.3f}"
    fresh = f"; untrained {subspaces['untrained']:.3f}" if "untrained" in subspaces else ""
    return Claim(text, verdict, f"{evidence} in the second{fresh}")


def _outlines(plan: Plan, results: Results) -> Claim:
    """By the best of attention, code and cut; picture by picture, beside the prior for the middle."""
    comparisons = []
    for run, row in results.of(plan):
        methods = row.get("looks", {}).get("masks", {})
        if run.model.startswith("CRATE") and methods:
            name = max(OUTLINES, key=lambda name: methods[name]["iou"]["mean"])
            iou, above = methods[name]["iou"], methods[name]["above_centre"]
            sign = 1 if above["low"] > 0 else -1 if above["high"] < 0 else 0
            low, high = (signed(100 * above[end], 1) for end in ("low", "high"))
            comparisons.append((f"{run.model} by {name} {100 * iou['mean']:.1f} % ({low} … {high})", sign))
    text = "a CRATE outlines pets without training for it, better than a prior for the middle (IoU)"
    planned = sum("masks" in run.parts and run.model.startswith("CRATE") for run in plan.runs)
    return _judged(text, comparisons, planned, "networks")


def _first_analysis(plan: Plan, results: Results, look: str) -> tuple[str, dict[str, Any]]:
    """The first network that has this analysis, and its result; ("", {}) if none has."""
    analysed = ((run, row["looks"][look]) for run, row in results.of(plan) if look in row.get("looks", {}))
    return next(((f"{run.model}, seed {run.recipe.seed}", analysis) for run, analysis in analysed), ("", {}))
