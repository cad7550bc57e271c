"""What a report consists of: sections of text, figures and tables, on the page and as files."""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..figures.canvas import Figure, save, to_png
from ..files import write_atomically, write_json
from .text import KINDS

DPI = 140  # of figures on the page: sharp when enlarged, and the page has a few MB


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure on the page, with its caption."""

    name: str
    png: bytes = field(repr=False)
    caption: str
    alt: str

    @property
    def width(self) -> int:
        """In the page's pixels, of which an inch has 96."""
        return round(int.from_bytes(self.png[16:20], "big") * 96 / DPI)


@dataclass(frozen=True)
class Table:
    """Rows of text under headings; `marks` names a row's colour."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    marks: tuple[str, ...] = ()


Item = Picture | Table | str


@dataclass(frozen=True)
class Section:
    """A section of the report: its heading, what it is about, and its results."""

    key: str
    title: str
    about: str
    items: tuple[Item, ...]
    headline: tuple[tuple[str, str], ...] = ()  # (label, value) for the top of the page


class OutputFolder:
    """The folder of an analysis: tables/, figures/ and report.html."""

    MARK = "analysis.json"

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file; choose a folder, --out FOLDER")
        if path.is_dir() and any(path.iterdir()) and not (path / self.MARK).is_file():
            raise ValueError(f"{path} contains files that are not an analysis; choose another folder, --out FOLDER")
        try:
            for name in ("tables", "figures"):
                (path / name).mkdir(parents=True, exist_ok=True)
            for old in (*path.glob("tables/*"), *path.glob("figures/*"), path / "report.html"):
                old.unlink(missing_ok=True)  # from an earlier analysis
            write_json(path / self.MARK, {})
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror}") from error

    def figure(self, figure: Figure, name: str, caption: str) -> Picture:
        save(figure, self.path / "figures", name)
        kind = next((words for prefix, words in KINDS.items() if name.startswith(prefix)), "A figure")
        return Picture(name, to_png(figure, DPI), caption, f"{kind}; the caption below describes it.")

    def text(self, name: str, content: str) -> Path:
        target = self.path / name
        write_atomically(target, content)
        return target

    def json(self, name: str, values: Any) -> Path:
        return self.text(name, json.dumps(finite_or_named(values), indent=2, allow_nan=False) + "\n")

    def csv(self, name: str, rows: Iterable[Mapping[str, Any]]) -> Path:
        rows = [finite_or_named(dict(row)) for row in rows]
        columns: Sequence[str] = list(dict.fromkeys(key for row in rows for key in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return self.text(name, text.getvalue())


def finite_or_named(values: Any) -> Any:
    """The same values, with NaN and infinity as words: JSON has no such numbers, and a table should not hide them."""
    if isinstance(values, Mapping):
        return {key: finite_or_named(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [finite_or_named(value) for value in values]
    if isinstance(values, float) and not math.isfinite(values):
        return "not a number" if math.isnan(values) else "infinite" if values > 0 else "minus infinite"
    return values


def change(before: float, after: float, digits: int = 0) -> str:
    """The relative change in per cent, with a sign."""
    return f"{(after - before) / before:+.{digits}%}".replace("-", "−") if before else "–"


def labels(sources: Sequence[str]) -> list[str]:
    """A short name for each: the last part of its path, or more parts where names would be equal."""
    paths = [Path(source).parts or (source,) for source in sources]
    for parts in range(1, max(map(len, paths)) + 1):
        names = ["/".join(path[-parts:]) for path in paths]
        if len({*names, "untrained"}) == len(names) + 1:
            return names
    raise ValueError(f"networks to compare must differ, got {', '.join(sources)}")
