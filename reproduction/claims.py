"""Claims of the paper, and of ours, each held to what the plan's runs found.

A difference of accuracies is clear if its 95 % interval over the seeds leaves 0 out, by Student's t; a claim about one
holds if it is clear and has the right sign, does not hold if it is clear and has the wrong one, and is open in between.
Of one seed, the interval is that of the validation pictures. A claim about layers (`depth`) is one about every seed and
every size; it holds in part if it does by some definitions of R^c or other measures, or, of the last layer, in some.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal

from opencrate.recipes.imagenet import ARCHITECTURES, HYPERPARAMETERS

from .depth import CLEAR, DEPTH, opened
from .difference import Difference, signed
from .paper import BASE, PAIRS, PAPER, WORDS
from .plan import HALF, LIGHT, SETTINGS, Plan, plural
from .results import Results

__all__ = ["Claim", "claims", "pairs_of"]

Verdict = Literal["holds", "in part", "does not hold", "open", "not run", "not testable here"]
CLOSE = 1.0  # point of accuracy: no further behind than this is close
MOST = 1.3  # points: what the paper's other settings cost at most
NOT_RUN: tuple[Verdict, str] = ("not run", "no run for it is done")


@dataclass(frozen=True)
class Claim:
    """What the paper says, whether it holds, and what says so."""

    text: str
    verdict: Verdict
    evidence: str


def claims(plan: Plan, results: Results) -> Iterator[Claim]:
    """In the paper's order."""
    first, variants = plan.runs[0].task, {run.variant for run in plan.runs}
    settings = {variant: words for variant, words in SETTINGS.items() if variant in variants}
    for variant, words in settings.items():
        yield _against_vit(plan, results, first, variant, f"on {first}, with {words}, a CRATE comes close to a ViT")
    for task in dict.fromkeys(run.task for run in plan.runs if run.start and run.variant == LIGHT):
        yield _against_vit(plan, results, task, LIGHT, f"{task}: fine-tuned, a CRATE comes close to a ViT")
    yield _by_size(plan, results, first)
    for variant, words in settings.items():
        yield from _by_depth(plan, results, variant, words)
    yield _as_designed(plan, results)
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
    if plan.scale == "full":
        return PAIRS
    return list(zip(crates, vits, strict=True))


def _against_vit(plan: Plan, results: Results, task: str, variant: str, text: str) -> Claim:
    """Close: less than a point behind, or ahead. Half the learning rate is told of beside it, and decides nothing."""
    found, planned = _beside_vits(plan, results, task, variant)
    claim = _judged(f"{text} of its size ({CLOSE:g} point behind at most)", found, planned, "sizes")
    halved = _beside_vits(plan, results, task, HALF)[0] if variant == LIGHT else []
    beside = f"; with {WORDS[HALF]}: {'; '.join(told for told, _ in halved)}" if halved else ""
    return replace(claim, evidence=claim.evidence + beside)


def _beside_vits(plan: Plan, results: Results, task: str, variant: str) -> tuple[list[tuple[str, int]], int]:
    """Every CRATE that has run beside the ViT of its size, and 1, 0 or −1 for close; and how many are to be run."""
    found, planned = [], {run.model for run in plan.runs if (run.task, run.variant) == (task, variant)}
    pairs = [pair for pair in pairs_of(plan) if planned.issuperset(pair)]
    for crate, vit in pairs:
        one, other = results.accuracy(crate, task, variant), results.accuracy(vit, task, variant)
        if one and other:
            low, high = (difference := Difference.of(one, other)).interval
            close = 1 if low > -CLOSE else -1 if high < -CLOSE else 0
            theirs = _theirs(crate, vit, task) if variant == LIGHT else ""
            found.append((f"{crate} {one}, {vit} {other} ({difference}{theirs})", close))
    return found, len(pairs)


def _theirs(crate: str, vit: str, task: str) -> str:
    """The paper's difference: of the same transfer, or on ImageNet where another set takes its place."""
    pictures = task if " → " in task else "ImageNet"
    values = PAPER.get(pictures, {})
    if not values or (crate, vit) not in PAIRS:
        return ""
    return f"; in the paper, {pictures}, {signed(values[crate] - values[vit], 1)}"


def _by_size(plan: Plan, results: Results, task: str) -> Claim:
    crates = dict.fromkeys(run.model for run in plan.runs if run.model.startswith("CRATE"))
    found = []
    for smaller, larger in pairwise(crates):
        one, other = results.accuracy(smaller, task), results.accuracy(larger, task)
        if one and other:
            difference = Difference.of(other, one)
            found.append((f"{smaller} {one}, {larger} {other} ({difference})", difference.sign))
    text = f"on {task}, with the paper's settings, a larger CRATE is more accurate"
    return _judged(text, found, len(crates) - 1, "steps")


