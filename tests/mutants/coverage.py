"""Which tests execute a line, measured once by coverage with a context for each test."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from .changes import Mutant

SHAPES = "--jaxtyping-packages=opencrate.objective,opencrate.operators,opencrate.inspection,beartype.beartype"
PLAIN = "not gpu and not slow and not interpreted"
SUITES = {"hooked": (f"not unhooked and {PLAIN}", SHAPES), "unhooked": (f"unhooked and {PLAIN}", "")}
# Tests of documents, fuzzers and the like notice little of the code and take long.
LEFT_OUT = ("tests/fuzz", "tests/reproduction/test_smoke.py")


def arguments(suite: str) -> list[str]:
    """Of pytest, for one of the two suites that `make test` runs."""
    marks, shapes = SUITES[suite]
    return ["-q", "-m", marks, *([shapes] if shapes else [])]


def measure(root: Path, cache: Path, workers: int) -> None:
    """Run all tests, and write which of them execute which lines: {suite: {file: {line: [test, …]}}}."""
    cache.mkdir(parents=True, exist_ok=True)
    lines = {suite: _measure_suite(root, cache, suite, workers) for suite in SUITES}
    (cache / "tests.json").write_text(json.dumps(lines))


def _measure_suite(root: Path, cache: Path, suite: str, workers: int) -> dict[str, dict[int, list[str]]]:
    import coverage

    data = cache / f"{suite}.coverage"
    ignored = [f"--ignore={path}" for path in LEFT_OUT]
    command = [sys.executable, "-m", "pytest", *arguments(suite), "-n", str(workers), *ignored]
    command += ["--cov=opencrate", "--cov-context=test", "--cov-report="]
    environment = os.environ | {"COVERAGE_FILE": str(data), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=root, env=environment, check=False)
    measured = coverage.CoverageData(str(data))
    measured.read()
    lines: dict[str, dict[int, list[str]]] = {}
    for file in measured.measured_files():
        contexts = measured.contexts_by_lineno(file).items()
        named = {line: sorted({name.partition("|")[0] for name in names if name}) for line, names in contexts}
        lines[str(Path(file).relative_to(root))] = named
    return lines


class Coverage:
    """The tests of a line, the most specific first: those that execute the fewest lines in all."""

    def __init__(self, file: Path) -> None:
        self.lines = json.loads(file.read_text())
        self.executed: dict[str, int] = defaultdict(int)
        for files in self.lines.values():
            for lines in files.values():
                for tests in lines.values():
                    for test in tests:
                        self.executed[test] += 1

    def tests_of(self, mutant: Mutant) -> dict[str, list[str]]:
        """By suite. A line that is executed at import, or in other processes alone, has the tests of its part."""
        first, last = mutant.line, mutant.line + mutant.old.count("\n")
        found: dict[str, list[str]] = {}
        for suite, files in self.lines.items():
            lines = files.get(mutant.file, {})
            tests = {test for line in range(first, last + 1) for test in lines.get(str(line), [])}
            found[suite] = sorted(tests, key=lambda test: (self.executed[test], test))
        if not any(found.values()):
            parts = Path(mutant.file).parts
            found = {suite: [f"tests/{parts[1]}" if len(parts) > 2 else "tests"] for suite in self.lines}
        return found
