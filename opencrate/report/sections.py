"""What a report consists of: sections of text, figures and tables, on the page and as files."""

import base64
import csv
import io
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..figures.canvas import Figure, save, to_png
from ..files import write_atomically, write_json

MARK = "analysis.json"  # by this file an analysis is known
DPI = 140  # of figures on the page: sharp when enlarged, and the page has a few MB
PIXELS = 120  # of the page for an inch of a figure


@cache
def prose() -> dict[str, Any]:
    """The sentences of text.toml."""
    return tomllib.loads((files(__package__) / "text.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Picture:
    """A figure on the page, as PNG in base 64, with its caption; `alt` is for those who cannot see it."""

    name: str
    png: str = field(repr=False)
    width: int
    caption: str
    alt: str


@dataclass(frozen=True)
class Table:
    """Rows of text under headings."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str


@dataclass(frozen=True)
class Folded:
    """What the page shows when its heading is clicked."""

    heading: str
    content: "list[Item]"


Item = Picture | Table | str | Folded


def prepared(folder: Path) -> Path:
    """The folder of an analysis with empty tables/ and figures/; one that holds anything else is refused."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; choose a folder, --out FOLDER")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).is_file():
        raise ValueError(f"{folder} contains files that are not an analysis; choose another folder, --out FOLDER")
    try:
        for name in ("tables", "figures"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for old in (*folder.glob("tables/*"), *folder.glob("figures/*"), folder / "report.html"):
            old.unlink(missing_ok=True)  # from an earlier analysis
        write_json(folder / MARK, {})
    except OSError as error:
        raise ValueError(f"{folder} cannot be written: {error.strerror}") from error
    return folder


class Section:
    """A section of the report: what is added to it appears on the page in this order, and lies in the folder."""

    def __init__(self, key: str, folder: Path) -> None:
        self.key, self.folder = key, folder
        self.title, self.about = prose()["sections"][key]["title"], prose()["sections"][key]["about"]
        self.items = list[Item]()
        self.headline = list[tuple[str, str]]()  # (label, value) for the top of the page
        self.conclusion = list[str]()  # sentences for the top of the page

    @contextmanager
    def folded(self, heading: str) -> Iterator[None]:
        """What is added within is folded away under this heading."""
        outside, self.items = self.items, []
        yield
        self.items = [*outside, Folded(heading, self.items)]

    def figure(self, figure: Figure, name: str, caption: str) -> None:
        """On the page, and in figures/ as PNG and PDF."""
        save(figure, self.folder / "figures", name)
        kind = next(words for prefix, words in prose()["figures"].items() if name.startswith(prefix))
        png = base64.b64encode(to_png(figure, DPI)).decode("ascii")
        width = round(PIXELS * figure.get_figwidth())
        self.items.append(Picture(name, png, width, caption, f"{kind}; the caption below describes it."))

    def json(self, name: str, values: Any) -> None:
        """A file in tables/, in which numbers that are not finite are null."""
        write_json(self.folder / "tables" / f"{name}.json", values)

    def csv(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """A file in tables/, in which numbers that are not finite are words, because a table should not hide them."""
        rows = [{column: _cell(value) for column, value in row.items()} for row in rows]
        text, columns = io.StringIO(), dict.fromkeys(column for row in rows for column in row)
        writer = csv.DictWriter(text, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(self.folder / "tables" / f"{name}.csv", text.getvalue())


def _cell(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)  # as in JSON
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "not a number" if math.isnan(value) else "infinite" if value > 0 else "minus infinite"


def labels(sources: Sequence[str]) -> list[str]:
    """A short name for each: the last part of its path, or more parts where names would be equal."""
    paths = [Path(source).parts or (source,) for source in sources]
    for parts in range(1, max(map(len, paths)) + 1):
        names = ["/".join(path[-parts:]) for path in paths]
        if len({*names, "untrained"}) == len(names) + 1:
            return names
    raise ValueError(f"networks to compare must differ, got {', '.join(sources)}")
