"""One run of the plan: train its recipe, open its network, and say what was found."""

import hashlib
import json
import logging
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import filelock
import torch
from torch import Tensor

from opencrate.distributed import device_named
from opencrate.evaluation.measure import Measuring, measure_checkpoint
from opencrate.figures import curves as figures
from opencrate.files import write_atomically
from opencrate.layers import Layer
from opencrate.measures import DEFINITIONS, LayerTable, layerwise_by
from opencrate.measures.audit import HALVES, audit
from opencrate.measures.geometry import normalised_gram
from opencrate.models import CRATE
from opencrate.recipes import Recipe, differences, read_recipe, recipe_text
from opencrate.report import Auditing
from opencrate.run_folder import RunFolder
from opencrate.stack import trajectory
from opencrate.study import Study, open_study, some
from opencrate.training import Options, train

from .plan import REAL, Run
from .results import placeless

__all__ = ["FAREWELL", "LOG", "Place", "learning_curve", "perform"]

log = logging.getLogger("opencrate")

RUNS, FIGURES, UNKNOWN = "runs", "figures", "unknown"
LOG, START = "log.txt", "start.sha256"  # of a run: what it printed, and of which weights it was made
FAREWELL = 120  # seconds that a process has to save a checkpoint
EVALUATIONS = 10  # of a run
SAVES = 5  # checkpoints of a run
EPOCHS = 6  # of which the layers are shown
AUDITED = 64  # pictures, for an audit takes many decompositions of each


@dataclass(frozen=True)
class Place:
    """Where the plan is carried out.

    Args:
        out: the folder of the whole plan.
        device: of this run.
        processes: of this run, by torchrun.
        samples: pictures on which layers are measured.
    """

    out: Path
    device: str = "auto"
    processes: int = 1
    samples: int = 64

    def folder(self, key: str) -> Path:
        return self.out.resolve() / RUNS / key

    def has_network(self, key: str) -> bool:
        return _has_network(self.folder(key))


def _has_network(folder: Path) -> bool:
    return (folder / "model" / "config.json").is_file()


def perform(run: Run, place: Place) -> dict[str, Any]:
    """Train, look, and return the row. What was done of it before is not done again."""
    began, folder, recipe = time.monotonic(), place.folder(run.key), run.recipe
    if run.start is not None:
        recipe = replace(recipe, model=replace(recipe.model, start=str(place.folder(run.start))))
    folder.mkdir(parents=True, exist_ok=True)
    _wait_for_its_last_process(folder)
    _clear_another(folder, recipe)
    result = _finished(folder) or _trained(recipe, folder, place)
    row = {
        "top1": result["top1"],
        "best": result["best"]["top1"],
        "epochs": result["epochs"],
        "parameters": result["parameters"],
        "pictures": result.get("data", recipe.data.name),
        "training_seconds": result["training_seconds"],
        "made": _made(folder),
        "curve": learning_curve(folder),
        "looks": _looks(run, folder, place),
    }
    spent = result["training_seconds"] + result["start_up_seconds"]  # maybe before this process
    return row | {"seconds": round(max(time.monotonic() - began, spent), 1)}


def learning_curve(folder: Path) -> dict[str, list[Any]]:
    """Accuracy and loss at the epochs that were evaluated, and in them those of training pictures.

    That is on these as they were varied, the loss with label smoothing; where they are mixed, there is no accuracy.
    """
    run, before, windows = RunFolder(folder), 0, dict[tuple[str, int], list[tuple[float, int]]]()
    for line in run.recorded("train"):
        for name in ("loss", "accuracy"):
            if line.get(name) is not None:
                windows.setdefault((name, line["epoch"]), []).append((line[name], line["step"] - before))
        before = line["step"]
    found = list(run.recorded("validation"))
    curve = {name: [line[name] for line in found] for name in ("epoch", "top1", "loss")}
    for name, kept, factor in (("loss", "training_loss", 1), ("accuracy", "training_top1", 100)):
        if found and all((name, line["epoch"]) in windows for line in found):
            curve[kept] = [factor * fmean(*zip(*windows[name, line["epoch"]], strict=True)) for line in found]
    return {name: [_digits(value) for value in values] for name, values in curve.items()}


