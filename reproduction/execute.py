"""Carry out a plan: a process for each run, several side by side. A run that fails does not stop the others.

The runs of a job (`run_one`) share a process where they take about a second, as at the scale smoke: starting Python and
importing torch takes longer than such a run. The process of a failed or crashed run ends, and the others of its job get
another. Only this process writes results.json.
"""

import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from .place import LOG, Place
from .plan import Plan, Run
from .progress import Progress
from .results import Results, fingerprint
from .run_one import STOP_SECONDS, Job

POLL_SECONDS = 0.2


@dataclass(eq=False)  # two that have done all of their runs are still two
class _Worker:
    """A process and the runs that it has not finished; it is at the first of them."""

    runs: list[Run]
    place: Place

    def __post_init__(self) -> None:
        folder = self.place.folder(self.runs[0].key)
        folder.mkdir(parents=True, exist_ok=True)
        for run in self.runs:  # rows that were not read, because an earlier parent was killed
            self.place.row(run.key).unlink(missing_ok=True)
        with (folder / LOG).open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "reproduction.run_one"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C in a terminal reaches the parent alone, which asks its processes to stop
            )
        assert self.process.stdin
        self.stdin = self.process.stdin  # stays open: the process ends when it closes
        with suppress(BrokenPipeError):  # the process has ended already, and its exit code says so
            self.stdin.write(Job(tuple(self.runs), self.place).to_json() + b"\n")
            self.stdin.flush()

    def read_row(self) -> dict[str, Any] | None:
        """The row of the run that the process is at, if it has ended; its file is removed."""
        file = self.place.row(self.runs[0].key)
        if not file.is_file():
            return None
        row: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        file.unlink()
        return row

    def wait(self, seconds: float) -> None:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        with suppress(BrokenPipeError):
            self.stdin.close()


class _Execution:
    """A plan that is being carried out: the runs that wait, those under way, and the places that are idle."""

    def __init__(self, plan: Plan, results: Results, places: list[Place], progress: Progress) -> None:
        self.plan, self.results, self.progress = plan, results, progress
        self.fingerprints = {run.key: fingerprint(run, plan.runs) for run in plan.runs}
        self.waiting = self._outstanding(places[0])
        self.workers, self.idle = list[_Worker](), list(places)

    def _outstanding(self, place: Place) -> list[Run]:
        """Runs that are not done, and those whose networks are missing and needed as a start."""
        runs = self.plan.runs
        keys = {run.key for run in runs if not self.results.has(run, self.fingerprints[run.key])}
        keys |= {run.start for run in runs if run.key in keys and run.start and not place.has_network(run.start)}
        return [run for run in runs if run.key in keys]

    def run(self) -> None:
        try:
            while self.waiting or self.workers:
                self._start_workers()
                time.sleep(POLL_SECONDS)
                for worker in list(self.workers):
                    self._collect(worker)
                self.progress.show([(worker.runs[0], worker.place) for worker in self.workers if worker.runs])
        finally:
            for worker in self.workers:  # first all of them: each needs its time to save a checkpoint
                worker.process.terminate()
            for worker in self.workers:
                worker.wait(STOP_SECONDS)

    def _start_workers(self) -> None:
        while self.idle and (ready := self._ready()):
            count = min(self.plan.runs_per_process, math.ceil(len(ready) / len(self.idle)))
            worker = _Worker(ready[:count], self.idle.pop(0))
            self.waiting = [run for run in self.waiting if run not in worker.runs]
            self.workers.append(worker)

    def _ready(self) -> list[Run]:
        """Waiting runs that start from no run which is still to be done."""
        unfinished = [*self.waiting, *(run for worker in self.workers for run in worker.runs)]
        keys = {run.key for run in unfinished}
        return [run for run in self.waiting if run.start not in keys]

    def _collect(self, worker: _Worker) -> None:
        """Record the runs that have ended, and replace a process that has."""
        code = worker.process.poll()  # asked first: a process that has ended writes no further row
        while worker.runs and (row := worker.read_row()):
            self._record(worker.runs.pop(0), row)
        if code is None:
            return
        if code and worker.runs:
            end = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._record(worker.runs.pop(0), {"error": f"its process ended with {end}"})
        worker.wait(STOP_SECONDS)
        self.waiting = [run for run in self.plan.runs if run in (*self.waiting, *worker.runs)]
        self.workers.remove(worker)
        self.idle.append(worker.place)

    def _record(self, run: Run, row: dict[str, Any]) -> None:
        """Keep a row. If it is that of a failure, the runs that start from it have failed, too."""
        self.results.add(run, row | {"recipe": self.fingerprints[run.key]})
        self.progress.ended(run, row)
        if "error" in row:
            dependent = [other for other in self.waiting if other.start == run.key]
            self.waiting = [other for other in self.waiting if other not in dependent]
            for other in dependent:
                self._record(other, {"error": f"it starts from {run.key}, which failed"})


def execute(plan: Plan, results: Results, places: list[Place], progress: Progress) -> None:
    """Carry out what is not done yet, a process in each place."""
    execution = _Execution(plan, results, places, progress)
    progress.begin(plan, execution.waiting, results, len(places))
    with _interruptible():
        execution.run()


class Interrupted(KeyboardInterrupt):
    """The plan was stopped by a signal; its runs have saved checkpoints."""

    def __init__(self, number: int) -> None:
        super().__init__("stopped; the same command resumes, and --write-only writes what is done")
        self.code = 128 + number


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM stops the plan as Ctrl-C does."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt as stopped:
        raise Interrupted(signal.SIGINT) from stopped
    finally:
        signal.signal(signal.SIGTERM, before)


def places_for(plan: Plan, out: Path, devices: tuple[str, ...], jobs: int, processes: int, threads: int) -> list[Place]:
    """`jobs` places on each device."""
    place = Place(out, processes=processes, threads=threads, samples=plan.samples)
    return [replace(place, device=device) for _ in range(jobs) for device in devices]
