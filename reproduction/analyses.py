"""Analyses of a trained network: its layers, tokens and subspaces, and the audit. Each returns what the row keeps."""

import logging
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from opencrate import figures
from opencrate.distributed import device_named
from opencrate.evaluation import measure_checkpoint
from opencrate.evaluation.segmentation import read_examples, segment
from opencrate.figures.canvas import Figure
from opencrate.masks import rows_of
from opencrate.measures import DEFINITIONS, LayerTable, layerwise_by
from opencrate.measures.audit import HALVES, audit
from opencrate.measures.geometry import normalised_gram
from opencrate.measures.verdicts import NULLS, Verdict, summary, verdicts
from opencrate.report import Auditing
from opencrate.run_recipe import load_network
from opencrate.settings import Measuring
from opencrate.sources import data_for
from opencrate.stack import trajectory
from opencrate.study import Study, evenly_spaced, open_study

from .place import FIGURES, Place
from .plan import REAL, Run

log = logging.getLogger("opencrate")

SHOWN_EPOCHS = 6  # epochs of a run whose layers figure 4 shows
AUDIT_SAMPLES = 64  # pictures: an audit needs many decompositions of each


def analyse(run: Run, place: Place) -> dict[str, Any]:
    """All analyses of the run's network that the plan asks for, by name."""
    folder = place.folder(run.key)
    looks = {REAL: _real_accuracy(run, folder, place)} if REAL in run.looks else {}
    looks |= {name: measure(run, place) for name, measure in MEASURES.items() if name in run.looks}
    names = [name for name in run.looks if name in ANALYSES]
    if names:
        settings = Auditing(samples=place.samples, batch=min(place.samples, 64))
        study = open_study(str(folder), settings, device_named(place.device), training=True)
        looks |= {name: ANALYSES[name](study, place) for name in names}
    return looks


def _real_accuracy(run: Run, folder: Path, place: Place) -> dict[str, Any]:
    """Accuracy by ImageNet's reassessed labels (ReaL), or why there is none: they need its original file names."""
    settings = Measuring(run.recipe.data, real=True, layers=None, precision=run.recipe.precision, device=place.device)
    try:
        return {"top1": round(measure_checkpoint(str(folder), settings)["real"], 2)}
    except ValueError as error:
        log.warning("%s has no ReaL accuracy: %s", run.key, error)
        return {"why": str(error)}


def _layers(study: Study, place: Place) -> dict[str, Any]:
    """R^c by every definition and the non-zero fraction, layer by layer, of the trained and an untrained network."""
    batches = {source.name.split()[0]: (study.model, study.batches(source)) for source in study.pictures}
    if study.untrained is not None:
        batches["untrained"] = (study.untrained, study.batches())
    curves: dict[str, Any] = {name: {} for name in DEFINITIONS}
    for label, (model, pictures) in batches.items():
        for table in layerwise_by(model, pictures, tuple(DEFINITIONS), resamples=0):
            curves[table.definition.name][label] = _means(table)
    return curves


def _epochs(study: Study, place: Place) -> dict[str, Any]:
    """The same at several epochs, as the run recorded it."""
    probed = study.probed()
    return {str(epoch): _means(probed[epoch]) for epoch in evenly_spaced(sorted(probed), SHOWN_EPOCHS)}


def _tokens(study: Study, place: Place) -> dict[str, Any]:
    """Heat maps of one picture's tokens: a random part of the matrix after every layer, as in the paper."""
    with torch.inference_mode():
        steps = trajectory(study.model, study.gallery.images[:1])
        tokens = {f"after layer {step.number}": step.Z_next[0].float().cpu() for step in steps}
    return _saved(figures.heat_maps(tokens, seed=0), place, "tokens")


def _subspaces(study: Study, place: Place) -> dict[str, Any]:
    """A figure of the cosines between the subspaces' directions, and the coherence of every layer."""
    bases = {f"layer {i}": U for i, U in enumerate(_bases(study.model), 1)}
    saved = _saved(figures.subspace_grams(bases, seed=0), place, "subspaces")
    result = saved | {"coherence": [round(_coherence(U), 4) for U in bases.values()]}
    if study.untrained is not None:
        result["untrained"] = round(fmean(map(_coherence, _bases(study.untrained))), 4)
    return result


