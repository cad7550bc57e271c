"""Networks side by side on pictures with masks: the table and the figure of `opencrate segment`."""

import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from .distributed import device_named
from .evaluation.segmentation import Examples, Segmented, read_examples, segment
from .files import json_text
from .measures.verdicts import Mean
from .settings import Segmenting
from .sources import data_for, open_network

DRAWN = 8  # pictures of the figure
OUTSIDE = np.array([206.0, 218.0, 236.0])  # the colour in which what is outside a mask fades
FADED = 0.75


def compare_masks(sources: tuple[str, ...], settings: Segmenting) -> str:
    """Measure every network, draw the figure if it was asked for, and return the table, or JSON."""
    if not settings.root.expanduser().is_dir():
        raise ValueError(f"--root {settings.root} is not a folder")
    results = dict[str, tuple[Examples, list[Segmented]]]()
    for source in sources:
        network = open_network(source)[0].to(device_named(settings.device))
        data, name = data_for(network), Path(source).name
        choosing, validation = (
            read_examples(settings.root.expanduser(), split, data, count)
            for split, count in ((data.train, settings.choosing), (data.validation, settings.samples))
        )
        segmented = segment(network, choosing, validation, settings.batch)
        results[source if name in results else name] = validation, segmented
    if settings.figure is not None:
        _draw(results, settings.figure)
    rows = [row for name, (_, segmented) in results.items() for row in rows_of(name, segmented)]
    if settings.json:
        return json_text({"root": str(settings.root), "choosing": settings.choosing, "rows": rows}, indent=2)
    return _table(rows, len(next(iter(results.values()))[0]), settings.choosing)


def rows_of(name: str, segmented: list[Segmented]) -> list[dict[str, Any]]:
    """Of every method its IoU and how much that is above the centre's, picture by picture, with 95 % intervals."""
    centre = next(one.iou for one in segmented if one.method == "centre")
    return [
        {
            "network": name,
            "method": one.method,
            "iou": asdict(Mean.of(one.iou.double())),
            "above_centre": asdict(Mean.of((one.iou - centre).double())),
            "choice": one.choice,
        }
        for one in segmented
    ]


def _table(rows: list[dict[str, Any]], pictures: int, choosing: int) -> str:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("network", "method", "IoU, %", "above centre", "chosen"):
        table.add_column(name, justify="right" if name in ("IoU, %", "above centre") else "left")
    for row in rows:
        is_prior = row["method"] in ("centre", "grid")
        table.add_row(
            row["network"],
            row["method"],
            _per_cent(row["iou"]),
            "" if is_prior else _per_cent(row["above_centre"], signed=True),
            row["choice"],
        )
    console = Console(width=110, file=io.StringIO(), highlight=False)
    console.print(table)
    console.print(
        f"{pictures:,} validation pictures; layer, head or entry, and threshold are chosen on {choosing} training"
        " pictures, for every method alike. ± is half of the 95 % interval over pictures. Centre knows nothing of the"
        " picture; grid is the mask itself in patches, the best that can be reached."
    )
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip()


def _per_cent(mean: dict[str, float], signed: bool = False) -> str:
    text = f"{100 * mean['mean']:{'+' if signed else ''}.1f} ± {50 * (mean['high'] - mean['low']):.1f}"
    return text.replace("-", "−")


def _draw(results: dict[str, tuple[Examples, list[Segmented]]], file: Path) -> None:
    from . import figures

    rows = dict[str, list[np.ndarray]]()
    for name, (examples, segmented) in results.items():
        chosen = np.linspace(0, len(examples) - 1, min(DRAWN, len(examples))).round().astype(int).tolist()
        shown = examples.shown[chosen].numpy()
        if not rows:
            rows = {"picture": list(shown), "mask": _faded(shown, examples.objects[chosen].numpy())}
        for one in segmented:
            if one.method not in ("centre", "grid"):
                label = f"{name}: {one.method}" if len(results) > 1 else one.method
                rows[label] = _faded(shown, one.masks[chosen].cpu().numpy())
    figure = figures.patch_rows(rows)
    file.expanduser().parent.mkdir(parents=True, exist_ok=True)
    file.expanduser().write_bytes(figures.to_png(figure))


def _faded(pictures: np.ndarray, masks: np.ndarray) -> list[np.ndarray]:
    faded = (1 - FADED) * pictures + FADED * OUTSIDE
    return list(np.where(masks[..., None], pictures, faded).round().astype(np.uint8))