def _judged(text: str, found: list[tuple[str, int]], planned: int = 1, of: str = "") -> Claim:
    """Of several comparisons, each with its evidence, and 1, 0 or −1: the worst decides, and one that has not run."""
    if not found:
        return Claim(text, *NOT_RUN)
    if len(found) < planned:
        found = [*found, (_have_run(len(found), f"{planned} {of}"), 0)]
    worst = min(sign for _, sign in found)
    verdict: Verdict = "holds" if worst > 0 else "does not hold" if worst < 0 else "open"
    return Claim(text, verdict, "; ".join(words for words, _ in found))


def _costs(results: Results, model: str, task: str, variant: str, text: str) -> Claim:
    base, other = results.accuracy(model, task), results.accuracy(model, task, variant)
    if base is None or other is None:
        return Claim(text, *NOT_RUN)
    difference = Difference.of(other, base)
    papers = signed((HYPERPARAMETERS | ARCHITECTURES)[variant][1] - BASE, 1)
    return _judged(text, [(f"{other} against {base} ({difference}; in the paper {papers})", -difference.sign)])


def _have_run(done: int, of: str) -> str:
    return f"{done} of {of} {'has' if done == 1 else 'have'} run"


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
    ends = [difference.interval for difference in done.values()]
    little = [1 if low > -MOST else -1 if high < -MOST else 0 for low, high in ends]
    told = (
        f"the worst is {WORDS[worst]}: {done[worst]}; {little.count(1)} of {len(done)} clearly cost less than {MOST:g}"
    )
    unrun = [] if len(done) == len(found) else [(_have_run(len(done), str(len(found))), 0)]
    return _judged(text, [(told, min(little)), *unrun])


def _by_depth(plan: Plan, results: Results, variant: str, words: str) -> Iterator[Claim]:
    """What `depth` says of every network that was opened."""
    networks = opened(plan, results, variant)
    seen = plural(len(networks), "network")
    for text, judge in DEPTH.items():
        text = text if variant == LIGHT else f"{text}, with {words}"
        if networks:
            held, told = judge(networks)
            yield Claim(text, "holds" if all(held) else "in part" if any(held) else "does not hold", f"{seen}, {told}")
        else:
            yield Claim(text, *NOT_RUN)


def _as_designed(plan: Plan, results: Results) -> Claim:
    """By the audit of one network."""
    text, (name, found) = "every layer does what it was designed to do", _looked(plan, results, "audit")
    if not found:
        return Claim(text, *NOT_RUN)
    words = [told.partition(":")[0] for told in found["verdicts"]]
    counts = ", ".join(f"{word} at {words.count(word)}" for word in ("yes", "partly", "no") if word in words)
    attention, ista = (sum(change < 0 for change in found["trained"][half]) for half in ("compress", "sparsify"))
    verdict: Verdict = "holds" if set(words) == {"yes"} else "does not hold" if set(words) == {"no"} else "in part"
    told = f"{name}, {len(words)} layers: {counts}; attention lowers R^c of tokens at unit length at {attention}"
    return Claim(text, verdict, f"{told}, ISTA its LASSO at {ista}")


def _incoherent(plan: Plan, results: Results) -> Claim:
    """Of the one network whose subspaces are drawn."""
    text, (name, found) = "subspaces are more incoherent in later layers", _looked(plan, results, "subspaces")
    if not found:
        return Claim(text, *NOT_RUN)
    values, half = found["coherence"], len(found["coherence"]) // 2
    early, late = fmean(values[:half]), fmean(values[half:])
    verdict: Verdict = "holds" if late < (1 - CLEAR) * early else "does not hold" if late >= early else "open"
    told = f"{name}: mean |cos| between their directions {early:.3f} in the first half of the layers, {late:.3f}"
    fresh = f"; untrained {found['untrained']:.3f}" if "untrained" in found else ""
    return Claim(text, verdict, f"{told} in the second{fresh}")


def _looked(plan: Plan, results: Results, look: str) -> tuple[str, dict[str, Any]]:
    """The first network in which it was looked at, and what was found; nothing where there is none."""
    seen = ((run, row["looks"][look]) for run, row in results.of(plan) if look in row.get("looks", {}))
    return next(((f"{run.model}, seed {run.recipe.seed}", found) for run, found in seen), ("", {}))
