"""`python -m reproduction.run_one`: carry out the runs of a job, which comes as one line of JSON on stdin.

A run trains its recipe, analyses the network and writes a row. What it prints goes to log.txt in its folder. The parent
process (`execute`) keeps stdin open: when it closes, the parent has ended, and so does this process.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import filelock
import torch
from pydantic import TypeAdapter

from opencrate.files import write_atomically, write_json
from opencrate.recipes import Recipe, differences, read_recipe, recipe_text
from opencrate.run_folder import RunFolder
from opencrate.training import Options, train

from .analyses import analyse, five_digits
from .place import LOG, Place
from .plan import Run
from .results import without_location

UNKNOWN = "unknown"
START = "start.sha256"  # in a run's folder: the hash of the weights that it started from
STOP_SECONDS = 120  # a process has this long to save a checkpoint
EVALUATIONS = 10  # in the course of a run
SAVES = 5  # checkpoints in the course of a run


@dataclass(frozen=True)
class Job:
    """Runs for one process, which carries them out one after another."""

    runs: tuple[Run, ...]
    place: Place

    def to_json(self) -> bytes:
        return TypeAdapter(Job).dump_json(self)

    @staticmethod
    def from_json(text: bytes) -> "Job":
        return TypeAdapter(Job).validate_json(text)


def main() -> None:
    job = Job.from_json(sys.stdin.buffer.readline())
    _end_with_parent()
    torch.set_num_threads(job.place.threads)
    try:
        for run in job.runs:
            _log_to(job.place.folder(run.key))
            try:
                row = perform(run, job.place)
            except Exception as error:  # any error of a run is a result: its row says why it failed
                traceback.print_exc()
                row = {"error": _sentence(error)}
            write_json(job.place.row(run.key), row, indent=None)
            if "error" in row:  # a fresh process for the other runs: after an error of CUDA this one is of no use
                return
    except KeyboardInterrupt as stopped:
        sys.exit(getattr(stopped, "code", 130))


def _end_with_parent() -> None:
    """If the parent is killed, end as if it had sent SIGTERM: a run that trains saves a checkpoint."""

    def watch() -> None:
        os.read(sys.stdin.fileno(), 1)  # returns when the other end is closed: the parent writes no second line
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def _log_to(folder: Path) -> None:
    """Append what this process prints from now on, also from C++, to the run's log."""
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with (folder / LOG).open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)


def _sentence(error: Exception) -> str:
    """The message on one line, behind the type of the error if it is not one that we raise for users."""
    message = " ".join(str(error).split())
    is_for_users = message and isinstance(error, ValueError | OSError)
    return message if is_for_users else f"{type(error).__name__}: {message}"[:500]


def perform(run: Run, place: Place) -> dict[str, Any]:
    """Train, analyse, and return the row. Training that is finished is not repeated."""
    began, folder, recipe = time.monotonic(), place.folder(run.key), run.recipe
    if run.start is not None:
        recipe = replace(recipe, model=replace(recipe.model, start=str(place.folder(run.start))))
    folder.mkdir(parents=True, exist_ok=True)
    _wait_for_earlier_process(folder)
    _remove_other_run(folder, recipe)
    if not place.has_network(run.key):
        RunFolder(folder).result.unlink(missing_ok=True)
    result = RunFolder(folder).finished() or _train(recipe, folder, place)
    row = {
        "top1": result["top1"],
        "best": result["best"]["top1"],
        "epochs": result["epochs"],
        "parameters": result["parameters"],
        "pictures": result.get("data", recipe.data.name),
        "training_seconds": result["training_seconds"],
        "made": _provenance(folder),
        "curve": learning_curve(folder),
        "looks": analyse(run, place),
    }
    training = result["training_seconds"] + result["start_up_seconds"]  # perhaps of an earlier process
    return row | {"seconds": round(max(time.monotonic() - began, training), 1)}


