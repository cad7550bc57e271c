"""What a plan has found so far: one row for every run, in one file that is whole after any kill."""

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from opencrate.files import plain_numbers, write_atomically
from opencrate.recipes import Expected, Recipe, recipe_text

from .plan import LIGHT, Plan, Run

__all__ = ["LOST", "Results", "Sample", "fingerprint", "placeless"]

TOLD = ("task", "model", "variant", "seed")
PICTURES = {
    "ImageNet": 50_000,
    "CIFAR-10": 10_000,
    "CIFAR-100": 10_000,
    "Fashion-MNIST": 10_000,
    "Flowers-102": 6_149,
    "Pets": 3_669,
}
"""Of validation."""
LOST = 10.0  # points below its best epoch: what a network that ends so had learned is gone
FLAT = (*TOLD, "top1", "best", "epochs", "parameters", "seconds", "error")


@dataclass(frozen=True)
class Sample:
    """The accuracies of one network over seeds, in per cent."""

    values: tuple[float, ...]
    pictures: int | None = None  # on which they were measured
    lost: bool = False  # whether one of the networks, or what it started from, had been better by far

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def std(self) -> float | None:
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def error(self) -> float | None:
        """The standard error of the mean: over seeds, and of one seed that of a share of so many pictures."""
        if self.std is not None:
            return self.std / math.sqrt(len(self.values))
        return math.sqrt(self.mean * (100 - self.mean) / self.pictures) if self.pictures else None

    @property
    def degrees(self) -> int:
        """Of freedom, of that error."""
        return len(self.values) - 1 or (self.pictures or 2) - 1

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.std is None else f" ± {self.std:.2f}") + " †" * self.lost


class Results:
    """results.json: the rows of a scale by their runs' keys. A row is of a recipe, by its fingerprint."""

    def __init__(self, file: Path, scale: str) -> None:
        self.file, self.scale, self.rows = file, scale, dict[str, dict[str, Any]]()
        if file.is_file():
            try:
                content = json.loads(file.read_text(encoding="utf-8"))
                found, self.rows = content["scale"], {key: dict(row) for key, row in content["rows"].items()}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{file} is not a file of results: remove it, or give another --out") from error
            if found != scale:
                raise ValueError(f"{file} has results of the scale {found}, not {scale}: give another --out")

    def has(self, run: Run, mark: str) -> bool:
        """Whether the run is done, by the recipe that `mark` stands for, with all that is to be looked at in it."""
        row = self.rows.get(run.key, {})
        done = row.get("recipe") == mark and "top1" in row and "error" not in row
        return done and set(run.looks) <= row.get("looks", {}).keys()

    def add(self, run: Run, row: dict[str, Any]) -> None:
        """Keep a row; what an earlier one of the same recipe had looked at stays, and a failure takes nothing away."""
        before = self.rows.get(run.key, {})
        if "error" in row and "top1" in before:
            row = before | {"error": row["error"]}
        looks = before.get("looks", {}) if before.get("recipe") == row.get("recipe") else {}
        told = {"task": run.task, "model": run.model, "variant": run.variant, "seed": run.recipe.seed}
        self.rows[run.key] = plain_numbers(told | row | {"looks": looks | row.get("looks", {})})
        self.write()

    def write(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        content = {"scale": self.scale, "rows": self.rows}
        write_atomically(self.file, json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")
        write_atomically(self.file.with_suffix(".csv"), self._flat())

    def _flat(self) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, ["run", *FLAT, "revision", "hardware"], extrasaction="ignore")
        writer.writeheader()
        for key, row in self.rows.items():
            writer.writerow({"run": key} | row | row.get("made", {}))
        return text.getvalue()

    def current(self, plan: Plan) -> "Results":
        """Without what other recipes than the plan's have found: the file keeps it until their runs are run again."""
        found = copy(self)
        found.rows = {}
        for run in plan.runs:
            row = self.rows.get(run.key, {})
            if row.get("recipe") == fingerprint(run, plan.runs):
                found.rows[run.key] = row
            elif "error" in row:
                found.rows[run.key] = {name: row[name] for name in (*TOLD, "error") if name in row}
        return found

    def done(self, plan: Plan) -> set[str]:
        """The keys of the plan's runs that need not be done again."""
        return {run.key for run in plan.runs if self.has(run, fingerprint(run, plan.runs))}

    def of(self, plan: Plan) -> Iterator[tuple[Run, dict[str, Any]]]:
        """The plan's runs that are done, with their rows."""
        return ((run, row) for run in plan.runs if "top1" in (row := self.rows.get(run.key, {})))

    def accuracy(self, model: str, task: str, variant: str = LIGHT, look: str | None = None) -> Sample | None:
        """Over all seeds, the run's own or what a look found; none where no run is done."""
        wanted = {"model": model, "task": task, "variant": variant}
        rows = sorted((row for row in self.rows.values() if wanted.items() <= row.items()), key=lambda row: row["seed"])
        found = [row if look is None else row.get("looks", {}).get(look, {}) for row in rows]
        values = tuple(values["top1"] for values in found if "top1" in values)
        lost = any(self.has_lost(row) for row in rows)
        return Sample(values, PICTURES.get(task.split(" → ")[-1]), lost) if values else None

    def has_lost(self, row: dict[str, Any]) -> bool:
        """Whether the run, or the one that it starts from, ended far below its best epoch."""
        first = {**{name: row[name] for name in TOLD}, "task": row["task"].split(" → ")[0]}
        of_both = (other for other in self.rows.values() if other is row or first.items() <= other.items())
        return any("top1" in one and one.get("best", one["top1"]) > one["top1"] + LOST for one in of_both)

    def failures(self) -> dict[str, str]:
        return {key: row["error"] for key, row in self.rows.items() if "error" in row}


def placeless(recipe: Recipe) -> Recipe:
    """The same, wherever and in whichever form its pictures lie."""
    return replace(recipe, data=replace(recipe.data, name="", root=""))


def fingerprint(run: Run, runs: Iterable[Run]) -> str:
    """A recipe without what it is called, and where and in which form its pictures lie; with that of its start."""
    text = recipe_text(replace(placeless(run.recipe), name="", expected=Expected()))
    if run.start is not None:
        runs = tuple(runs)
        text += fingerprint(next(other for other in runs if other.key == run.start), runs)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
