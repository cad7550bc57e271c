"""The benchmark as a picture: relative speeds as bars, and attention's cost against the number of tokens."""

from pathlib import Path
from typing import Any

from rich.console import Console

from opencrate.figures.canvas import INK, PALE

COLOURS = {"pseudocode": "#9aa5b1", "opencrate": "#1f6f8b", "folded": "#e07a3f", "vit": "#5b4b8a"}
LINES = {"kernel": "#1f6f8b", "sdpa": "#5b4b8a", "plain": "#9aa5b1"}
LABELS = {"kernel": "our kernel", "sdpa": "torch SDPA", "plain": "plain matrices"}
WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}


def draw(report: dict[str, Any], file: Path, console: Console) -> None:
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        console.print("No plot: matplotlib is missing (pip install 'opencrate[report]').")
        return
    groups = _groups(report)
    sweep = [shape for shape in report["attention"] if shape["kind"] == "sweep"]
    panels = [panel for panel, content in (("bars", groups), ("lines", sweep)) if content]
    if not panels:
        return
    bars = sum(len(group["bars"]) + 2 for group in groups)
    height = max(4.2, 0.24 * bars + 1.2) if groups else 4.2
    style: dict[Any, Any] = {"font.family": "DejaVu Sans", "font.size": 9, "text.color": INK, "axes.edgecolor": PALE}
    with rc_context({**style, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}):
        figure = Figure((5.6 * len(panels) + 0.4, height))
        axes = figure.subplots(1, len(panels), squeeze=False)
        for axis, panel in zip(axes[0], panels, strict=True):
            axis.spines[["top", "right"]].set_visible(False)
            _draw_bars(axis, groups) if panel == "bars" else _draw_lines(axis, sweep)
        figure.suptitle(f"{report['device']}, {report['options']['precision']}", x=0.01, ha="left", fontsize=9)
        figure.tight_layout(w_pad=3)
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=160, bbox_inches="tight", pad_inches=0.15)
    console.print(f"drew {file}")


def _groups(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Bars of every size and task: how many times as fast as the last of its baselines a variant is."""
    groups = []
    for comparison in report["comparisons"]:
        if not comparison["baselines"]:
            continue
        baseline, what = comparison["baselines"][-1], "step" if comparison["task"] == "training" else "pass"
        bars = [
            (row["variant"], row["timings"][what]["times_as_fast_as"][baseline])
            for row in comparison["rows"]
            if baseline in row["timings"].get(what, {}).get("times_as_fast_as", {})
        ]
        one = baseline.replace("-", " ").replace("vit", comparison["vit"].removesuffix("_patch16_224"))
        title = f"{comparison['task'].title()}, batch {comparison['batch']}: CRATE-{comparison['size'].title()}"
        groups.append({"title": f"{title} (1 is {one})", "bars": bars})
    return groups


def _draw_bars(axis: Any, groups: list[dict[str, Any]]) -> None:
    place, longest = 0.0, max(ratio for group in groups for _, ratio in group["bars"])
    ticks = []
    for group in groups:
        axis.text(0, place, group["title"], fontweight="bold", va="center", bbox=WHITE, zorder=4)
        for variant, ratio in group["bars"]:
            place += 1
            network, _, mode = variant.partition("-")
            colour = COLOURS[network]
            filled = mode != "eager"
            axis.barh(place, ratio, 0.78, color=colour if filled else "white", edgecolor=colour, linewidth=1.2)
            axis.text(ratio + 0.012 * longest, place, f"{ratio:.2f}", va="center", fontsize=8, bbox=WHITE, zorder=4)
            ticks.append((place, f"{network} {mode}"))
        place += 1.6
    axis.axvline(1, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=3)
    axis.set_yticks([tick for tick, _ in ticks], [name for _, name in ticks], fontsize=8)
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(place - 0.6, -0.8)
    axis.set_xlim(0, 1.12 * longest)
    axis.spines["left"].set_visible(False)
    axis.set_xlabel("times as fast")


def _draw_lines(axis: Any, sweep: list[dict[str, Any]]) -> None:
    from matplotlib.ticker import LogLocator

    tokens = sweep[0]["b"] * sweep[0]["n"]
    for name, colour in LINES.items():
        for what, style in (("forward_backward", "-"), ("forward", (0, (1, 1.5)))):
            points = [
                (shape["n"], row["timings"][what]["ms"])
                for shape in sweep
                for row in shape["rows"]
                if row["implementation"] == name and what in row["timings"]
            ]
            if points:
                label = LABELS[name] if what == "forward_backward" else None
                n, ms = zip(*points, strict=True)
                axis.plot(n, ms, color=colour, linestyle=style, marker="o", markersize=3.5, linewidth=1.6, label=label)
    axis.set_anchor("N")
    axis.set_box_aspect(0.9)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    counts = [shape["n"] for shape in sweep]
    axis.set_xticks(counts, [f"{n:,}" for n in counts], rotation=40, ha="right")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(lambda ms, _: f"{ms:g}")
    axis.minorticks_off()
    axis.grid(color=PALE, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.set_xlabel(f"tokens n, with {tokens:,} in all ({sweep[0]['k']} heads of {sweep[0]['p']})")
    axis.set_ylabel("ms, forward and backward (dotted: forward)")
    axis.set_title("Attention alone", loc="left", fontweight="bold", fontsize=9, pad=22)
    axis.legend(frameon=False, loc="lower left", bbox_to_anchor=(-0.02, 0.99), ncols=3, borderaxespad=0.2)
