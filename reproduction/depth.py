"""R^c and sparsity by depth in every network whose layers were measured: claims, and a table of changes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from opencrate.measures import DEFINITIONS

from .difference import signed
from .plan import Plan, plural
from .results import Results

CLEAR = 0.1  # relative change of R^c, the non-zero fraction or the coherence of subspaces that counts
LEVEL = 0.02  # rise of the non-zero fraction that counts
BOTH = ("validation", "untrained")
"""The trained and an untrained network, both on validation pictures."""


@dataclass(frozen=True)
class LayerCurves:
    """A network's curves over its layers: `curves[definition][which]`, with `which` as in `BOTH`."""

    model: str
    curves: dict[str, dict[str, dict[str, list[float]]]]

    def rates(self, definition: str, which: str = "validation") -> list[float]:
        return self.curves[definition][which]["Rc"]

    def nonzero(self, which: str = "validation") -> list[float]:
        return self.curves["unit"][which]["nonzero"]


def measured_networks(plan: Plan, results: Results, variant: str) -> list[LayerCurves]:
    """Every CRATE that was trained from scratch by this variant, size by size, if no number is missing."""
    networks = []
    for run, row in results.of(plan):
        curves = row.get("looks", {}).get("fig3")
        if run.variant == variant and run.start is None and curves and _is_complete(curves):
            networks.append(LayerCurves(run.model, curves))
    order = list(dict.fromkeys(run.model for run in plan.runs))
    return sorted(networks, key=lambda network: order.index(network.model))


def _is_complete(curves: dict[str, Any]) -> bool:
    tables = [curves.get(name, {}).get(which) for name in DEFINITIONS for which in BOTH]
    return all(
        table and None not in table["Rc"] + table["nonzero"] and min(table["Rc"][0], table["nonzero"][0]) > 0
        for table in tables
    )


Judged = tuple[list[bool], str]
"""Whether each part of a claim holds, and the evidence."""


def _fall(curve: list[float], start: int = 0) -> float:
    """The relative fall from layer `start` to the last; 0 if it starts at 0."""
    return 1 - curve[-1] / curve[start] if curve[start] else 0.0


def _later_fall(curve: list[float]) -> float:
    """The fall from the second layer, if there are more than two."""
    return _fall(curve, 1) if len(curve) > 2 else _fall(curve)