def _bases(model: Any) -> list[Tensor]:
    return [layer.U.detach().float().cpu() for layer in model.layers]


def _coherence(U: Tensor) -> float:
    """The mean of |cos| between directions of different subspaces."""
    k, _, p = U.shape
    others = ~torch.block_diag(*[torch.ones(p, p, dtype=torch.bool)] * k).bool()
    return normalised_gram(U).abs()[others].mean().item()


def _audit(study: Study, place: Place) -> dict[str, Any]:
    """What an audit of the trained and of an untrained network says: sentences, and every half of every layer."""
    samples = min(AUDIT_SAMPLES, study.samples)
    audits = [
        audit(network, study.pictures[0].batches(samples, study.batch))
        for network in (study.model, study.untrained)
        if network is not None
    ]
    networks = dict(zip(("trained", "untrained"), audits, strict=False))
    cosines = {
        name: [float(f"{cosine:.4g}") for cosine in networks["trained"].values[name].mean(-1)]
        for name in ("gradient_cosine", "unit_cosine")
    }
    nulls = {half: list(known) for half, known in NULLS.items()}
    layers = {f"{name}_layers": [_layer(verdict) for verdict in verdicts(one)] for name, one in networks.items()}
    return {"samples": audits[0].samples, "summary": list(summary(*audits)), "nulls": nulls} | layers | cosines


def _layer(verdict: Verdict) -> dict[str, Any]:
    """Of each half its grade, how its aim changes, and the layer less the null that is hardest to beat, in per cent."""
    result: dict[str, Any] = {"word": verdict.word}
    for half in HALVES:
        judgement = getattr(verdict, half)
        result[half] = {"grade": judgement.grade}
        if judgement.nulls:
            change, (mean, low, high) = judgement.change, astuple(judgement.difference)
            result[half] |= {"change": five_digits(change.mean), "best": judgement.best}
            result[half] |= {"difference": five_digits(mean), "interval": [five_digits(low), five_digits(high)]}
    return result


def _means(table: LayerTable) -> dict[str, Any]:
    """Means and standard deviations over the samples, layer by layer."""
    names = ("Rc", "Rc_std", "nonzero", "nonzero_std")
    return {name: [five_digits(row[name]) for row in table.rows] for name in names} | {"samples": table.samples}


def five_digits(value: float | None) -> float | None:
    """Round to five digits, which is enough for any table or figure."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _saved(figure: Figure, place: Place, name: str) -> dict[str, Any]:
    png, _ = figures.save(figure, place.out / FIGURES, name)
    return {"figure": png.name}


def _probe(run: Run, place: Place) -> dict[str, Any]:
    """Accuracy by frozen features of the network before it is tuned to the run's pictures."""
    data = replace(run.recipe.data, max_decode_failures=1.0)
    folder = place.folder(run.start or run.key)
    wanted = Measuring(data, knn=20, linear=True, layers=None, precision=run.recipe.precision, device=place.device)
    measured = measure_checkpoint(str(folder), wanted)
    return {name: round(measured[name], 2) for name in ("knn_20", "linear")}


def _masks(run: Run, place: Place) -> dict[str, Any]:
    """IoU of masks by attention, code and cut, with intervals, and what was chosen for each."""
    network = load_network(place.folder(run.key)).to(device_named(place.device))
    data, root = data_for(network), Path(run.masks).expanduser()
    choosing, validation = (
        read_examples(root, split, data, count) for split, count in ((data.train, 200), (data.validation, 0))
    )
    rows = rows_of(run.model, segment(network, choosing, validation))
    return {row["method"]: {name: row[name] for name in ("iou", "above_centre", "choice")} for row in rows}


MEASURES: dict[str, Callable[[Run, Place], Any]] = {"probe": _probe, "masks": _masks}
"""Analyses that open a network, and pictures, of their own."""
ANALYSES: dict[str, Callable[[Study, Place], Any]] = {
    "fig3": _layers,
    "fig4": _epochs,
    "tokens": _tokens,
    "subspaces": _subspaces,
    "audit": _audit,
}
