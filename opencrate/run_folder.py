"""The run's folder: what made it, what it holds, and that one run at a time uses it."""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import filelock

from .files import write_atomically
from .recipes import Recipe, differences, read_recipe, recipe_text

__all__ = ["RunFolder", "run_of"]


class RunFolder:
    """recipe.yaml, run.json, metrics.jsonl, checkpoints/, best/, model/, result.json."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints, self.best, self.model = path / "checkpoints", path / "best", path / "model"
        self.recipe, self.record, self.result = path / "recipe.yaml", path / "run.json", path / "result.json"
        self.metrics, self.tensorboard, self.lock = path / "metrics.jsonl", path / "tensorboard", path / ".lock"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Refuse a second run in the same folder; the system lets go of the lock when a process dies."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file: a run needs a folder")
        self.path.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(self.lock)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout as error:
            raise ValueError(f"another run is using {self.path}: give this one a folder of its own, --out") from error
        try:
            yield
        finally:
            lock.release()

    def begin(self, recipe: Recipe, options: dict[str, Any], resume: bool) -> None:
        """Write down what makes this run; a folder with another recipe in it is refused."""
        begun = self.result.is_file() or any(self.checkpoints.glob("step-*"))
        if resume and not self.recipe.is_file():
            raise ValueError(f"there is no run to resume in {self.path}")
        if begun and self.recipe.is_file():
            changed = differences(read_recipe(self.recipe), recipe)
            if changed:
                raise ValueError(
                    f"{self.path} holds a run with another recipe ({', '.join(changed[:3])}"
                    f"{', …' if len(changed) > 3 else ''}): give this one a folder of its own, --out"
                )
        else:  # also where an earlier start came to no checkpoint
            write_atomically(self.recipe, recipe_text(recipe))
        for leftover in [*self.path.glob(".best-*"), *self.path.glob(".model-*")]:  # of a process that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        if self.result.is_file():  # it has come to its end: nobody makes anything of it any more
            return
        starts = _read_json(self.record, list) if self.record.is_file() else []
        write_atomically(self.record, json.dumps([*starts, provenance(recipe.seed, options)], indent=2) + "\n")

    def finished(self) -> dict[str, Any] | None:
        """The result, if the run has come to its end."""
        if not self.result.is_file():
            return None
        found: dict[str, Any] = _read_json(self.result, dict)
        return found

    def last_options(self) -> dict[str, Any]:
        """The options of the newest start of the run; none for a folder without run.json."""
        starts = _read_json(self.record, list) if self.record.is_file() else []
        options: dict[str, Any] = starts[-1].get("options", {}) if starts else {}
        return options

    def recorded(self, kind: str) -> Iterator[dict[str, Any]]:
        """The lines of metrics.jsonl of one kind, but for a last one that a kill has cut off; none without the file."""
        lines = self.metrics.read_text(encoding="utf-8").splitlines(keepends=True) if self.metrics.is_file() else []
        return (line for text in lines if text.endswith("\n") and (line := json.loads(text)).get("kind") == kind)


def run_of(checkpoint: str) -> Path | None:
    """The run's folder in which a checkpoint lies, if it does."""
    path = Path(checkpoint).expanduser()
    return next((folder for folder in (path, *path.parents[:2]) if (folder / "recipe.yaml").is_file()), None)


def _read_json(file: Path, kind: type) -> Any:
    """What we wrote; the run does not need it, so that a damaged file may be deleted."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged ({error}): delete it, and the same command goes on") from error
    if not isinstance(found, kind):
        raise ValueError(f"{file} is damaged (it is no {kind.__name__}): delete it, and the same command goes on")
    return found


def provenance(seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """What made a run: command, versions, revision, seed, hardware."""
    import timm
    import torch
    import torchvision

    from . import __version__

    cuda = torch.cuda.is_available()
    return {
        "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "command": shlex.join(sys.orig_argv),
        "seed": seed,
        "options": options,
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "versions": {
            "opencrate": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "timm": timm.__version__,
            "cuda": torch.version.cuda if cuda else None,
        },
        "git": _revision(),
        "hardware": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
        },
    }


def _revision() -> str | None:
    """The revision of the code that runs, with a + if it was changed since; none outside a repository."""
    here = Path(__file__).parent
    try:
        run = [["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "--", ".."]]
        head, changes = (
            subprocess.run(["git", *command], cwd=here, capture_output=True, text=True, timeout=10) for command in run
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return head.stdout.strip() + ("+" if changes.stdout.strip() else "") if head.returncode == 0 else None