def learning_curve(folder: Path) -> dict[str, list[Any]]:
    """Validation accuracy and loss at the epochs that were evaluated, and training accuracy and loss in them.

    Training pictures are augmented, and the training loss has label smoothing. With mixup or cutmix there is no
    training accuracy.
    """
    run, before, windows = RunFolder(folder), 0, dict[tuple[str, int], list[tuple[float, int]]]()
    for line in run.recorded("train"):
        for name in ("loss", "accuracy"):
            if line.get(name) is not None:
                windows.setdefault((name, line["epoch"]), []).append((line[name], line["step"] - before))
        before = line["step"]
    validation = list(run.recorded("validation"))
    curve = {name: [line[name] for line in validation] for name in ("epoch", "top1", "loss")}
    for name, column, factor in (("loss", "training_loss", 1), ("accuracy", "training_top1", 100)):
        if validation and all((name, line["epoch"]) in windows for line in validation):
            curve[column] = [factor * fmean(*zip(*windows[name, line["epoch"]], strict=True)) for line in validation]
    return {name: [five_digits(value) for value in values] for name, values in curve.items()}


def _provenance(folder: Path) -> dict[str, Any]:
    """Revision, hardware, time and versions; without run.json, which a user may delete, only when the run ended."""
    run = RunFolder(folder)
    if not run.record.is_file():
        ended = datetime.fromtimestamp(run.result.stat().st_mtime, UTC).isoformat(timespec="seconds")
        return {"revision": None, "hardware": UNKNOWN, "started": ended, "torch": UNKNOWN, "timm": UNKNOWN}
    last_start = json.loads(run.record.read_text(encoding="utf-8"))[-1]
    return {
        "revision": last_start["git"],
        "hardware": ", ".join(last_start["hardware"]["gpus"]) or f"{last_start['hardware']['cpus']} CPU cores",
        "started": last_start["started"],
        "torch": last_start["versions"]["torch"],
        "timm": last_start["versions"]["timm"],
    }


def _wait_for_earlier_process(folder: Path) -> None:
    """If an earlier command was killed, its process may still be saving this run."""
    with suppress(filelock.Timeout), filelock.FileLock(RunFolder(folder).lock, timeout=STOP_SECONDS):
        pass


def _remove_other_run(folder: Path, recipe: Recipe) -> None:
    """Remove a run of the same name with another recipe, or from another start, as of an older plan. Its log stays.

    Its recipe is removed last, so that after a kill the next start finds it, and removes the rest. Where only the
    paths of pictures and start have changed, the recipe is rewritten.
    """
    file, started, start = folder / "recipe.yaml", folder / START, _weights_hash(recipe.model.start)
    if file.is_file():
        other_start = started.is_file() and started.read_text(encoding="utf-8") != start
        if other_start or differences(_without_paths(read_recipe(file)), _without_paths(recipe)):
            for entry in sorted(folder.iterdir(), key=lambda entry: entry == file):
                if entry.is_dir():
                    shutil.rmtree(entry)
                elif entry not in (folder / LOG, RunFolder(folder).lock):
                    entry.unlink()
        else:
            write_atomically(file, recipe_text(recipe))
    if start:
        write_atomically(started, start)


def _weights_hash(run: str) -> str:
    """The hash of the weights that a run ended with; empty if there are none."""
    file = Path(run) / "model" / "model.safetensors"
    if not run or not file.is_file():
        return ""
    with file.open("rb") as weights:
        return hashlib.file_digest(weights, "sha256").hexdigest()


def _without_paths(recipe: Recipe) -> Recipe:
    return replace(without_location(recipe), model=replace(recipe.model, start="CHECKPOINT"))


def _train(recipe: Recipe, folder: Path, place: Place) -> dict[str, Any]:
    evaluate_epochs, save_epochs = (recipe.schedule.epochs // times or 1 for times in (EVALUATIONS, SAVES))
    if place.processes == 1:
        options = Options(
            out=folder,
            device=place.device,
            evaluate_epochs=evaluate_epochs,
            save_epochs=save_epochs,
            tensorboard=False,
        )
        return train(recipe, options)
    file = folder.with_name(f"{folder.name}.yaml")
    file.write_text(recipe_text(recipe), encoding="utf-8")
    command = [sys.executable, "-m", "opencrate", "train", str(file), "--out", str(folder)]
    command += ["--processes", str(place.processes), "--no-tensorboard"]
    command += ["--evaluate-epochs", str(evaluate_epochs), "--save-epochs", str(save_epochs)]
    code, result = _run_to_end(command), RunFolder(folder).finished()
    if code or result is None:
        raise ValueError(f"torchrun ended with exit code {code}; {folder / LOG} has the details")
    return result


def _run_to_end(command: list[str]) -> int:
    """Run a command and return its exit code; SIGTERM is passed on to it, so that it saves a checkpoint and ends."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            return process.wait()
        finally:
            signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    main()
