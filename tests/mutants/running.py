"""Runs tests on a copy of the project in which one thing is changed, in a process that has imported torch before."""

import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from .changes import Mutant
from .coverage import SUITES, arguments

COPIED = ("opencrate", "tests", "benchmarks", "reproduction", "examples", "docs", "pyproject.toml", "README.md")
AT_ONCE = 60  # tests in one process, so that the most specific ones are over before the others are collected
FORKS = get_context("fork")


@dataclass(frozen=True)
class Verdict:
    caught: bool
    by: str
    tests: int
    seconds: float

    def __str__(self) -> str:
        word = f"caught by {self.by}" if self.caught else f"SURVIVED {self.tests} tests or folders ({self.by})"
        return f"{word}, {self.seconds:.0f} s"


class Worker:
    """A copy of the project, in which one mutant after another is tested."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        folder.mkdir(parents=True)
        for name in COPIED:
            source = root / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, folder / name)

    def run(self, mutant: Mutant, tests: list[tuple[str, list[str]]], seconds: float) -> Verdict:
        start, count = time.monotonic(), 0
        mutant.apply(self.folder)
        try:
            for suite, names in tests:
                for first in range(0, len(names), AT_ONCE):
                    left = seconds - (time.monotonic() - start)
                    if left < 0:
                        return Verdict(False, f"of {sum(len(names) for _, names in tests)}", count, seconds)
                    some = names[first : first + AT_ONCE]
                    code, failed = self._pytest(suite, some, left)
                    if code not in (0, 5):  # 5: no test was left to run
                        return Verdict(True, failed, count, time.monotonic() - start)
                    count += len(some)
            return Verdict(False, "all of its line and part", count, time.monotonic() - start)
        finally:
            shutil.copy(self.root / mutant.file, self.folder / mutant.file)

    def _pytest(self, suite: str, tests: list[str], seconds: float) -> tuple[int, str]:
        receiver, sender = FORKS.Pipe(duplex=False)
        process = FORKS.Process(target=_pytest_in, args=(self.folder, suite, tests, sender))
        process.start()
        sender.close()
        outcome: tuple[int, str] = (0, "")
        try:
            if receiver.poll(max(seconds, 60)):
                outcome = receiver.recv()
            # otherwise the time is over, and nothing has failed
        except EOFError:
            outcome = (1, "a test that did not end, or a process that died")
        _end(process)
        return outcome


def _end(process: Any) -> None:
    """End a process and all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()
    process.join()


class _First:
    """Remembers the first test that fails."""

    name = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.name:
            self.name = f"collecting {report.nodeid}"


def _pytest_in(folder: Path, suite: str, tests: list[str], sender: Any) -> None:
    os.setpgid(0, 0)
    os.chdir(folder)
    os.environ |= {"PYTHONPATH": str(folder), **SUITES[suite][2]}
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # two mutants of one second and size would share byte code
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "opencrate", "benchmarks")]:
        del sys.modules[name]
    with open(os.devnull, "w") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    import pytest

    first = _First()
    options = ["-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(folder)]
    # By a signal, hypothesis would take the end of the time for one more example that fails, and go on.
    options += ["--timeout", "60", "--timeout-method", "thread"]
    code = pytest.main([*arguments(suite), *options, *tests], plugins=[first])
    sender.send((int(code), first.name or f"pytest ({code})"))
    sender.close()
    os._exit(0)