def _thinned(curve: list[float]) -> float:
    """The relative fall of the non-zero fraction from the first layer to the lowest of the second half."""
    return 1 - min(curve[len(curve) // 2 :]) / curve[0]


def _rate_falls(networks: list[LayerCurves]) -> Judged:
    """From the first layer to the last, and from the second too: a fall at one layer is not one with depth."""
    held, evidence = [], []
    for name in DEFINITIONS:
        falls, later = ([fall(network.rates(name)) for network in networks] for fall in (_fall, _later_fall))
        held.append(min(falls + later) > CLEAR)
        evidence.append(f"by {name} {_percent(falls)} ({_percent(later)})")
    return held, f"from the first layer to the last (from the second): {'; '.join(evidence)}"


def _sparser(networks: list[LayerCurves]) -> Judged:
    falls, fresh = ([_thinned(network.nonzero(which)) for network in networks] for which in BOTH)
    last = [_fall(network.nonzero()) for network in networks]
    evidence = f"from the first layer to the lowest of the second half {_percent(falls)} (untrained {_percent(fresh)})"
    return [min(falls) > CLEAR], f"{evidence}, to the last {_percent(last)}"


def _last_layer(networks: list[LayerCurves]) -> Judged:
    """It is an exception if the non-zero fraction rises, and more than between any two layers before."""
    held, evidence = [], []
    for model, group in groupby(networks, key=lambda network: network.model):
        rises = []
        for network in group:
            *before, last = (b - a for a, b in pairwise(network.nonzero()))
            held.append(last > max([LEVEL, *before]))
            rises.append(f"{signed(last, 3)} ({max([0.0, *before]):.3f})")
        evidence.append(f"{model} {', '.join(rises)}")
    return held, f"so in {sum(held)} of {len(held)}; its rise, and the largest before it: {'; '.join(evidence)}"


def _falls_by_training(networks: list[LayerCurves]) -> Judged:
    held, evidence = [], []
    for name in DEFINITIONS:
        trained, fresh = ([_fall(network.rates(name, which)) for network in networks] for which in BOTH)
        held.append(_beyond(trained, fresh))
        evidence.append(f"by {name} {_percent(trained)} (untrained {_percent(fresh)})")
    return held, f"from the first layer to the last: {'; '.join(evidence)}"


def _sparse_by_training(networks: list[LayerCurves]) -> Judged:
    held, evidence = [], []
    for words, fall in (("the lowest of the second half", _thinned), ("the last layer", _fall)):
        trained, fresh = ([fall(network.nonzero(which)) for network in networks] for which in BOTH)
        held.append(_beyond(trained, fresh))
        evidence.append(f"to {words} {_percent(trained)} (untrained {_percent(fresh)})")
    return held, f"from the first layer {'; '.join(evidence)}"


def _beyond(trained: list[float], fresh: list[float]) -> bool:
    """Whether every network falls, and by more than the untrained one of its size."""
    return all(one > max(other, 0.0) + CLEAR for one, other in zip(trained, fresh, strict=True))


DEPTH_CLAIMS: dict[str, Callable[[list[LayerCurves]], Judged]] = {
    "R^c falls with depth": _rate_falls,
    "sparsity improves with depth (the non-zero fraction falls)": _sparser,
    "the last layer is an exception: it is less sparse than the one before": _last_layer,
    "training is what makes R^c fall": _falls_by_training,
    "training is what makes it sparse": _sparse_by_training,
}
"""Claims about every measured network, and the functions that judge them."""


def _percent(falls: list[float]) -> str:
    """Falls as changes: "−28 %", or "−28 … −31 %" over networks; a fall comes before a rise."""
    changes = sorted(round(-100 * fall) for fall in falls)
    low, high = changes[0], changes[-1]
    if high < 0:
        low, high = high, low
    return f"{signed(low, 0)} %" if low == high else f"{signed(low, 0)} … {signed(high, 0)} %"


CHANGE_COLUMNS = (
    "first → last",
    "second → last",
    "first → ¾",
    "steps that fall",
    "untrained, first → last",
    "untrained, second → last",
)


def change_rows(networks: list[LayerCurves]) -> Iterator[list[str]]:
    """How R^c by each definition and the non-zero fraction change over the layers, for every size over its seeds."""
    for model, group in groupby(networks, key=lambda network: network.model):
        seeds = list(group)
        name = f"{model} ({plural(len(seeds), 'seed')})"
        for definition in DEFINITIONS:
            curves, fresh = ([one.rates(definition, which) for one in seeds] for which in BOTH)
            yield [f"{name}: R^c, {definition}", *_changes(curves, fresh)]
        curves, fresh = ([one.nonzero(which) for one in seeds] for which in BOTH)
        yield [f"{name}: non-zero", *_changes(curves, fresh)]


def _changes(trained: list[list[float]], fresh: list[list[float]]) -> list[str]:
    falls, fresh_falls = (
        [_percent([fall(curve) for curve in curves]) for fall in (_fall, _later_fall)] for curves in (trained, fresh)
    )
    early = _percent([_fall(curve[: max(1, 3 * len(curve) // 4)]) for curve in trained])
    falling = sorted(sum(b < a for a, b in pairwise(curve)) for curve in trained)
    steps = f"{falling[0]} to {falling[-1]}" if falling[0] < falling[-1] else f"{falling[0]}"
    return [*falls, early, f"{steps} of {len(trained[0]) - 1}", *fresh_falls]
