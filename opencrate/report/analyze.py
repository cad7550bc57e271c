"""`opencrate analyze`: open the network and its pictures, build the sections, write the page."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from ..distributed import joined
from ..measures.audit import Audit, audit
from ..settings import Analysis, Auditing
from ..study import Study, open_study
from . import accuracy_section, layer_sections, visual_sections
from .data import UNTRAINED, NotApplicable, ReportData
from .page import write_page
from .sections import Section, prepared

Builder = Callable[[ReportData, Section], None]
BUILDERS: dict[str, Builder] = {  # the names and the order of settings.SECTIONS
    "accuracy": accuracy_section.accuracy,
    "layers": layer_sections.layers,
    "audit": layer_sections.audited,
    "epochs": layer_sections.epochs,
    "subspaces": layer_sections.subspaces,
    "tokens": visual_sections.tokens,
    "attention": visual_sections.attention,
    "patches": visual_sections.patches,
    "ablation": visual_sections.ablation,
}


def analyze(source: str, settings: Analysis) -> Path:
    """Write the analysis of a run, a checkpoint or a network's name, and return the path of the page."""
    began = time.monotonic()
    with joined(settings.device) as world, _reporting() as report:
        report("opening the network and its pictures", 0, 1)
        compared = not settings.only or "layers" in settings.only
        study = open_study(source, settings, world.device, training=compared, chosen=settings.pictures)
        builders, data = _builders(study, settings), ReportData(study, settings)
        default = study.run.analysis if study.run else Path("out/analysis")
        folder = prepared((settings.out or default).expanduser())
        sections, omitted = list[Section](), list[str]()
        for number, (name, build) in enumerate(builders.items()):
            report(name, number, len(builders))
            section = Section(name, folder)
            try:
                build(data, section)
                sections.append(section)
            except NotApplicable as error:
                if len(builders) == 1:
                    raise
                omitted.append(f"The section “{section.title}” is left out: {error}.")
        report("the page", len(builders), len(builders))
        return write_page(data, folder, sections, omitted, time.monotonic() - began)


def audit_of(source: str, settings: Auditing) -> tuple[Audit, Audit | None]:
    """The audits of a network and of its untrained twin, if it has one, without files."""
    with joined(settings.device) as world, _reporting("pictures") as report:
        study = open_study(source, settings, world.device)
        total = min(study.samples, len(study.pictures[0].feed))

        def batches(what: str) -> Iterator[Tensor]:
            done = 0
            for batch in study.batches():
                report(what, done, total)
                yield batch
                done += len(batch)

        trained = audit(study.model, batches("audit"), settings.eps)
        if study.untrained is None:
            return trained, None
        return trained, audit(study.untrained, batches(f"audit of the {UNTRAINED} network"), settings.eps)


def _builders(study: Study, settings: Analysis) -> dict[str, Builder]:
    """The sections that are wanted; settings that do not fit the network are refused before anything is computed."""
    if not study.has_layers:
        for name in ("only", "against", "token", "pictures"):
            if getattr(settings, name):
                raise ValueError(f"--{name} needs a network with CRATE layers, which {study.source} does not have")
        return {"accuracy": accuracy_section.accuracy, "baseline": layer_sections.baseline}
    builders = {name: build for name, build in BUILDERS.items() if not settings.only or name in settings.only}
    tokens = study.grid[0] * study.grid[1]
    if "attention" in builders and not 0 <= settings.token <= tokens:
        raise ValueError(f"token must be a whole number from 0 to {tokens}, got {settings.token}")
    if settings.pictures:
        _ = study.gallery  # fails at once if there is no such picture
    return builders


@contextmanager
def _reporting(unit: str = "sections") -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on a terminal, lines of text elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda name, done, total: print(f"opencrate: {name} ({done} of {total} {unit} done)", file=sys.stderr)
        return
    columns = (TextColumn("{task.description:<38}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("")
        yield lambda name, done, total: bar.update(task, description=name, completed=done, total=total)
