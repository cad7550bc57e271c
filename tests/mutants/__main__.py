"""Draws mutants, runs the tests that execute their lines, and prints which were caught: `make mutants`."""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from queue import Queue

from .changes import Mutant, mutants, walk
from .coverage import Coverage, measure
from .running import Worker

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "mutants"
# Triton's kernels are left out: their tests run in an interpreter, or on a GPU.
AREAS = ("objective", "operators", "layers", "stack", "models", "speed", "measures", "tasks", "training", "data")
LEFT_OUT = ("symmetric_triton.py",)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--count", type=int, default=160, help="mutants in all")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="decides which")
    parser.add_argument("--workers", type=int, default=2, help="processes that test")
    parser.add_argument("--seconds", type=float, default=600, help="of tests for one mutant")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of mutants of this seed")
    parser.add_argument("--areas", nargs="*", default=AREAS, help="parts of opencrate")
    parser.add_argument("--show", action="store_true", help="list them, and run nothing")
    parser.add_argument("--measure", action="store_true", help="learn again which tests execute a line")
    chosen = parser.parse_args()
    drawn = draw(chosen.count, chosen.seed, tuple(chosen.areas))
    numbers = chosen.only or range(len(drawn))
    print(f"seed {chosen.seed}, {len(drawn)} mutants", flush=True)
    if chosen.show:
        for number in numbers:
            print(f"{number:4d}  {drawn[number]}")
        return
    if chosen.measure or not (CACHE / "tests.json").exists():
        measure(ROOT, CACHE, chosen.workers)
    coverage = Coverage(ROOT, CACHE / "tests.json")
    survivors = test({number: drawn[number] for number in numbers}, coverage, chosen.workers, chosen.seconds)
    caught, by_area = len(numbers) - len(survivors), Counter(_area(drawn[number]) for number in numbers)
    escaped = Counter(_area(drawn[number]) for number in survivors)
    print(f"\n{datetime.now(UTC):%Y-%m-%d}, seed {chosen.seed}\n\n| part | mutants | caught |\n|---|--:|--:|")
    for area, count in sorted(by_area.items()):
        print(f"| {area} | {count} | {count - escaped[area]} |")
    print(f"| all | {len(numbers)} | {caught} ({100 * caught / len(numbers):.0f} %) |")
    for number in sorted(survivors):
        print(f"- survived {number}: {drawn[number]}")
    sys.exit(bool(survivors))


def draw(count: int, seed: int, areas: tuple[str, ...]) -> list[Mutant]:
    """Mutants by chance, from every part as many as its share of all."""
    files = [file for file in walk(ROOT, areas) if file.name not in LEFT_OUT]
    every = [mutant for file in files for mutant in mutants(ROOT, file)]
    return random.Random(seed).sample(every, count)


def test(wanted: dict[int, Mutant], coverage: Coverage, workers: int, seconds: float) -> list[int]:
    """The numbers of those that no test noticed."""
    survivors: list[int] = []
    done, start = iter(range(1, len(wanted) + 1)), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="opencrate-mutants-") as folder:
        idle: Queue[Worker] = Queue()
        for number in range(workers):
            idle.put(Worker(ROOT, Path(folder) / str(number)))

        def one(number: int) -> None:
            mutant, worker = wanted[number], idle.get()
            try:
                verdict = worker.run(mutant, coverage.tests_of(mutant), seconds)
            finally:
                idle.put(worker)
            if not verdict.caught:
                survivors.append(number)
            passed = time.monotonic() - start
            print(f"[{next(done)}/{len(wanted)}, {passed:.0f} s] {number}: {mutant}\n    {verdict}", flush=True)

        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(one, wanted))
        for _ in range(workers):
            shutil.rmtree(idle.get().folder, ignore_errors=True)
    return survivors


def _area(mutant: Mutant) -> str:
    return Path(mutant.file).parts[1].removesuffix(".py")


if __name__ == "__main__":
    main()
