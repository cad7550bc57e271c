"""Results: results.json as `python -m reproduction` reads it, bench.json as `python -m benchmarks --show` does."""

import io
import json
import os
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console

from benchmarks.measure import measure
from benchmarks.settings import VARIANTS, Bench
from reproduction.command import Reproduction, reproduce
from reproduction.document import _Pictures
from reproduction.results import fingerprint
from reproduction.scales import plan_for

from .crafting import JSON_TEXTS, Change, Files, changed, contents, files_in, json_values, odd_files, written
from .harness import Target
from .mutations import ESCAPE

RESULTS, BENCH = "results.json", "bench.json"
_PLAN = plan_for("smoke", {})
_RUNS = {run.key: run for run in _PLAN.runs}
_fingerprint = cache(lambda key: fingerprint(_RUNS[key], _PLAN.runs))
_KNOWN = {  # what takes long, and is the same for every input
    "command.plan_for": lambda scale, folders: _PLAN,
    "command._workers": lambda settings: (("cpu",), 1, 1),
    "results.fingerprint": lambda run, runs: _fingerprint(run.key),
}


@cache
def _results() -> Files:
    from ..reproduction.filling import filled
    from ..reproduction.test_document import PLAN, row

    with tempfile.TemporaryDirectory() as folder:
        filled(PLAN, Path(folder), row)
        return {RESULTS: files_in(Path(folder))[RESULTS]}


def _write(path: Path) -> str:
    """RESULTS.md, but for the figures."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(_Pictures, "draw", return_value=""))
        for name, value in _KNOWN.items():
            stack.enter_context(mock.patch(f"reproduction.{name}", value))
        file, failures = reproduce(Reproduction("smoke", out=path, write_only=True))
    text = file.read_text()
    assert text.replace("\n", "").isprintable()
    return "\n".join(failures)


def _timing(**more: Any) -> dict[str, Any]:
    ratios = {"pseudocode-eager": 1.5, "vit-eager": 0.8, "sdpa": 1.2, "plain": 3.0}
    return {"spread": 0.01, "rounds": [0.01, 0.02], "times_as_fast_as": ratios} | more


def _comparison(task: str) -> dict[str, Any]:
    what = "step" if task == "training" else "pass"
    speed = _timing(seconds=0.01, pictures_per_second=800.0, share_of_ceiling=0.4)
    same = {"status": "measured", "why": "", "errors": {"outputs": 1e-6, "gradients": None}, "ready_after_seconds": 1.0}
    rows = [{"variant": name, **same, "timings": {what: speed}, "peak_bytes": 2**30} for name in VARIANTS[:4]]
    rows.append({**rows[0], "variant": VARIANTS[-1], "status": "failed", "why": "no compiler", "timings": {}})
    return {
        **{"size": "tiny", "task": task, "batch": 8, "vit": "vit_tiny_patch16_224", "rows": rows},
        **{"parameters": {"crate": 6 * 10**6, "vit": 6 * 10**6}, "flops_per_picture": {"crate": 10**9, "vit": 10**9}},
        **{"baselines": ["pseudocode-eager"], "ceiling": {"flops": 1e12, "operations": 10**9, "rounds": [0.001]}},
    }


def _bench() -> Files:
    row = {"status": "measured", "why": "", "output_error": 1e-6, "gradient_error": 1e-6, "same_bits": True}
    timings = {what: _timing(ms=1.5) for what in ("forward", "forward_backward")}
    rows = [{"implementation": name, **row, "timings": timings} for name in ("kernel", "sdpa", "plain")]
    report = {
        **{"device": "an abacus", "versions": {"torch": "2.11", "timm": "1.0", "cuda": None}, "notes": ["a note"]},
        "options": {"precision": "fp32", "rounds": 3, "tolerance": 2.0},
        "comparisons": [_comparison(task) for task in ("training", "inference", "latency")],
        "attention": [{"kind": "sweep", "b": 8, "n": n, "k": 6, "p": 64, "rows": rows} for n in (64, 256)],
    }
    return {BENCH: json.dumps(report).encode()}


def _show(path: Path) -> str:
    """The tables as printed, and the plot."""
    printed = io.StringIO()
    measure(Bench(show=(path,), out=path), Console(file=printed, width=100, highlight=False))
    return printed.getvalue()


def _keyed(*keys: str) -> list[str]:
    return [f"rows.digits/crate-t/light/seed0.{key}" for key in keys]


SMOKE, SHOWN = written(_results), written(_bench)
ROW = ("task", "top1", "parameters", "made", "made.started", "looks", "looks.fig3.unit.validation.Rc", "looks.audit")
REPORTED = ("device", "options", "versions", "notes", "attention")
COMPARED = ("task", "baselines", "ceiling", "rows")
TIMED = ("variant", "errors", "timings", "timings.step.spread")


def _row(key: str, value: Any) -> Change:
    def change(path: Path) -> None:
        content = json.loads((path / RESULTS).read_text())
        content["rows"]["digits/crate-t/light/seed0"]["looks"]["tokens"][key] = value
        (path / RESULTS).write_text(json.dumps(content))

    return change


CHANGES: dict[str, Change] = {
    "a figure above the folder": _row("figure", "../../../../../etc/passwd"),
    "a figure elsewhere": _row("figure", "/etc/passwd"),
    "a figure of escape codes": _row("figure", f"{ESCAPE}.png"),
    "a figure that is a list": _row("figure", ["tokens.png"]),
    "figures that are a pipe": lambda path: _pipe(path / "figures"),
}


def _pipe(folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / "tokens.png")


TARGETS = (
    Target(
        "results",
        _write,
        {"smoke": SMOKE},
        {
            **changed(SMOKE, CHANGES),
            **json_values(SMOKE, RESULTS, [*_keyed(*ROW), "rows"]),
            **contents(SMOKE, RESULTS, JSON_TEXTS),
            **odd_files(SMOKE, RESULTS),
        },
    ),
    Target(
        "benchmark",
        _show,
        {"report": SHOWN},
        {
            **json_values(SHOWN, BENCH, REPORTED),
            **json_values(SHOWN, BENCH, [f"comparisons.0.{key}" for key in COMPARED]),
            **json_values(SHOWN, BENCH, [f"comparisons.0.rows.0.{key}" for key in TIMED]),
            **json_values(SHOWN, BENCH, [f"attention.0.{key}" for key in ("n", "rows")]),
            **json_values(SHOWN, BENCH, ["comparisons.0.rows.0.timings.step.times_as_fast_as.pseudocode-eager"]),
            **contents(SHOWN, BENCH, JSON_TEXTS),
            **odd_files(SHOWN, BENCH),
        },
    ),
)
