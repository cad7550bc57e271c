"""Progress of a plan: bars on a terminal, and a line for every run that has ended."""

import json
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from .place import Place
from .plan import Plan, Run, count_runs
from .results import Results


class Progress:
    """Shows the plan and the runs that are under way."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self.bars: Bars | None = None
        self.tasks: dict[str, TaskID] = {}

    def begin(self, plan: Plan, waiting: list[Run], results: Results, jobs: int) -> None:
        self.waiting, self.total, self.jobs = {run.key: run for run in waiting}, len(plan.runs), jobs
        self.epochs, self.known = dict[str, int](), list[tuple[str, float, float]]()
        for run, row in results.of(plan):
            self._learn(run, row)
        done, finished = self.total - len(waiting), results.done(plan)
        again = sum(run.key in finished for run in waiting)
        counts = count_runs(self.total, len(finished))
        if again:
            counts += f"; {again} of them repeated, because others start from their networks, which are missing"
        self._print(f"{plan.scale}: {counts}")
        if self.console.is_terminal and waiting:
            columns = (
                TextColumn("{task.description:<48}"),
                BarColumn(24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
            )
            self.bars = Bars(*columns, console=self.console)
            self.plan_bar = self.bars.add_task("all runs", total=self.total, completed=done, left="")
            self.bars.start()

    def ended(self, run: Run, row: dict[str, Any]) -> None:
        self.waiting.pop(run.key, None)
        self._learn(run, row)
        if self.bars and run.key in self.tasks:
            self.bars.remove_task(self.tasks.pop(run.key))
        number = self.total - len(self.waiting)
        outcome = f"failed: {row['error']}" if "error" in row else f"{row['top1']:.2f} % in {duration(row['seconds'])}"
        self._print(f"[{number}/{self.total}] {run.key}: {outcome}{'' if self.bars else self._left()}")

    def show(self, busy: list[tuple[Run, Place]]) -> None:
        """Update the bars from the metrics that the runs write."""
        if self.bars is None:
            return
        for run, place in busy:
            epoch, loss = _last_epoch(place.folder(run.key) / "metrics.jsonl")
            if run.key not in self.tasks:
                self.tasks[run.key] = self.bars.add_task(run.key, total=run.recipe.schedule.epochs, left="")
            left = "" if loss is None else f"loss {loss:.3f}"
            self.bars.update(self.tasks[run.key], completed=epoch, left=left)
            self.epochs[run.key] = epoch
        self.bars.update(self.plan_bar, completed=self.total - len(self.waiting), left=self._left().lstrip("; "))

    def end(self) -> None:
        if self.bars:
            self.bars.stop()
            self.bars = None

    def _learn(self, run: Run, row: dict[str, Any]) -> None:
        """How many seconds an epoch of such a network takes, and a run besides its training."""
        if "seconds" in row:
            training = row["training_seconds"]
            self.known.append((run.model, training / row["epochs"], row["seconds"] - training))

    def _left(self) -> str:
        """How long the rest will take, by the mean time of an epoch of the same network, or of any, and of a start."""
        if not self.known or not self.waiting:
            return ""
        every, besides = (fmean(values) for values in list(zip(*self.known, strict=True))[1:])
        models = {model for model, *_ in self.known}
        paces = {model: fmean(pace for name, pace, _ in self.known if name == model) for model in models}
        left = 0.0
        for key, run in self.waiting.items():
            done = self.epochs.get(key, 0)
            left += (run.recipe.schedule.epochs - done) * paces.get(run.model, every) + besides * (done == 0)
        left /= min(self.jobs, len(self.waiting))
        return f"; about {duration(left)} left"

    def _print(self, text: str) -> None:
        (self.bars.console if self.bars else self.console).print(text, markup=False)


def _last_epoch(metrics: Path) -> tuple[int, float | None]:
    """Epoch and loss of the last line about training; (0, None) if there is none yet."""
    try:
        with metrics.open("rb") as file:
            file.seek(max(0, metrics.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return 0, None
    for line in reversed(lines):
        if '"kind": "train"' in line and line.endswith("}"):
            with suppress(ValueError):  # the line begins before the part that was read
                values = json.loads(line)
                return int(values["epoch"]), values["loss"]
    return 0, None


def duration(seconds: float) -> str:
    """In seconds, minutes or hours: "8 s", "2 min", "2.0 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
