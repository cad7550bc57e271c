"""Results that were not trained for: rows of the plan's recipes with given accuracies and curves."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from opencrate.measures import DEFINITIONS
from reproduction.claims import Claim, claims
from reproduction.plan import Plan, Run
from reproduction.results import Results, fingerprint
from reproduction.scales import plan_for

SMALL = plan_for("small", {})
HOLDS, PART, NOT, OPEN, UNTESTED = "holds", "in part", "does not hold", "open", "not run"

MADE = {
    "revision": "0123456789abcdef",
    "hardware": "an abacus",
    "started": "2026-11-16T01:02:03",
    "torch": "2.11",
    "timm": "1.0",
}


def row_of(run: Run, plan: Plan, top1: float, **more: Any) -> dict[str, Any]:
    """As `perform` returns it, with the mark that `execute` adds."""
    row = {"top1": top1, "best": top1, "epochs": run.recipe.schedule.epochs, "parameters": 1}
    row |= {"seconds": 60.0, "training_seconds": 50.0}
    return row | {"made": MADE, "recipe": fingerprint(run, plan.runs), "looks": {}} | more


def filled(plan: Plan, folder: Path, row: Callable[[Run], dict[str, Any] | None]) -> Results:
    """Results with a row for every run that `row` gives one for."""
    results = Results(folder / "results.json", plan.scale)
    for run in plan.runs:
        if (found := row(run)) is not None:
            told = {"task": run.task, "model": run.model, "variant": run.variant, "seed": run.recipe.seed}
            results.rows[run.key] = told | found
    results.write()
    return results


def curve(Rc: Iterable[float], nonzero: Iterable[float]) -> dict[str, Any]:
    """By layer, as a row keeps it."""
    Rc, nonzero = list(Rc), list(nonzero)
    return {"Rc": Rc, "Rc_std": [1.0] * len(Rc), "nonzero": nonzero, "nonzero_std": [0.01] * len(Rc), "samples": 16}


def layers(
    Rc: Iterable[float],
    untrained: Iterable[float],
    nonzero: Iterable[float] = (0.5, 0.4, 0.3, 0.4),
    definitions: Iterable[str] = tuple(DEFINITIONS),
) -> dict[str, Any]:
    """What "fig3" finds: these rates by some definitions, and rates that do not change by the others."""
    found = {}
    for name in DEFINITIONS:
        rates = (list(Rc), list(untrained)) if name in definitions else ([100.0] * 4, [100.0] * 4)
        found[name] = {which: curve(rates[which == "untrained"], nonzero) for which in ("validation", "training")}
        found[name]["untrained"] = curve(rates[1], [0.5] * 4)
    return found


def judged(
    folder: Path,
    text: str,
    accuracies: dict[tuple[str, str], Any] | None = None,
    looks: dict[str, Any] | None = None,
    plan: Plan = SMALL,
) -> Claim:
    """The claim that begins so, for accuracies by (model, variant) over seeds and looks by model over seeds."""

    def row(run: Run) -> dict[str, Any] | None:
        if run.task != plan.runs[0].task:
            return None
        values = (accuracies or {}).get((run.model, run.variant), ())
        seen = (looks or {}).get(run.model, ()) if run.variant == "light" else ()
        seed = run.recipe.seed
        if seed >= max(len(values), len(seen)):
            return None
        return row_of(run, plan, values[seed] if values else 50.0, looks=seen[seed] if seen else {})

    return next(claim for claim in claims(plan, filled(plan, folder, row)) if claim.text.startswith(text))
