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
# The suites of `make test`: marks, a further argument, and what is set in the environment.
SUITES = {
    "hooked": (f"not unhooked and {PLAIN}", SHAPES, {}),
    "unhooked": (f"unhooked and {PLAIN}", "", {}),
    "interpreted": ("interpreted", "", {"TRITON_INTERPRET": "1"}),
}
INTERPRETED = "tests/operators"  # where the tests of Triton's kernels are
# Tests of documents, fuzzers and the like notice little of the code and take long.
LEFT_OUT = ("tests/fuzz", "tests/reproduction/test_smoke.py")


def arguments(suite: str) -> list[str]:
    """Of pytest, for one of the suites that `make test` runs."""
    marks, shapes, _ = SUITES[suite]
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
    command += [INTERPRETED] if suite == "interpreted" else []
    environment = os.environ | {"COVERAGE_FILE": str(data), "OMP_NUM_THREADS": "1"} | SUITES[suite][2]
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

    def __init__(self, root: Path, file: Path) -> None:
        self.root, self.lines = root, json.loads(file.read_text())
        self.executed: dict[str, int] = defaultdict(int)
        for files in self.lines.values():
            for lines in files.values():
                for tests in lines.values():
                    for test in tests:
                        self.executed[test] += 1

    def tests_of(self, mutant: Mutant) -> list[tuple[str, list[str]]]:
        """(suite, tests) in the order in which they run: those that execute the line, then all of its part.

        Coverage does not see what other processes execute, such as the workers of a feed or the processes of a run. A
        line outside of functions is executed by whichever test imports the file first: its tests are the file's.
        """
        first, last = mutant.line, mutant.line + mutant.old.count("\n")
        found: list[tuple[str, list[str]]] = []
        for suite, files in self.lines.items():
            lines = files.get(mutant.file, {})
            numbers = lines if mutant.at_import else map(str, range(first, last + 1))
            tests = {test for number in numbers for test in lines.get(number, [])}
            found.append((suite, sorted(tests, key=lambda test: (self.executed[test], test))))
        if "kernels" in mutant.file:
            found.append(("interpreted", [INTERPRETED]))
        part = self._tests_of_part(mutant.file)
        found += [(suite, part) for suite in ("hooked", "unhooked")]
        return [(suite, tests) for suite, tests in found if tests] or [("hooked", ["tests"]), ("unhooked", ["tests"])]

    def _tests_of_part(self, file: str) -> list[str]:
        """tests/training and tests/test_cli_training.py for opencrate/training/…"""
        part, tests = Path(file).parts[1].removesuffix(".py"), self.root / "tests"
        paths = [tests / part, *sorted(tests.glob(f"test*_{part}*.py"))]
        return [str(path.relative_to(self.root)) for path in paths if path.exists()]
