"""bench.json: the tables and the plot are made from it, at once or later."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from opencrate.errors import one_line
from opencrate.files import read_json, write_json
from opencrate.run_records import checked

from .comparison import Comparison, Row
from .flops import flops_of
from .report_form import REPORT
from .timing import Timing
from .variants import count_parameters

JSON = "bench.json"


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    family, task, rows = comparison.family, comparison.task, list(comparison.rows.values())
    ceiling = comparison.ceiling
    networks = {"crate": family.crate, "vit": family.vit}
    flops = {name: flops_of(network, task.name == "training") for name, network in networks.items()}
    return {
        "size": family.size,
        "task": task.name,
        "batch": task.batch,
        "vit": family.vit_name,
        "parameters": {name: count_parameters(network) for name, network in networks.items()},
        "flops_per_picture": flops,
        "baselines": [row.variant for row in _baselines(rows)],
        "ceiling": ceiling
        and {"flops": ceiling[1] / ceiling[0].median, "operations": ceiling[1], "rounds": list(ceiling[0].rounds)},
        "rows": [_row_json(row, _baselines(rows), task.batch, flops, ceiling) for row in rows],
    }


def _baselines(rows: list[Row]) -> list[Row]:
    """The variants that ratios refer to: the eager pseudocode, and the compiled ViT or else the eager one."""
    timed = {row.variant: row for row in rows if row.timings}
    choices = (("pseudocode-eager",), ("vit-compiled", "vit-eager"))
    return [known[0] for names in choices if (known := [timed[name] for name in names if name in timed])]


def _row_json(
    row: Row, baselines: list[Row], batch: int, flops: dict[str, int], ceiling: tuple[Timing, int] | None
) -> dict[str, Any]:
    work = batch * flops["vit" if row.variant.startswith("vit") else "crate"]
    timings = {}
    for what, timing in row.timings.items():
        timings[what] = {
            "seconds": timing.median,
            "spread": timing.spread,
            "rounds": list(timing.rounds),
            "pictures_per_second": batch / timing.median,
            "share_of_ceiling": timing.times_as_fast_as(ceiling[0]) * work / ceiling[1] if ceiling else None,
            "times_as_fast_as": {
                other.variant: timing.times_as_fast_as(other.timings[what])
                for other in baselines
                if what in other.timings
            },
        }
    return {
        "variant": row.variant,
        "status": row.status,
        "why": row.why,
        "errors": to_jsonable_python(asdict(row.errors) if row.errors else {}, inf_nan_mode="null"),
        "ready_after_seconds": row.ready_after,
        "timings": timings,
        "peak_bytes": row.peak,
    }


def disagreements(report: dict[str, Any]) -> list[str]:
    """The variants that were not timed because their results disagree."""
    variants = []
    for table in [*report["comparisons"], *report["attention"]]:
        where = f"{table['size']} {table['task']}" if "task" in table else f"attention of {table['n']} tokens"
        names = [row.get("variant") or row["implementation"] for row in table["rows"] if row["status"] == "disagrees"]
        variants += [f"{name} in {where}" for name in names]
    return variants


def write(report: dict[str, Any], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, report, indent=1)


def merge_reports(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Several reports of one machine as one, with the device and the options of the first."""
    merged = dict(reports[0])
    for part in ("notes", "comparisons", "attention"):
        merged[part] = [entry for report in reports for entry in report[part]]
    merged["notes"] = list(dict.fromkeys(merged["notes"]))
    return merged


def read(file: Path) -> dict[str, Any]:
    """Read a report; `file` may be its folder."""
    file = file / JSON if file.is_dir() else file
    if not file.is_file():
        raise ValueError(f"{file} does not exist")
    try:
        report: dict[str, Any] = checked(read_json(file), REPORT)
    except ValueError as error:
        reason = one_line(str(error).removeprefix(f"{file} "))
        raise ValueError(f"{file} is not a report of `python -m benchmarks` ({reason})") from error
    if not report["comparisons"] and not report["attention"]:
        raise ValueError(f"{file} has no measurement, because its run was stopped before the first")
    return report
