"""The audit in a terminal: three sentences, a row for every layer, what theorems say, and on request every null."""

from collections.abc import Iterator

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ..measures.audit import HALVES, Audit
from ..measures.verdicts import EFFECT, NULLS, PICTURES, Judgement, certified, signed, summary, verdicts
from .data import UNTRAINED

COLOURS = {"yes": "green", "collapse": "red", "no": "red", "unknown": "dim", "too few": "dim"}
WIDTH = 80
ABREAST = 5  # nulls in a table


def print_audit(audit: Audit, untrained: Audit | None, nulls: bool = False) -> None:
    """Print an audit, in colours if it is a terminal; `nulls` adds the table of every null."""
    console = Console(width=WIDTH, highlight=False)
    for part in _parts(audit, untrained, nulls):
        console.print(part)


def _parts(audit: Audit, untrained: Audit | None, nulls: bool) -> Iterator[RenderableType]:
    yield f"audit of {audit.samples} pictures, ε = {audit.eps:g}\n"
    yield from summary(audit, untrained)
    yield _layers(audit)
    compress_aim, aim = audit.weights[0].compress_aim, audit.weights[0].aim
    yield (
        (f"{compress_aim} is that of the tokens at unit length, and how the move changes it. " if compress_aim else "")
        + (f"{aim} is that of the code, and how it changes from the step's start, ReLU(Y) or zero. " if aim else "")
        + "“Beside” is the layer less the null that is hardest to beat, as a share of what it was before the move, or"
        f" of what the zero code costs: below 0 the layer does better. “Yes” needs −{100 * EFFECT:g} % or less, a 95 %"
        f" interval below 0, and {PICTURES} pictures."
    )
    notes = [f"layer {verdict.layer}: {note}" for verdict in verdicts(audit) for note in verdict.notes]
    yield from (Text(note) for note in notes)
    yield from (Text(f"theorem: {sentence}") for sentence in certified(audit))
    if nulls:
        yield (
            "\nMeans over the pictures ± half of the 95 % interval; below 0 the layer does better than the null. A dash"
            " stands where a null collapses the tokens, which no layer may do.\n"
        )
        for name, network in {"": audit, f"{UNTRAINED} network, ": untrained}.items():
            for half in HALVES:
                if network is not None:
                    yield from _nulls(network, half, name)


def _layers(audit: Audit) -> Table:
    table = _table()
    aims = (audit.weights[0].compress_aim or "aim", audit.weights[0].aim or "aim")
    for name, aim in zip(HALVES, aims, strict=True):
        table.add_column(f"  {name}", no_wrap=True)
        table.add_column(f"{aim}, %", justify="right", no_wrap=True)
        table.add_column("beside", justify="right", no_wrap=True)
        table.add_column("null", no_wrap=True)
    for verdict in verdicts(audit):
        table.add_row(f"{verdict.layer}", *_cells(verdict.compress), *_cells(verdict.sparsify))
    return table


def _table(title: str | None = None) -> Table:
    """An empty one, of layers."""
    table = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, pad_edge=False)
    table.padding = (0, 0)
    table.add_column("layer", justify="right", min_width=5)
    return table


def _cells(judgement: Judgement) -> list[Text]:
    cells = [Text(f"  {judgement.grade}", COLOURS[judgement.grade])]
    if judgement.change is None:
        return [*cells, Text(""), Text(""), Text("")]
    return [
        *cells,
        *map(Text, (_per_cent(judgement.change.mean), _per_cent(judgement.difference.mean), judgement.best)),
    ]


def _nulls(audit: Audit, half: str, name: str) -> Iterator[Table]:
    """Tables of as many nulls as fit."""
    about = {
        "compress": "R^c less R^c with each null, in per cent of R^c before the step",
        "sparsify": "the code's aim less that of each null, in per cent of the zero code's",
    }[half]
    judged = [getattr(verdict, half) for verdict in verdicts(audit)]
    known = [null for null in NULLS[half] if any(null in (one.nulls or {}) for one in judged)]
    for first in range(0, len(known), ABREAST):
        table = _table(f"{name}{half}: {about}")
        nulls = known[first : first + ABREAST]
        for null in nulls:
            table.add_column(null, justify="right", no_wrap=True, min_width=13)
        for layer, judgement in enumerate(judged, start=1):
            means = [(judgement.nulls or {}).get(null) for null in nulls]
            cells = [
                "–" if mean is None else f"{_per_cent(mean.mean)} ± {50 * (mean.high - mean.low):4.1f}"
                for mean in means
            ]
            table.add_row(f"{layer}", *cells)
        yield table


def _per_cent(change: float) -> str:
    return signed(change).removesuffix(" %")
