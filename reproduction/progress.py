"""What a person sees while a plan is carried out: bars on a terminal, a line for every run elsewhere."""

import json
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from .plan import Plan, Run, counted
from .results import Results
from .run_one import Place

__all__ = ["Progress", "duration"]


class Progress:
    """Of the whole plan, and of the runs that are under way."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self.bars: Bars | None = None
        self.tasks: dict[str, TaskID] = {}

    def begin(self, plan: Plan, waiting: list[Run], results: Results, workers: int) -> None:
        self.waiting, self.total, self.workers = {run.key: run for run in waiting}, len(plan.runs), workers
        self.seen, self.known = dict[str, int](), list[tuple[str, float, float]]()
        for run, row in results.of(plan):
            self._learn(run, row)
        done, finished = self.total - len(waiting), results.done(plan)
        again = sum(run.key in finished for run in waiting)
        told = counted(self.total, len(finished))
        if again:
            told += f"; {again} of them trained again, for others start from their networks, which are gone"
        self._say(f"{plan.scale}: {told}")
        if self.console.is_terminal and waiting:
            columns = (
                TextColumn("{task.description:<48}"),
                BarColumn(24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
            )
            self.bars = Bars(*columns, console=self.console)
            self.whole = self.bars.add_task("the whole plan", total=self.total, completed=done, left="")
            self.bars.start()

    def started(self, run: Run) -> None:
        if self.bars:
            self.tasks[run.key] = self.bars.add_task(run.key, total=run.recipe.schedule.epochs, left="")

    def ended(self, run: Run, row: dict[str, Any]) -> None:
        self.waiting.pop(run.key, None)
        self._learn(run, row)
        if self.bars and run.key in self.tasks:
            self.bars.remove_task(self.tasks.pop(run.key))
        number = self.total - len(self.waiting)
        told = f"failed: {row['error']}" if "error" in row else f"{row['top1']:.2f} % in {duration(row['seconds'])}"
        self._say(f"[{number}/{self.total}] {run.key}: {told}{'' if self.bars else self._left()}")

    def show(self, busy: list[tuple[Run, Place]]) -> None:
        """The bars, from what the runs write down."""
        if self.bars is None:
            return
        for run, place in busy:
            epoch, loss = _newest(place.folder(run.key) / "metrics.jsonl")
            told = "" if loss is None else f"loss {loss:.3f}"
            self.bars.update(self.tasks[run.key], total=run.recipe.schedule.epochs, completed=epoch, left=told)
            self.seen[run.key] = epoch
        self.bars.update(self.whole, completed=self.total - len(self.waiting), left=self._left().lstrip("; "))

    def end(self) -> None:
        if self.bars:
            self.bars.stop()
            self.bars = None

    def _learn(self, run: Run, row: dict[str, Any]) -> None:
        """How long an epoch of such a network takes, and what a run takes besides its steps."""
        if "seconds" in row:
            training = row["training_seconds"]
            self.known.append((run.model, training / row["epochs"], row["seconds"] - training))

    def _left(self) -> str:
        """What the rest will take, by the time for an epoch of the same network, or of any, and for a start."""
        if not self.known or not self.waiting:
            return ""
        every, besides = (fmean(values) for values in list(zip(*self.known, strict=True))[1:])
        models = {model for model, *_ in self.known}
        paces = {model: fmean(pace for name, pace, _ in self.known if name == model) for model in models}
        left = 0.0
        for key, run in self.waiting.items():
            seen = self.seen.get(key, 0)
            left += (run.recipe.schedule.epochs - seen) * paces.get(run.model, every) + besides * (seen == 0)
        left /= min(self.workers, len(self.waiting))
        return f"; about {duration(left)} left"

    def _say(self, text: str) -> None:
        (self.bars.console if self.bars else self.console).print(text, markup=False)


def _newest(metrics: Path) -> tuple[int, float | None]:
    """Epoch and loss of the last line about training."""
    try:
        with metrics.open("rb") as file:
            file.seek(max(0, metrics.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return 0, None
    for line in reversed(lines):
        if '"kind": "train"' in line and line.endswith("}"):
            with suppress(ValueError):  # its beginning is not among what was read
                values = json.loads(line)
                return int(values["epoch"]), values["loss"]
    return 0, None


def duration(seconds: float) -> str:
    """In words that a person reads at a glance."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
