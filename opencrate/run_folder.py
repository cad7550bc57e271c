"""The folder of a run: the names of its files and folders, its lock, and what can be read from it."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import filelock
from pydantic import TypeAdapter

from .errors import one_line
from .files import read_json
from .run_records import LAYERS, RESULT, STARTS, checked

NETWORK_FOLDERS = ("model", "best")  # the final network, and the best so far; the first that exists is the run's
_DIGITS = {"step": 8, "epoch": 4}


class RunFolder:
    """recipe.yaml, run.json, metrics.jsonl, checkpoints/, best/, model/, result.json."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model, self.best = (path / name for name in NETWORK_FOLDERS)
        self.recipe, self.record, self.result = (path / name for name in ("recipe.yaml", "run.json", "result.json"))
        self.checkpoints, self.metrics = path / "checkpoints", path / "metrics.jsonl"
        self.tensorboard, self.analysis, self.lock = path / "tensorboard", path / "analysis", path / ".lock"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Refuse a second run in the same folder; the system releases the lock when a process dies."""
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

    def has_begun(self) -> bool:
        """Whether the run has a result or a checkpoint, be it a damaged one."""
        return self.result.is_file() or any(self.checkpoints.glob("step-*"))

    def starts(self) -> list[dict[str, Any]]:
        """What run.json says about every start of the run: command, versions, hardware."""
        return _read_json(self.record, list, STARTS) if self.record.is_file() else []

    def finished(self) -> dict[str, Any] | None:
        """The result, if the run has finished."""
        return _read_json(self.result, dict, RESULT) if self.result.is_file() else None

    def network_epoch(self) -> str:
        """Which epoch's network stands for the run, in words; empty if the last epoch is also the best."""
        if not self.model.is_dir():
            return f"the run has not finished, so this is its best network so far, {self.best}" * self.best.is_dir()
        result = self.finished()
        best = result["best"] if result else {}
        if not result or best.get("epoch", result["epochs"]) == result["epochs"]:
            return ""
        accuracy = f" ({best['top1']:.2f} % top-1, this one {result['top1']:.2f} %)" if "top1" in best else ""
        return (
            f"this is the network of the last epoch, {result['epochs']}; that of the best epoch,"
            f" {best['epoch']:.0f}{accuracy}, is {self.best}"
        )

    def kept_epochs(self) -> dict[int, Path]:
        """The checkpoints that are kept for good, by epoch."""
        return numbered(self.checkpoints, "epoch")

    def last_options(self) -> dict[str, Any]:
        """The options of the newest start of the run; none for a folder without run.json."""
        starts = self.starts()
        return starts[-1].get("options", {}) if starts else {}

    def recorded(self, kind: str) -> Iterator[dict[str, Any]]:
        """The lines of one kind in metrics.jsonl, without those that are damaged."""
        return (line for line in self.lines()[0] if line["kind"] == kind)

    def lines(self) -> tuple[list[dict[str, Any]], int]:
        """The lines of metrics.jsonl, and how many are damaged; a last one that a kill has cut off is not counted."""
        texts = self.metrics.read_bytes().split(b"\n")[:-1] if self.metrics.is_file() else []
        lines = list(filter(None, map(_line, texts)))
        return lines, len(texts) - len(lines)


def run_of(checkpoint: str | Path) -> RunFolder | None:
    """The run that a checkpoint belongs to, if there is one."""
    path = Path(checkpoint).expanduser()
    folders = map(RunFolder, (path, *path.parents[:2]))
    return next((folder for folder in folders if folder.recipe.is_file()), None)


def numbered_name(kind: Literal["step", "epoch"], number: int) -> str:
    """The name of a checkpoint file: step-00000120.pt, epoch-0010.pt."""
    return f"{kind}-{number:0{_DIGITS[kind]}d}.pt"


def numbered(folder: Path, kind: Literal["step", "epoch"]) -> dict[int, Path]:
    """The checkpoint files of one kind in a folder by their numbers, in order."""
    matches = {
        file: re.fullmatch(rf"{kind}-(\d+)\.pt", file.name) for file in folder.glob(f"{kind}-*.pt") if file.is_file()
    }
    return dict(sorted((int(match[1]), file) for file, match in matches.items() if match))


def _line(text: bytes) -> dict[str, Any] | None:
    """A line of metrics.jsonl, or None if it is damaged."""
    try:
        line = json.loads(text)
        if not isinstance(line["kind"], str) or not isinstance(line["step"], int):
            return None
        return checked(line, LAYERS) if line["kind"] == "layers" else line
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def damaged(file: Path, why: str, command: str = "the same command goes on") -> ValueError:
    """The error for a file of a run that is written anew when it is not there."""
    return ValueError(f"{file} is damaged ({why}): delete it, and {command}")


def _read_json(file: Path, kind: type, form: TypeAdapter[Any]) -> Any:
    """The content of a file that a run wrote for others and does not need itself."""
    try:
        content = read_json(file)
    except ValueError as error:
        raise damaged(file, one_line(str(error.__cause__))) from error
    if not isinstance(content, kind):
        raise damaged(file, f"it is no {kind.__name__}")
    try:
        return checked(content, form)
    except ValueError as error:
        raise damaged(file, str(error)) from error
