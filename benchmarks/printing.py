"""Printing of a report: a table for every size and task, one for attention, and notes on how to read them."""

from collections.abc import Callable
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

WIDTH = 100  # if the output is not a terminal
NONE = "–"
TITLES = {"training": "Training", "inference": "Inference", "latency": "Latency of one picture"}
MEASURES = {"training": "step", "inference": "pass", "latency": "pass"}

Cells = dict[str, Any]
Column = tuple[str, Callable[[Cells], str]]


def make_console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=WIDTH, highlight=False)


def print_heading(report: Cells, console: Console) -> None:
    precision, versions = report["options"]["precision"], report["versions"]
    libraries = f"torch {versions['torch']}, timm {versions['timm']}"
    console.print(f"[bold]{escape(report['device'])}[/bold], {precision}, {libraries}")


def print_comparison(comparison: Cells, console: Console) -> None:
    millions = {name: count / 1e6 for name, count in comparison["parameters"].items()}
    title = f"{TITLES[comparison['task']]}: CRATE-{comparison['size'].title()} ({millions['crate']:.1f} M)"
    title += f", {comparison['vit']} ({millions['vit']:.1f} M)"
    title += f", batch {comparison['batch']}" if comparison["batch"] > 1 else ""
    table = _table(title)
    table.add_column("variant", no_wrap=True)
    columns = _latency_columns(comparison) if comparison["task"] == "latency" else _speed_columns(comparison)
    for header, _ in columns:
        table.add_column(header, justify="right")
    table.add_column("error", justify="right", no_wrap=True)
    for row in comparison["rows"]:
        cells = [cell(row) for _, cell in columns]
        if row["status"] != "measured":
            cells[0] = _status_cell(row["status"], row["errors"])
        table.add_row(row["variant"], *cells, _error(row["errors"]), style=_style(row["variant"]))
    if comparison["ceiling"]:
        table.caption = f"ceiling: {comparison['ceiling']['flops'] / 1e12:,.3g} TFLOP/s"
    console.print()
    console.print(table)
    _print_reasons([(row["variant"], row["why"]) for row in comparison["rows"]], console)


def _table(title: str) -> Table:
    return Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        pad_edge=False,
    )


def _style(name: str) -> str | None:
    return "green" if name.startswith(("opencrate", "folded", "kernel")) else None


def _status_cell(status: str, errors: dict[str, float | None]) -> str:
    return f"disagrees (error {_error(errors)})" if status == "disagrees" else status


def _print_reasons(reasons: list[tuple[str, str]], console: Console) -> None:
    """Why variants have no speed, each reason once."""
    for why in dict.fromkeys(why for _, why in reasons if why):
        names = [name for name, other in reasons if other == why]
        names = names if len(names) <= 3 else [names[0], "…", names[-1]]
        console.print(f"{', '.join(names)}: {escape(why)}", style="red")


def _speed_columns(comparison: Cells) -> list[Column]:
    what = MEASURES[comparison["task"]]
    return [
        ("img/s", lambda row: _timing_cell(row, what, "pictures_per_second", _number)),
        ("±", lambda row: _timing_cell(row, what, "spread", _share)),
        *[_ratio_column(what, name) for name in comparison["baselines"]],
        ("MFU", lambda row: _timing_cell(row, what, "share_of_ceiling", _share)),
        ("peak GiB", lambda row: NONE if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.2f}"),
    ]


def _latency_columns(comparison: Cells) -> list[Column]:
    recorded = any("recorded pass" in row["timings"] for row in comparison["rows"])
    columns = _waiting_columns("pass", "ms", comparison)
    return columns + _waiting_columns("recorded pass", "ms\nrecorded", comparison) if recorded else columns


def _waiting_columns(what: str, header: str, comparison: Cells) -> list[Column]:
    return [
        (header, lambda row: _milliseconds(row, what)),
        *[_ratio_column(what, name) for name in comparison["baselines"]],
    ]


