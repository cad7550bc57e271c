"""`opencrate analyze`: open the network and its pictures, run the parts, write the page."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from ..distributed import joined
from ..measures.audit import Audit, audit
from ..settings import Analysis, Auditing
from ..study import Study, open_study
from . import layer_sections as parts
from . import visual_sections as looks
from .page import write_page
from .sections import Folder, Section

__all__ = ["PARTS", "Analysis", "Auditing", "analyze", "audit_of"]

Part = Callable[[Study, Folder, Analysis], Section | None]
PARTS: dict[str, Part] = {  # the names and the order of settings.SECTIONS
    "layers": parts.layers,
    "audit": parts.audited,
    "epochs": parts.epochs,
    "subspaces": parts.subspaces,
    "tokens": looks.tokens,
    "attention": looks.attention,
    "patches": looks.patches,
    "ablation": looks.ablation,
}


def analyze(source: str, settings: Analysis) -> Path:
    """Write the analysis of a run, a checkpoint or a network's name, and return the page."""
    began = time.monotonic()
    with joined(settings.device) as world, _reporting() as report:
        report("opening the network and its pictures", 0, 1)
        compared = not settings.only or "layers" in settings.only
        study = open_study(source, settings, world.device, training=compared, chosen=settings.pictures)
        chosen = _chosen(study, settings)
        folder = Folder((settings.out or (study.run or Path("out")) / "analysis").expanduser())
        sections = []
        for number, (name, part) in enumerate(chosen.items()):
            report(name, number, len(chosen))
            section = part(study, folder, settings)
            if section is not None:
                sections.append(section)
        report("the page", len(chosen), len(chosen))
        return write_page(study, folder, settings, sections, time.monotonic() - began)


def audit_of(source: str, settings: Auditing) -> Audit:
    """The audit alone, without files."""
    with joined(settings.device) as world, _reporting("pictures") as report:
        study = open_study(source, settings, world.device)
        total = min(study.samples, len(study.pictures[0].feed))

        def batches() -> Iterator[Tensor]:
            done = 0
            for batch in study.batches():
                report("audit", done, total)
                yield batch
                done += len(batch)

        return audit(study.model, batches(), settings.eps)


def _chosen(study: Study, settings: Analysis) -> dict[str, Part]:
    if not study.is_crate:
        for name in ("only", "against", "token", "pictures"):
            if getattr(settings, name):
                raise ValueError(f"--{name} is for a CRATE, and {study.source} is another network")
        return {"tokens": parts.baseline}
    chosen = {name: part for name, part in PARTS.items() if not settings.only or name in settings.only}
    compression = study.model.blocks[0].compress.operator
    if not compression.has("maps"):
        if "attention" in settings.only:
            raise ValueError(f"the compression {compression.name} has no attention to draw")
        chosen.pop("attention", None)
    if "attention" in chosen:
        tokens = study.grid[0] * study.grid[1]
        if not 0 <= settings.token <= tokens:
            raise ValueError(f"token must be a whole number from 0 to {tokens}, got {settings.token}")
    if settings.pictures:
        _ = study.gallery  # says at once if there is no such picture
    return chosen


@contextmanager
def _reporting(unit: str = "parts") -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on a terminal, plain lines elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda words, done, total: print(f"opencrate: {words} ({done} of {total} {unit} done)", file=sys.stderr)
        return
    columns = (
        TextColumn("{task.description:<38}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("")
        yield lambda words, done, total: bar.update(task, description=words, completed=done, total=total)
