"""Carrying a plan out: workers take one run after another, and whatever happens to one does not stop the others.

A worker is a process that lives for many runs, so that a network which was compiled once is not compiled again for the
next seed. It stands for one device. What a run prints goes to log.txt in its folder.
"""

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import connection
from pathlib import Path
from types import FrameType
from typing import Any

from .plan import Plan, Run
from .progress import Progress
from .results import Results, fingerprint
from .run_one import FAREWELL, LOG, Place, perform

__all__ = ["execute"]

PATIENCE = 0.5  # seconds between two looks at the workers


@dataclass
class _Worker:
    """A process and the run it is busy with."""

    place: Place
    threads: int
    run: Run | None = None

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.line, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.place, self.threads), daemon=False)
        with _deaf_to_interrupts():  # Ctrl-C is for the parent, which tells them
            self.process.start()
        theirs.close()

    def give(self, run: Run) -> None:
        self.run = run
        if not self.process.is_alive():  # something has ended it since its last run
            self.line.close()
            self.start()
        with suppress(BrokenPipeError, ConnectionResetError):  # it ends just now: `answer` will find out
            self.line.send(run)

    def answer(self) -> dict[str, Any]:
        """The run's row; with an "error" if it failed, and then a process that nothing is known of is replaced."""
        try:
            row: dict[str, Any] = self.line.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode or 0
            row = {
                "error": f"its process ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}",
                "fatal": True,
            }
        if row.pop("fatal", False):
            self.stop()
            self.start()
        self.run = None
        return row

    def stop(self) -> None:
        """Let it save what it is at, and end."""
        self.line.close()
        if self.process.is_alive() and self.run is not None:
            self.process.terminate()
        self.process.join(FAREWELL)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def execute(plan: Plan, results: Results, places: list[Place], threads: int, progress: Progress) -> None:
    """Carry out what is not done yet. A failed run, and those that start from it, are told of; the others go on."""
    marks = {run.key: fingerprint(run, plan.runs) for run in plan.runs}
    waiting, failed = _outstanding(plan, results, marks, places[0]), set[str]()
    progress.begin(plan, waiting, results, len(places))
    if not waiting:
        return
    with _interruptible(), _workers(places[: len(waiting)], threads) as workers:
        while waiting or any(worker.run for worker in workers):
            for worker in workers:
                if worker.run is None and (run := _next(waiting, workers, failed, results, progress)):
                    waiting.remove(run)
                    progress.started(run)
                    worker.give(run)
            busy = [worker for worker in workers if worker.run]
            ready = connection.wait([worker.line for worker in busy], PATIENCE)
            for worker in busy:
                if worker.line in ready and (run := worker.run):
                    row = worker.answer() | {"recipe": marks[run.key]}
                    results.add(run, row)
                    if "error" in row:
                        failed.add(run.key)
                    progress.ended(run, row)
            progress.show([(worker.run, worker.place) for worker in workers if worker.run])


def _outstanding(plan: Plan, results: Results, marks: dict[str, str], place: Place) -> list[Run]:
    """The runs that are not done, and those done whose networks are gone and needed once more."""
    todo = {run.key for run in plan.runs if not results.has(run, marks[run.key])}
    todo |= {run.start for run in plan.runs if run.key in todo and run.start and not place.has_network(run.start)}
    return [run for run in plan.runs if run.key in todo]


def _next(
    waiting: list[Run], workers: list[_Worker], failed: set[str], results: Results, progress: Progress
) -> Run | None:
    """The first run that waits for no other; those whose start has failed are failures, too."""
    for run in list(waiting):
        if run.start in failed:
            row = {"error": f"it starts from {run.start}, which failed"}
            waiting.remove(run)
            failed.add(run.key)
            results.add(run, row)
            progress.ended(run, row)
    under_way = {other.key for other in waiting} | {worker.run.key for worker in workers if worker.run}
    return next((run for run in waiting if run.start not in under_way), None)


@contextmanager
def _workers(places: list[Place], threads: int) -> Iterator[list[_Worker]]:
    workers: list[_Worker] = []
    try:
        for place in places:
            workers.append(_Worker(place, threads))
        yield workers
    finally:
        for worker in workers:
            if worker.run and worker.process.is_alive():  # all at once, for each takes its time
                worker.process.terminate()
        for worker in workers:
            worker.stop()


class Interrupted(KeyboardInterrupt):
    """The plan was asked to stop by a signal, and its runs are saved."""

    def __init__(self, number: int) -> None:
        super().__init__("stopped; the same command goes on from there, and --write-only tells what is done")
        self.code = 128 + number


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM is as good as Ctrl-C: the workers save what they are at."""

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


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """What is started within inherits that SIGINT is ignored: a process that imports would print a traceback."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(line: connection.Connection, place: Place, threads: int) -> None:
    """The worker's life: runs in, rows out, until the other end closes."""
    import torch

    torch.set_num_threads(threads)
    torch._dynamo.config.recompile_limit = 1024  # the networks of a plan, each compiled for itself
    _watch_the_parent()
    while True:
        try:
            line.send(_row(line.recv(), place))
        except (EOFError, OSError, KeyboardInterrupt):  # nobody waits for it any more
            return


def _row(run: Run, place: Place) -> dict[str, Any]:
    """What the run found, or why it failed."""
    try:
        with _logged(place.folder(run.key)):
            return perform(run, place)
    except Exception as error:  # whatever it is, it is this run's
        known = isinstance(error, ValueError | OSError)
        sentence = " ".join(str(error).split()) or type(error).__name__
        return {"error": sentence if known else f"{type(error).__name__}: {sentence}"[:500], "fatal": not known}


def _watch_the_parent() -> None:
    """If the parent is killed, end as if asked to: with a checkpoint."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _logged(folder: Path) -> Iterator[None]:
    """What is printed, by anybody in this process, goes to the run's log."""
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with (folder / LOG).open("ab", buffering=0) as log:
        kept = [os.dup(stream) for stream in (1, 2)]
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    try:
        yield
    except Exception:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream, before in zip((1, 2), kept, strict=True):
            os.dup2(before, stream)
            os.close(before)


def places_for(plan: Plan, out: Path, devices: tuple[str, ...], jobs: int, processes: int) -> list[Place]:
    """A place for every worker: `jobs` on each device."""
    place = Place(out, processes=processes, samples=plan.samples)
    return [replace(place, device=device) for _ in range(jobs) for device in devices]