def _ratio_column(what: str, baseline: str) -> Column:
    network, _, mode = baseline.partition("-")
    header = f"× {network}\n{mode}".replace("pseudocode", "pseudo-\ncode")
    return header, lambda row: _ratio(row, what, baseline)


def _ratio(row: Cells, what: str, baseline: str) -> str:
    ratio = row["timings"].get(what, {}).get("times_as_fast_as", {}).get(baseline)
    return NONE if ratio is None else f"{ratio:.2f}"


def _timing_cell(row: Cells, what: str, field: str, form: Callable[[float], str]) -> str:
    value = row["timings"].get(what, {}).get(field)
    return NONE if value is None else form(value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _share(value: float) -> str:
    return f"{value:.1%}"


def _milliseconds(row: Cells, what: str) -> str:
    timing = row["timings"].get(what)
    return f"{timing['seconds'] * 1e3:.3f} ±{timing['spread']:.0%}" if timing else NONE


def _error(errors: dict[str, float | None]) -> str:
    """The errors of outputs and, in training, of gradients."""
    shown = [errors[what] for what in ("outputs", "gradients") if errors.get(what) is not None]
    return ", ".join(f"{error:.0e}" for error in shown) or NONE


def print_attention(report: Cells, console: Console) -> None:
    if not report["attention"]:
        return
    table = _table("Attention alone, by tokens b × n × k × p")
    for name in ("shape", "by"):
        table.add_column(name, no_wrap=True)
    for header in ("forward\nms", "× sdpa", "with backward\nms", "× sdpa", "× plain", "gradient\nerror", "same\nbits"):
        table.add_column(header, justify="right")
    reasons = []
    for shape in report["attention"]:
        name = "×".join(str(shape[axis]) for axis in "bnkp")
        reasons += [(f"{row['implementation']} ({name})", row["why"]) for row in shape["rows"]]
        shown = [row for row in shape["rows"] if row["status"] != "left out"]
        for row in shown:
            first, last = row is shown[0], row is shown[-1]
            cells = _attention_cells(row)
            style = _style(row["implementation"])
            table.add_row(name if first else "", row["implementation"], *cells, end_section=last, style=style)
    console.print()
    console.print(table)
    _print_reasons(reasons, console)


def _attention_cells(row: Cells) -> list[str]:
    both = "forward_backward"
    forward = _timing_cell(row, "forward", "ms", "{:.3f}".format)
    if row["status"] != "measured":
        forward = _status_cell(row["status"], {"gradients": row["gradient_error"]})
    return [
        forward,
        _ratio(row, "forward", "sdpa"),
        _timing_cell(row, both, "ms", "{:.3f}".format),
        _ratio(row, both, "sdpa"),
        _ratio(row, both, "plain"),
        _error({"gradients": row["gradient_error"]}),
        {True: "yes", False: "no", None: NONE}[row["same_bits"]],
    ]


def print_notes(report: Cells, console: Console) -> None:
    options = report["options"]
    notes = [
        *report["notes"],
        f"img/s, ms: median of {options['rounds']} windows in which variants take turns; ± is half their range. × is"
        " how many times as fast, the median of the rounds' ratios.",
    ]
    if report["comparisons"]:
        notes += [
            "A training step: forward, cross-entropy, backward, Lion, the loss read meanwhile; pictures on the device."
            " Compiled: torch.compile of the entire network with its defaults.",
            "MFU: share of the ceiling, which is a large matrix product that takes turns with the variants. It counts"
            " the products that the logits need (one for ISTA, only the class token in the last layer, nothing twice),"
            " the same for all variants; backward counts twice.",
            "Peak: memory of a step or pass, with the variant's weights, gradients and optimiser state, and one batch;"
            " without that of other variants.",
        ]
    notes.append(
        f"Error: relative to float64, of outputs and gradients; up to {options['tolerance']:g} times that of the plain"
        " form (eager pseudocode, eager ViT, matrices) in the same precision, plus a rounding, counts as agreement."
    )
    console.print()
    for note in notes:
        console.print(f"• {escape(note)}", style="dim")
