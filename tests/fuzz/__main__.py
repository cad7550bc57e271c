"""Many cases of every target, and a table of counts in Markdown: `make fuzz`."""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from .harness import Result, fixed_cases, mutated_cases, read_case, run, targets


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--count", type=int, default=10_000, help="mutated inputs in all")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="decides how they are mutated")
    parser.add_argument("--workers", type=int, default=2, help="processes that read")
    parser.add_argument("--only", default="", help="names of targets, with commas between them")
    parser.add_argument("--case", help="one case alone, with its traceback: 'mutated 17', 'crafted NAME'")
    parser.add_argument("--keep", type=Path, help="where the input of --case is left")
    chosen = parser.parse_args()
    known = targets()
    names = chosen.only.split(",") if chosen.only else list(known)
    if chosen.case:
        _one(chosen, names[0])
        return
    print(f"seed {chosen.seed}", flush=True)
    each = -(-chosen.count // len(names))
    rows, failed, start = {}, [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="opencrate-fuzz-") as folder:
        for name in names:
            target = known[name]
            cases = [*fixed_cases(target), *mutated_cases(target, chosen.seed, range(each))]
            results = list(run(cases, Path(folder), chosen.workers))
            rows[name] = row(results)
            bad = [result for result in results if result.outcome == "bad"]
            failed += bad
            print(f"{name}: {len(results)} read after {time.monotonic() - start:.0f} s, {len(bad)} bad", flush=True)
            for result in bad:
                print(f"- {result}", flush=True)
    print(f"\n{datetime.now(UTC):%Y-%m-%d}, seed {chosen.seed}\n\n{table(rows)}")
    sys.exit(bool(failed))


def _one(chosen: argparse.Namespace, name: str) -> None:
    from .harness import Case

    kind, _, case = chosen.case.partition(" ")
    folder = chosen.keep or Path(tempfile.mkdtemp(prefix="opencrate-fuzz-"))
    result = read_case(targets()[name], Case(name, kind, case, chosen.seed), folder, with_traceback=True)
    print(f"{result.outcome} after {result.seconds:.1f} s, {result.memory >> 20} MiB: {result.detail}")
    print(f"the input is in {folder / 'case'}")


def row(results: list[Result]) -> list[str]:
    kinds = Counter(result.case.kind for result in results)
    outcomes = Counter(result.outcome for result in results if result.case.kind != "seed")
    longest, most = max(result.seconds for result in results), max(result.memory for result in results)
    counts = (kinds["crafted"], kinds["mutated"], outcomes["ok"], outcomes["sentence"], outcomes["bad"])
    return [*(f"{count:,}" for count in counts), f"{longest:.1f}", f"{most >> 20:,}"]


def table(rows: dict[str, list[str]]) -> str:
    titles = ["reader", "crafted", "mutated", "ok", "sentence", "bad", "longest, s", "most memory, MiB"]
    values = [[float(text.replace(",", "")) for text in texts] for texts in rows.values()]
    columns = list(zip(*values, strict=True))
    sums = [*(f"{sum(column):,.0f}" for column in columns[:5]), f"{max(columns[5]):.1f}", f"{max(columns[6]):,.0f}"]
    lines = [titles, ["---", *["--:"] * 7], *([name, *texts] for name, texts in rows.items()), ["all", *sums]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