def _digits(value: float | None) -> float | None:
    """Five of them: enough for any table or figure."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _made(folder: Path) -> dict[str, Any]:
    """By which revision, on what, when; of a run whose record was damaged and deleted only when it ended."""
    run = RunFolder(folder)
    if not run.record.is_file():
        ended = datetime.fromtimestamp(run.result.stat().st_mtime, UTC).isoformat(timespec="seconds")
        return {"revision": None, "hardware": UNKNOWN, "started": ended, "torch": UNKNOWN, "timm": UNKNOWN}
    made = json.loads(run.record.read_text(encoding="utf-8"))[-1]
    return {
        "revision": made["git"],
        "hardware": ", ".join(made["hardware"]["gpus"]) or f"{made['hardware']['cpus']} CPU cores",
        "started": made["started"],
        "torch": made["versions"]["torch"],
        "timm": made["versions"]["timm"],
    }


def _wait_for_its_last_process(folder: Path) -> None:
    """If a command was killed, its process may still be about to save this run."""
    with suppress(filelock.Timeout), filelock.FileLock(RunFolder(folder).lock, timeout=FAREWELL):
        pass


def _clear_another(folder: Path, recipe: Recipe) -> None:
    """Remove a run of the same name by another recipe, or from another network: an older plan's. Its log stays.

    Its recipe goes last: whoever is killed on the way finds it, and removes the rest. Pictures and plans may move: then
    the recipe is written down as it is now.
    """
    file, started, start = folder / "recipe.yaml", folder / START, _digest(recipe.model.start)
    if file.is_file():
        another = started.is_file() and started.read_text(encoding="utf-8") != start
        if another or differences(_anywhere(read_recipe(file)), _anywhere(recipe)):
            for inside in sorted(folder.iterdir(), key=lambda inside: inside == file):
                if inside.is_dir():
                    shutil.rmtree(inside)
                elif inside not in (folder / LOG, RunFolder(folder).lock):
                    inside.unlink()
        else:
            write_atomically(file, recipe_text(recipe))
    if start:
        write_atomically(started, start)


def _digest(run: str) -> str:
    """Of the network that a run ended with; empty for none."""
    file = Path(run) / "model" / "model.safetensors"
    if not run or not file.is_file():
        return ""
    with file.open("rb") as weights:
        return hashlib.file_digest(weights, "sha256").hexdigest()


def _anywhere(recipe: Recipe) -> Recipe:
    """The same, wherever its pictures and the network that it starts from lie."""
    return replace(placeless(recipe), model=replace(recipe.model, start="CHECKPOINT"))


def _finished(folder: Path) -> dict[str, Any] | None:
    """The result of a run that is done, whose run.json stays that of those who did it; not if its network is gone."""
    run = RunFolder(folder)
    if not _has_network(folder):
        run.result.unlink(missing_ok=True)
    return run.finished()


def _trained(recipe: Recipe, folder: Path, place: Place) -> dict[str, Any]:
    often = recipe.schedule.epochs // EVALUATIONS or 1
    options = Options(
        out=folder,
        device=place.device,
        evaluate_epochs=often,
        save_epochs=recipe.schedule.epochs // SAVES or 1,
        tensorboard=False,
    )
    if place.processes == 1:
        return train(recipe, options)
    file = folder.with_name(f"{folder.name}.yaml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(recipe_text(recipe), encoding="utf-8")
    command = [sys.executable, "-m", "opencrate", "train", str(file), "--out", str(folder)]
    command += ["--processes", str(place.processes), "--evaluate-epochs", str(often), "--no-tensorboard"]
    command += ["--save-epochs", str(options.save_epochs)]
    code, result = _to_its_end(command), RunFolder(folder).finished()
    if code or result is None:
        raise ValueError(f"torchrun ended with code {code}, which {LOG} in {folder} tells more of")
    return result


def _to_its_end(command: list[str]) -> int:
    """Run a command that saves what it is at when it is asked to stop, which it is if this process is."""
    with subprocess.Popen(command) as process:
        before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            return process.wait()
        finally:
            signal.signal(signal.SIGTERM, before)


def _looks(run: Run, folder: Path, place: Place) -> dict[str, Any]:
    found = {REAL: _reassessed(run, folder, place)} if REAL in run.looks else {}
    wanted = [name for name in run.looks if name != REAL]
    if wanted:
        settings = Auditing(samples=place.samples, batch=min(place.samples, 64))
        study = open_study(str(folder), settings, device_named(place.device), training=True)
        found |= {name: LOOKS[name](study, place) for name in wanted}
    return found


def _reassessed(run: Run, folder: Path, place: Place) -> dict[str, Any]:
    """Accuracy by ImageNet's reassessed labels, or why there is none: they go by the names of its 50,000 files."""
    wanted = Measuring(run.recipe.data, real=True, layers=None, precision=run.recipe.precision, device=place.device)
    try:
        return {"top1": round(measure_checkpoint(str(folder), wanted)["real"], 2)}
    except ValueError as error:
        log.warning("%s has no ReaL accuracy: %s", run.key, error)
        return {"why": str(error)}


