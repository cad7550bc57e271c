"""The journal of a run: metrics.jsonl for programs, TensorBoard for curves, the terminal for people."""

import json
import logging
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..files import json_text, write_atomically
from ..measures import LayerTable
from ..tasks import describe_metrics
from .step import Outcome

log = logging.getLogger("opencrate")

PLAIN_SECONDS = 30  # between lines of progress where there is no terminal
ESTIMATE_SECONDS = 3600  # of the past, from whose speed the time left is estimated
TABLE_WIDTH = 100  # characters, at most
LAYERS_PER_ROW = 12  # at most


class Journal:
    """Writes on the main process; without a file for metrics, as on the other processes, it is silent."""

    def __init__(
        self, metrics: Path | None, tensorboard: Path | None, step: int = 0, console: Console | None = None
    ) -> None:
        self.console = console or Console(quiet=metrics is None, highlight=False, soft_wrap=True)
        self.file = None
        self.writer: Any = None
        self.progress = Progress(disable=True)
        self.last_line = time.monotonic()
        if metrics is not None:
            _keep_until(metrics, step)
            self.file = metrics.open("a", encoding="utf-8")
        if tensorboard is not None:
            self.writer = _tensorboard(tensorboard, step)

    def close(self) -> None:
        self.progress.stop()
        if self.file:
            self.file.close()
        if self.writer:
            self.writer.close()

    def record(self, kind: str, step: int, **values: Any) -> None:
        """One line of metrics.jsonl; numbers also go to TensorBoard."""
        if self.file is None:
            return
        self.file.write(json_text({"kind": kind, "step": step, **values}) + "\n")
        self.file.flush()
        if self.writer:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self.writer.add_scalar(f"{kind}/{name}", value, step)

    def layers(self, table: LayerTable, step: int, epoch: int, seconds: float, shown: bool) -> None:
        """R^c and non-zero fraction of every layer: always recorded, and printed if `shown`."""
        self.record("layers", step, epoch=epoch, seconds=round(seconds, 4), **table.to_dict())
        if self.writer:
            for name in ("Rc", "nonzero"):
                for row in table.rows:
                    self.writer.add_scalar(f"{name}/layer_{row['layer']:02.0f}", row[name], step)
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


def _keep_until(metrics: Path, step: int) -> None:
    """Drop the lines after the checkpoint from which the run resumes, and a line cut short by a kill."""
    if not metrics.is_file():
        return
    kept = []
    for line in metrics.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            if json.loads(line)["step"] <= step and step > 0:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue
    write_atomically(metrics, "".join(f"{line}\n" for line in kept))


def _tensorboard(directory: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(directory), purge_step=step + 1 if step else 0)


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
