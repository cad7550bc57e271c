"""The page: one HTML file that holds its pictures and styles itself, and asks the network for nothing."""

import base64
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
from ..models import CRATE
from ..run_folder import NETWORK_FOLDERS, RECORD, RESULT
from ..study import Study
from .sections import Folder, Picture, Section, Table, labels
from .text import COLUMNS, GLOSSARY

__all__ = ["write_page"]


def write_page(study: Study, folder: Folder, settings: Any, sections: list[Section], seconds: float) -> Path:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.tests |= {
        "picture": lambda item: isinstance(item, Picture),
        "table": lambda item: isinstance(item, Table),
    }
    environment.filters["formulas"] = _formulas
    environment.filters["base64"] = lambda png: base64.b64encode(png).decode("ascii")
    template = environment.from_string((files(__package__) / "page.html").read_text(encoding="utf-8"))
    facts = {"network": _network(study), "training": _training(study), "pictures": _pictures(study)}
    headline = [*_accuracy(study), *(pair for section in sections for pair in section.headline)]
    made = (
        f"opencrate {__version__}, torch {torch.__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {seconds:.0f} s"
    )
    folder.json(
        Folder.MARK,
        {"source": study.source, "made": made, "samples": settings.samples, "definitions": list(settings.definitions),
         "eps": settings.eps, "seed": settings.seed, "facts": facts, "headline": dict(headline),
         "parts": [section.key for section in sections]},
    )  # fmt: skip
    page = template.render(
        name=labels([study.source])[0],
        note=study.note,
        facts=facts,
        headline=headline,
        sections=sections,
        glossary=GLOSSARY,
        designed=study.is_crate,
        made=made,
        command=_command(study, settings),
    )
    folder.text("tables/COLUMNS.txt", COLUMNS)
    return folder.text("report.html", page)


def _formulas(text: str) -> Markup:
    """R^c, Z^{l+1/2} and U_k with raised and lowered letters, everything else as it is."""
    safe = str(escape(text))
    safe = re.sub(r"(?<=\w)\^(?:\{([^}]*)\}|(\w))", lambda found: f"<sup>{found[1] or found[2]}</sup>", safe)
    return Markup(
        re.sub(r"(?<=\b[A-Z])_(?:\{([^}]*)\}|(\w))", lambda found: f"<sub>{found[1] or found[2]}</sub>", safe)
    )


def _network(study: Study) -> list[tuple[str, str]]:
    model = study.model
    count = sum(weight.numel() for weight in model.parameters())
    kind = "CRATE, built from " if isinstance(model, CRATE) else ""
    found = [("architecture", kind + _architecture(model)), ("parameters", f"{count:,}")]
    if not isinstance(model, CRATE):
        return found
    config, grid = model.config(), model.patch_embed.grid_size
    compress, sparsify = (_operator(config, name) for name in ("compress", "sparsify"))
    return [
        *found,
        ("layers", f"{config['depth']} of {config['num_heads']} heads (subspaces of dimension {config['head_dim']})"),
        ("tokens", f"{grid[0]} × {grid[1]} patches and the class token, of {config['embed_dim']} coordinates"),
        ("compression", compress),
        ("sparsification", sparsify),
        ("classes", f"{config['num_classes']:,}" if config["num_classes"] else "no classifier"),
    ]


def _architecture(model: Any) -> str:
    return str((model.pretrained_cfg or {}).get("architecture") or type(model).__name__)


def _operator(config: dict[str, Any], name: str) -> str:
    options = ", ".join(f"{key} = {value:g}" for key, value in config[f"{name}_args"].items())
    return config[name] + (f" ({options})" if options else "")


def _training(study: Study) -> list[tuple[str, str]]:
    record, result = study.told(RECORD), study.told(RESULT)
    if study.note is not None:
        return [("training", "none: fresh weights")]
    if record is None:
        return [("training", "not known: the checkpoint lies in no run of ours")]
    last = record[-1]
    versions = ", ".join(f"{name} {value}" for name, value in last["versions"].items() if value and name != "opencrate")
    if result is None:
        done = [("training", "the run has not finished")]
    else:
        steps = f"{result['steps']:,} in {result['epochs']} epochs, {result['training_seconds']:,.0f} s"
        done = [("recipe", str(result["recipe"])), ("steps" if study.is_final else "steps of the whole run", steps)]
    return [
        *done,
        ("hardware", ", ".join(last["hardware"].get("gpus") or []) or f"{last['hardware'].get('cpus')} CPU cores"),
        ("started", str(last["started"]).replace("T", " ")[:16]),
        ("seed", str(last["seed"])),
        ("versions", versions),
    ]


def _pictures(study: Study) -> list[tuple[str, str]]:
    size, total = study.pictures[0].data.size, len(study.pictures[0].feed)
    lost = f"; {study.broken} did not decode" if study.broken else ""
    return [
        ("taken from", ", ".join(source.name for source in study.pictures)),
        ("how many", f"{min(study.samples, total):,} of {total:,}{lost}"),
        ("size", f"scaled and cut to the central {size} × {size} pixels"),
    ]


def _accuracy(study: Study) -> list[tuple[str, str]]:
    result = study.told(RESULT)
    if not result or "top1" not in result or not study.own_pictures:
        return []
    best = Path(study.source).name == NETWORK_FOLDERS[1]
    if not (best or study.is_final):
        return []
    return [("accuracy on validation pictures", f"{(result['best'] if best else result)['top1']:.1f}%")]


def _command(study: Study, settings: Any) -> str:
    """What makes the page again: every setting that is not the usual one."""
    words = ["opencrate", "analyze", study.source]
    for setting in fields(settings):
        value = getattr(settings, setting.name)
        if value != setting.default and setting.name not in ("device", "batch"):
            words += [f"--{setting.name}", *map(str, value if isinstance(value, tuple) else [value])]
    return shlex.join(words)
