"""The results of a plan so far: a row for every run, in one file that is written atomically."""

import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any, NotRequired

from pydantic import AfterValidator, TypeAdapter, with_config
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict

from opencrate.errors import one_line
from opencrate.files import read_json, write_atomically
from opencrate.recipes import Expected, Recipe, recipe_text
from opencrate.run_records import MORE, Count, Measure, Text, checked

from .plan import LIGHT, Plan, Run

IDENTITY = ("task", "model", "variant", "seed")
PICTURES = {
    "ImageNet": 50_000,
    "Tiny-ImageNet": 10_000,
    "CIFAR-10": 10_000,
    "CIFAR-100": 10_000,
    "Fashion-MNIST": 10_000,
    "Flowers-102": 6_149,
    "Pets": 3_669,
}
"""The number of validation pictures of every dataset."""
COLLAPSE = 10.0  # points: a network that ends further below its best epoch has collapsed
CSV_COLUMNS = (*IDENTITY, "top1", "best", "epochs", "parameters", "seconds", "error")


Column = list[float | None]


@with_config(MORE)
class _Curves(TypedDict):
    """R^c and the non-zero fraction by layer."""

    Rc: Column
    Rc_std: Column
    nonzero: Column
    nonzero_std: Column
    samples: Count


_CURVES = TypeAdapter(_Curves)


def _require_plain(value: Any) -> Any:
    """Texts without control characters, however deep; a figure is named by a file's name alone."""
    if isinstance(value, str) and not value.isprintable():
        raise ValueError("it holds control characters")
    if isinstance(value, dict):
        if not re.fullmatch(r"[\w.-]+", str(value.get("figure", "none"))):
            raise ValueError("a figure is not in the folder of the results")
        if "Rc" in value:
            checked(value, _CURVES)
        _require_plain(list(value))
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _require_plain(part)
    return value


def _require_measured(row: dict[str, Any]) -> dict[str, Any]:
    missing = {"made", "seconds", "parameters", "recipe"} - row.keys()
    if "top1" in row and missing:
        raise ValueError(f"{min(missing)} is missing")
    return row


@with_config(MORE)
class _Made(TypedDict):
    revision: Text | None
    hardware: Text
    started: Annotated[Text, AfterValidator(lambda text: datetime.fromisoformat(text) and text)]
    torch: Text
    timm: Text


@with_config(MORE)
class _Row(TypedDict):
    task: Text
    model: Text
    variant: Text
    seed: Count
    recipe: NotRequired[Text]
    top1: NotRequired[float]
    best: NotRequired[float]
    epochs: NotRequired[Count]
    parameters: NotRequired[Count]
    seconds: NotRequired[float]
    made: NotRequired[_Made]
    looks: NotRequired[Annotated[dict[Text, Any], AfterValidator(_require_plain)]]
    curve: NotRequired[dict[Text, list[Measure]]]
    pictures: NotRequired[Text]
    error: NotRequired[Annotated[str, AfterValidator(_require_plain)]]


class _File(TypedDict):
    scale: Text
    rows: dict[Text, Annotated[_Row, AfterValidator(_require_measured)]]


_FILE = TypeAdapter(_File)


@dataclass(frozen=True)
class Sample:
    """The accuracies of one network over seeds, in per cent."""

    values: tuple[float, ...]
    pictures: int | None = None  # validation pictures on which they were measured
    collapsed: bool = False  # whether one of the networks, or the one that it started from, has collapsed

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def std(self) -> float | None:
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def error(self) -> float | None:
        """The standard error of the mean: over seeds, or with one seed the binomial one of that many pictures."""
        if self.std is not None:
            return self.std / math.sqrt(len(self.values))
        return math.sqrt(self.mean * (100 - self.mean) / self.pictures) if self.pictures else None

    @property
    def degrees(self) -> int:
        """The degrees of freedom of that error."""
        return len(self.values) - 1 or (self.pictures or 2) - 1

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.std is None else f" ± {self.std:.2f}") + " †" * self.collapsed


