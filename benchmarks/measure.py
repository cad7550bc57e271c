"""The benchmark: sizes and tasks one after another, attention last; every result is saved at once."""

import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pydantic_core import to_jsonable_python
from rich.console import Console

from opencrate.training.start import provenance

from .attention import measure_attention, shapes_for
from .comparison import Comparison, Task
from .plot import draw
from .printing import print_attention, print_comparison, print_heading, print_notes
from .report_file import JSON, comparison_json, merge_reports, read, write
from .settings import Bench
from .variants import Family

PLOT = "bench.png"
WINDOWS = {
    "training": 1.0,
    "inference": 0.5,
    "latency": 0.25,
    "attention": 0.05,
}  # the length of a window relative to --seconds


def measure(bench: Bench, console: Console) -> dict[str, Any]:
    """Measure, or read earlier reports (--show); print, draw and return the report."""
    if bench.show:
        report = merge_reports([read(file) for file in bench.show])
        print_heading(report, console)
        for comparison in report["comparisons"]:
            print_comparison(comparison, console)
    else:
        report = _measure(bench.resolved(), console)
    print_attention(report, console)
    print_notes(report, console)
    draw(report, bench.out / PLOT, console)
    return report


def _measure(bench: Bench, console: Console) -> dict[str, Any]:
    began, device, file = time.perf_counter(), torch.device(bench.device), bench.out / JSON
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # the device on which streams are created
    report: dict[str, Any] = provenance(seed=0, options=to_jsonable_python(asdict(bench)))
    report |= {"device": device_name(device), "notes": _notes(bench), "comparisons": [], "attention": []}

    def save() -> None:
        report["seconds"] = time.perf_counter() - began
        write(report, file)

    def log(sentence: str) -> None:
        console.print(f"[dim]{sentence}[/dim]", highlight=False)

    seconds, rounds = bench.seconds or 1.0, bench.rounds or 1
    print_heading(report, console)
    bench.out.mkdir(parents=True, exist_ok=True)  # an earlier bench.json stays until there is a measurement
    for size in bench.sizes:
        family = Family(size, device)
        for task in _tasks(bench, size):
            comparison = Comparison(task, family, bench.variants, bench.precision or "fp32", bench.tolerance)
            comparison.run(seconds * WINDOWS[task.name], rounds, log)
            report["comparisons"].append(comparison_json(comparison))
            print_comparison(report["comparisons"][-1], console)
            save()
    if "attention" in bench.only:
        for kind, shape in shapes_for(device.type == "cuda", bench.quick):
            precision, tolerance = str(bench.precision), bench.tolerance
            window = seconds * WINDOWS["attention"]
            result = measure_attention(kind, shape, device, precision, tolerance, window, rounds)
            report["attention"].append(result)
            save()
    save()
    return report


def _tasks(bench: Bench, size: str) -> list[Task]:
    """Memory is measured in training, and in inference if that is measured, too."""
    batch, memory = bench.batch_of(size), "memory" in bench.only
    tasks = []
    if "training" in bench.only or (memory and "inference" not in bench.only):
        tasks.append(Task("training", batch, time="training" in bench.only, memory=memory))
    if "inference" in bench.only:
        tasks.append(Task("inference", batch, memory=memory))
    if "latency" in bench.only:
        tasks.append(Task("latency", 1))
    return tasks


def _notes(bench: Bench) -> list[str]:
    if bench.quick:
        return ["--quick compiles nothing, because that takes longer than a minute; --variants can name compiled ones."]
    return []


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.machine()}, {torch.get_num_threads()} threads"
