"""The page: one HTML file with its pictures and styles inside, which loads nothing from elsewhere."""

import math
import re
import shlex
from dataclasses import fields
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup, escape

from .. import __version__
from ..files import write_atomically, write_json
from ..measures.verdicts import GRADES
from ..study import Study
from .data import ReportData
from .sections import MARK, Section, labels, prose

FIRST = ("accuracy", "layers", "baseline")  # sections before the appendix

Facts = list[tuple[str, str]]
"""(label, value)."""


def write_page(data: ReportData, folder: Path, sections: list[Section], omitted: list[str], seconds: float) -> Path:
    """Write the page and analysis.json; `omitted` says which sections are left out, and why."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    study, settings = data.study, data.settings
    facts = {"network": _network(study), "training": _training(study), "pictures": _pictures(study)}
    headline = [pair for section in sections for pair in section.headline]
    versions = f"opencrate {__version__}, torch {torch.__version__}"
    made = f"{versions}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {seconds:.0f} s"
    write_json(
        folder / MARK,
        {
            "source": study.source,
            "made": made,
            "samples": settings.samples,
            "definitions": settings.definitions,
            "eps": settings.eps,
            "seed": settings.seed,
            "facts": facts,
            "conclusion": [sentence for section in sections for sentence in section.conclusion],
            "headline": dict(headline),
            "parts": [section.key for section in sections],
        },
    )
    write_atomically(folder / "tables/COLUMNS.txt", (files(__package__) / "columns.txt").read_text("utf-8"))
    environment = Environment(
        loader=PackageLoader(__package__, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"formulas": _formulas, "kind": _kind}
    page = environment.get_template("page.html").render(
        name=labels([study.source])[0],
        study=study,
        facts=facts,
        conclusion=[sentence for section in sections for sentence in section.conclusion],
        headline=headline,
        first=FIRST,
        sections=sections,
        glossary=prose()["glossary"],
        omitted=omitted,
        made=made,
        command=_command(study, settings),
    )
    write_atomically(folder / "report.html", page)
    return folder / "report.html"


def _kind(cell: str) -> Markup:
    """The class of a table's cell: a grade has a colour, and a number stays on its line."""
    if cell in GRADES:
        return Markup(f' class="grade {cell.replace(" ", "-")}"')
    return Markup(' class="number"' if cell[:1] in "+−0123456789" else "")


def _formulas(text: str) -> Markup:
    """R^c, Z^{l+1/2} and U_k with superscripts and subscripts, everything else escaped."""
    raised = re.sub(r"(?<=\w)\^(?:\{([^}]*)\}|(\w))", r"<sup>\1\2</sup>", str(escape(text)))
    return Markup(re.sub(r"(?<=\b[A-Z])_(?:\{([^}]*)\}|(\w))", r"<sub>\1\2</sub>", raised))


def _network(study: Study) -> Facts:
    model = study.model
    architecture = str((model.pretrained_cfg or {}).get("architecture") or type(model).__name__)
    count = sum(weight.numel() for weight in model.parameters())
    facts = [("architecture", architecture), ("parameters", f"{count:,}")]
    if not study.has_layers:
        return facts
    config, (rows, columns), layer = model.config(), study.grid, model.layers[0]
    return [
        *facts,
        ("layers", f"{config['depth']} of {config['num_heads']} heads (subspaces of dimension {config['head_dim']})"),
        ("tokens", f"{rows} × {columns} patches and the class token, of {config['embed_dim']} coordinates"),
        ("compression", _operator(layer.compress.operator)),
        ("sparsification", _operator(layer.sparsify.operator)),
        ("classes", f"{config['num_classes']:,}" if config["num_classes"] else "no classifier"),
    ]


def _operator(operator: Any) -> str:
    options = ", ".join(f"{name} = {value}" for name, value in operator.options.items())
    return operator.name + (f" ({options})" if options else "")


def _training(study: Study) -> Facts:
    if study.note is not None:
        return [("training", "none: fresh weights")]
    if not study.starts:
        return [("training", "not known: the checkpoint is not in a run folder")]
    last, result = study.starts[-1], study.result
    versions = ", ".join(f"{name} {value}" for name, value in last["versions"].items() if value and name != "opencrate")
    if result is None or study.run is None:
        which = study.run.network_epoch() if study.run and study.is_final else ""
        done = [("training", which or "the run has not finished")]
    else:
        steps = f"{result['steps']:,} in {result['epochs']} epochs, {result['training_seconds']:,.0f} s"
        done = [("recipe", str(result["recipe"])), ("steps" if study.is_final else "steps of the whole run", steps)]
        if "top1" in result:
            best = result["best"]
            highest = f"; {best['top1']:.2f} % after epoch {best['epoch']}, the best" if "epoch" in best else ""
            done.append(("accuracy", f"{result['top1']:.2f} % of all validation pictures at the end{highest}"))
        if study.is_final:
            done.append(("epoch", study.run.network_epoch() or f"{result['epochs']}, the last and the best"))
        elif study.is_best:
            done.append(("epoch", f"{result['best'].get('epoch', math.nan):.0f}, the best of {result['epochs']}"))
    return [
        *done,
        ("hardware", ", ".join(last["hardware"]["gpus"]) or f"{last['hardware']['cpus']} CPU cores"),
        ("started", str(last["started"]).replace("T", " ")[:16]),
        ("seed", str(last["seed"])),
        ("versions", versions),
    ]


def _pictures(study: Study) -> Facts:
    size, total = study.pictures[0].data.size, len(study.pictures[0].feed)
    lost = f"; {study.decode_failures} could not be decoded" if study.decode_failures else ""
    is_compared = study.model.num_classes > 0 and study.pictures[0].labelled
    return [
        ("taken from", ", ".join(source.name for source in study.pictures)),
        ("how many", f"{min(study.samples, total):,} of {total:,}{lost}"),
        ("size", f"resized and cropped to the central {size} × {size} pixels"),
        *([("classes", str(study.match))] if is_compared else []),
    ]


def _command(study: Study, settings: Any) -> str:
    """The command that makes this page, with every setting that is not the default."""
    words = ["opencrate", "analyze", study.source]
    for setting in fields(settings):
        value = getattr(settings, setting.name)
        if value != setting.default and setting.name not in ("device", "batch"):
            words += [f"--{setting.name}", *map(str, value if isinstance(value, tuple) else [value])]
    return shlex.join(words)