def _layers(study: Study, place: Place) -> dict[str, Any]:
    """R^c and non-zero fraction by layer, by every definition, of trained and untrained networks."""
    batches = {source.name.split()[0]: (study.model, study.batches(source)) for source in study.pictures}
    if study.untrained is not None:
        batches["untrained"] = (study.untrained, study.batches())
    found: dict[str, Any] = {name: {} for name in DEFINITIONS}
    for label, (model, pictures) in batches.items():
        for table in layerwise_by(model, pictures, tuple(DEFINITIONS), resamples=0):
            found[table.definition.name][label] = _short(table)
    return found


def _epochs(study: Study, place: Place) -> dict[str, Any]:
    """The same over the epochs, as the run measured itself."""
    probed = study.probed()
    return {str(epoch): _short(probed[epoch]) for epoch in some(sorted(probed), EPOCHS)}


def _tokens(study: Study, place: Place) -> dict[str, Any]:
    """Heat maps of a picture's tokens: a random part of the matrix after every layer, as in the paper."""
    with torch.inference_mode():
        steps = trajectory(study.model, study.gallery.images[:1])
        every = {f"after layer {step.number}": step.Z_next[0].float().cpu() for step in steps}
    return _saved(figures.heat_maps(every, seed=0), place, "tokens")


def _subspaces(study: Study, place: Place) -> dict[str, Any]:
    """Cosines between the subspaces' directions, and their coherence by layer."""
    every = {f"layer {i}": U for i, U in enumerate(_bases(study.model), 1)}
    saved = _saved(figures.subspace_grams(every, seed=0), place, "subspaces")
    found = saved | {"coherence": [round(_coherence(U), 4) for U in every.values()]}
    if study.untrained is not None:
        found["untrained"] = round(fmean(map(_coherence, _bases(study.untrained))), 4)
    return found


def _bases(model: CRATE) -> list[Tensor]:
    return [layer.U.detach().float().cpu() for layer in cast("list[Layer]", list(model.blocks))]


def _coherence(U: Tensor) -> float:
    """The mean of |cos| between directions of different subspaces: of what the figure shows."""
    k, _, p = U.shape
    others = ~torch.block_diag(*[torch.ones(p, p, dtype=torch.bool)] * k).bool()
    return normalised_gram(U).abs()[others].mean().item()


def _audited(study: Study, place: Place) -> dict[str, Any]:
    """What every half-step does, as relative changes, beside what the untrained network's do; and the verdicts."""
    networks, samples = {"trained": study.model, "untrained": study.untrained}, min(AUDITED, study.samples)
    found = {
        name: audit(network, study.pictures[0].batches(samples, study.batch))
        for name, network in networks.items()
        if network is not None
    }
    changes = {
        name: {half: [float(f"{change:.4g}") for change in audited.changes(half).mean(-1)] for half in HALVES}
        for name, audited in found.items()
    }
    cosines = {
        name: [float(f"{cosine:.4g}") for cosine in found["trained"].values[name].mean(-1)]
        for name in ("gradient_cosine", "unit_cosine")
    }
    return changes | cosines | {"verdicts": [verdict.text for verdict in found["trained"].verdicts()]}


def _short(table: LayerTable) -> dict[str, Any]:
    """Its means and deviations."""
    names = ("Rc", "Rc_std", "nonzero", "nonzero_std")
    return {name: [_digits(row[name]) for row in table.rows] for name in names} | {"samples": table.samples}


def _saved(figure: figures.Figure, place: Place, name: str) -> dict[str, Any]:
    png, _ = figures.save(figure, place.out / FIGURES, name)
    return {"figure": png.name}


LOOKS: dict[str, Callable[[Study, Place], Any]] = {
    "fig3": _layers,
    "fig4": _epochs,
    "tokens": _tokens,
    "subspaces": _subspaces,
    "audit": _audited,
}
