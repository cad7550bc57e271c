"""The journal of a run: metrics.jsonl for programs, TensorBoard for curves, the terminal for people."""

import logging
import os
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..files import json_text, reason_not_written, require_file, write_atomically
from ..measures import LayerTable
from ..run_folder import RunFolder
from ..tasks import describe_metrics
from .step import Outcome
from .tensorboard import Curves, open_curves

log = logging.getLogger("opencrate")

PLAIN_SECONDS = 30  # between lines of progress where there is no terminal
ESTIMATE_SECONDS = 3600  # of the past, from whose speed the time left is estimated
TABLE_WIDTH = 100  # characters, at most
LAYERS_PER_ROW = 12  # at most


class Journal:
    """Writes to the folder of a run on the main process; without one, as on the other processes, it is silent."""

    def __init__(
        self,
        folder: RunFolder | None,
        tensorboard: bool = False,
        step: int = 0,
        recorded: int = 0,
        console: Console | None = None,
    ) -> None:
        """`step` is that of the checkpoint from which the run resumes, `recorded` how many lines there were then."""
        self.recorded = recorded
        self.console = console or Console(quiet=folder is None, highlight=False, soft_wrap=True)
        self.file = None
        self.curves: Curves | None = None
        self.progress = Progress(disable=True)
        self.last_line = time.monotonic()
        if folder is not None:
            require_file(folder.metrics)
            self.recorded = _keep_until(folder, step, recorded)
            self.file = folder.metrics.open("ab", buffering=0)  # a line reaches the system at once, or it is an error
        if folder is not None and tensorboard:
            self.curves = open_curves(folder.tensorboard, step)

    def close(self) -> None:
        self.progress.stop()
        if self.file:
            self.file.close()
        if self.curves:
            self.curves.close()

    def record(self, kind: str, step: int, **values: Any) -> None:
        """One line of metrics.jsonl; numbers also go to TensorBoard."""
        if self.file is None:
            return
        line = (json_text({"kind": kind, "step": step, **values}) + "\n").encode()
        try:
            while line:
                line = line[self.file.write(line) :]
        except OSError as error:
            raise OSError(f"{self.file.name} could not be written: {reason_not_written(error)}") from error
        self.recorded += kind != "epoch"
        self._draw({f"{kind}/{name}": value for name, value in values.items()}, step)

    def flush(self) -> None:
        """Before a checkpoint says that these steps are done, their lines are on disk."""
        if self.file:
            os.fsync(self.file.fileno())

    def _draw(self, values: dict[str, Any], step: int) -> None:
        if self.curves is None:
            return
        try:
            self.curves.add({name: value for name, value in values.items() if isinstance(value, int | float)}, step)
        except OSError as error:
            self.warn(f"the curves for TensorBoard end at step {step}: {reason_not_written(error)}")
            self.curves.close()
            self.curves = None

    def layers(self, table: LayerTable, step: int, epoch: int, seconds: float, shown: bool) -> None:
        """R^c and non-zero fraction of every layer: always recorded, and printed if `shown`."""
        self.record("layers", step, epoch=epoch, seconds=round(seconds, 4), **table.to_dict())
        rows = {f"{name}/layer_{row['layer']:02.0f}": row[name] for name in ("Rc", "nonzero") for row in table.rows}
        self._draw(rows, step)
        if shown:
            self.say(_layer_table(table))

    def warn(self, text: str) -> None:
        """Log a warning, once for all processes."""
        if self.file is not None:
            log.warning("%s", text)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def begin_progress(self, total: int, done: int) -> None:
        """A bar, which is shown in a terminal only; its estimate of the time left is shown elsewhere, too."""
        self.progress = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            TextColumn("{task.fields[metrics]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            speed_estimate_period=ESTIMATE_SECONDS,
            disable=self.console.quiet or not self.console.is_terminal,
        )
        self.progress.add_task("", total=total, completed=done, epoch="", metrics="")
        self.progress.start()

    def advance(self, step: int, epoch: str, metrics: dict[str, float]) -> None:
        """Progress: the bar in a terminal, a line now and then elsewhere."""
        text, task = describe_metrics(metrics), self.progress.tasks[0]
        self.progress.update(task.id, completed=step, epoch=epoch, metrics=text)
        if self.progress.disable and time.monotonic() - self.last_line > PLAIN_SECONDS:
            self.last_line = time.monotonic()
            left = TimeRemainingColumn().render(task)
            self.say(f"step {step}/{task.total:.0f}  epoch {epoch}  {text}  {left} left")


def _layer_table(table: LayerTable) -> str:
    """The layers side by side, a line for each measure; deep networks take several rows."""
    lines = {
        "layer": [f"{row['layer']:.0f}" for row in table.rows],
        "R^c": [f"{row['Rc']:.1f}" if row["Rc"] < 1000 else f"{row['Rc']:.0f}" for row in table.rows],
        "non-zero": [f"{row['nonzero']:.2f}".removeprefix("0") for row in table.rows],
    }
    heads = {name: f"  {name:<9}" for name in lines}
    width = max(len(value) for values in lines.values() for value in values) + 1
    together = min(LAYERS_PER_ROW, (TABLE_WIDTH - len(heads["layer"])) // width)
    return "\n".join(
        heads[name] + "".join(value.rjust(width) for value in values[first : first + together])
        for first in range(0, len(table.rows), together)
        for name, values in lines.items()
    )


def _keep_until(folder: RunFolder, step: int, recorded: int) -> int:
    """Drop the lines after the checkpoint from which the run resumes, and what cannot be read.

    Returns how many are left, without those of an epoch's time; it is said if they are fewer than were `recorded`.
    """
    lines, damaged = folder.lines()
    if damaged:
        log.warning(
            "%s: %s could not be read, and left out", folder.metrics, f"{damaged} lines" if damaged > 1 else "a line"
        )
    kept = [line for line in lines if 0 < step >= line["step"]]
    left = sum(line["kind"] != "epoch" for line in kept)
    if (lost := recorded - left - damaged) > 0:
        log.warning("%s: %d of the %d lines up to step %d are lost", folder.metrics, lost, recorded, step)
    write_atomically(folder.metrics, "".join(json_text(line) + "\n" for line in kept))
    return left


class Window:
    """Means over the steps since the last line of metrics.jsonl."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.steps = self.samples = 0
        self.begun = time.perf_counter()

    def add(self, outcome: Outcome, batch: int) -> None:
        self.samples += batch
        if outcome.finite:
            self.steps += 1
            for name, value in outcome.report.items():
                self.sums[name] = self.sums.get(name, 0.0) + value

    def means(self) -> dict[str, float]:
        means = {name: value / self.steps for name, value in self.sums.items()} or {"loss": float("nan")}
        means["images_per_second"] = round(self.samples / (time.perf_counter() - self.begun), 1)
        return means