class Results:
    """results.json: the rows of a scale by the keys of runs. Each row has the fingerprint of its recipe."""

    def __init__(self, file: Path, scale: str) -> None:
        self.file, self.scale, self.rows = file, scale, dict[str, dict[str, Any]]()
        if file.is_file():
            try:
                content = checked(read_json(file), _FILE)
            except ValueError as error:
                reason = one_line(str(error).removeprefix(f"{file} "))
                raise ValueError(
                    f"{file} is not a file of results ({reason}); remove it, or give another --out"
                ) from error
            written, self.rows = content["scale"], content["rows"]
            if written != scale:
                raise ValueError(f"{file} has results of scale {written}, not {scale}; give another --out")

    def has(self, run: Run, recipe: str) -> bool:
        """Whether the run is done with the recipe of this fingerprint, and all its analyses are."""
        row = self.rows.get(run.key, {})
        done = row.get("recipe") == recipe and "top1" in row and "error" not in row
        return done and set(run.looks) <= row.get("looks", {}).keys()

    def add(self, run: Run, row: dict[str, Any]) -> None:
        """Keep a row. Analyses of an earlier row of the same recipe stay, and a failure removes nothing."""
        before = self.rows.get(run.key, {})
        if "error" in row and "top1" in before:
            row = before | {"error": row["error"]}
        looks = before.get("looks", {}) if before.get("recipe") == row.get("recipe") else {}
        row = (
            {"task": run.task, "model": run.model, "variant": run.variant, "seed": run.recipe.seed}
            | row
            | {"looks": looks | row.get("looks", {})}
        )
        self.rows[run.key] = to_jsonable_python(row, inf_nan_mode="null")
        self.write()

    def write(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        content = {"scale": self.scale, "rows": self.rows}
        write_atomically(self.file, json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")
        write_atomically(self.file.with_suffix(".csv"), self._csv())

    def _csv(self) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, ["run", *CSV_COLUMNS, "revision", "hardware"], extrasaction="ignore")
        writer.writeheader()
        for key, row in self.rows.items():
            writer.writerow({"run": key} | row | row.get("made", {}))
        return text.getvalue()

    def current(self, plan: Plan) -> "Results":
        """Only rows of the plan's recipes. The file keeps others until their runs are repeated."""
        results = copy(self)
        results.rows = {}
        for run in plan.runs:
            row = self.rows.get(run.key, {})
            if row.get("recipe") == fingerprint(run, plan.runs):
                results.rows[run.key] = row
            elif "error" in row:
                results.rows[run.key] = {name: row[name] for name in (*IDENTITY, "error") if name in row}
        return results

    def done(self, plan: Plan) -> set[str]:
        """The keys of the plan's runs that need not be done again."""
        return {run.key for run in plan.runs if self.has(run, fingerprint(run, plan.runs))}

    def of(self, plan: Plan) -> Iterator[tuple[Run, dict[str, Any]]]:
        """The plan's runs that are done, with their rows."""
        return ((run, row) for run in plan.runs if "top1" in (row := self.rows.get(run.key, {})))

    def accuracy(self, model: str, task: str, variant: str = LIGHT, look: str | None = None) -> Sample | None:
        """Over all seeds, from the rows or from one of their analyses; None if no run is done."""
        wanted = {"model": model, "task": task, "variant": variant}
        rows = sorted((row for row in self.rows.values() if wanted.items() <= row.items()), key=lambda row: row["seed"])
        sources = [row if look is None else row.get("looks", {}).get(look, {}) for row in rows]
        values = tuple(values["top1"] for values in sources if "top1" in values)
        collapsed = any(self.has_collapsed(row) for row in rows)
        return Sample(values, PICTURES.get(task.split(" → ")[-1]), collapsed) if values else None

    def has_collapsed(self, row: dict[str, Any]) -> bool:
        """Whether the run, or the one that it starts from, ended far below its best epoch."""
        first = {**{name: row[name] for name in IDENTITY}, "task": row["task"].split(" → ")[0]}
        both = (other for other in self.rows.values() if other is row or first.items() <= other.items())
        return any("top1" in one and one.get("best", one["top1"]) > one["top1"] + COLLAPSE for one in both)

    def failures(self) -> dict[str, str]:
        return {key: row["error"] for key, row in self.rows.items() if "error" in row}


NO_HOLDOUT = "  holdout: 0.0\n  holdout_seed: 0\n"


def without_location(recipe: Recipe) -> Recipe:
    """The recipe without the path and the form of its dataset."""
    return replace(recipe, data=replace(recipe.data, name="", root=""))


def fingerprint(run: Run, runs: Iterable[Run]) -> str:
    """A hash of the recipe and of its start's, without names, expectations, and the path and form of the dataset."""
    text = recipe_text(replace(without_location(run.recipe), name="", expected=Expected()))
    text = text.replace(NO_HOLDOUT, "")  # newer than the first rows
    if run.start is not None:
        runs = tuple(runs)
        text += fingerprint(next(other for other in runs if other.key == run.start), runs)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
