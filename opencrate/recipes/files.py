"""Recipes as YAML: what a run saves, and what `opencrate train FILE` repeats.

Files and commands written for an earlier version still work: RENAMED_FIELDS says what its fields are called now.
"""

import re
from dataclasses import fields, is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from ..errors import one_line, shown, suggestion
from ..files import read_yaml
from .recipe import Recipe
from .table import Maker, named

# Fields of 0.1 by their paths, and their paths now. What begins with "options." is an option of a run, not of a recipe.
RENAMED_FIELDS: dict[str, str] = {
    "compile": "options.compile",
    "graphs": "options.graphs",
    "model.attention": "options.attention",
    "data.broken": "data.max_decode_failures",
}
_SWITCHES = {True: "on", False: "off", None: "auto"}  # values of 0.1, and what they are as options
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def find_recipe(name: str, table: dict[str, Maker]) -> tuple[Recipe, dict[str, Any]]:
    """The recipe of this name or in this file, and the options of a run that a file of 0.1 may hold."""
    if name.endswith((".yaml", ".yml")) or Path(name).is_file():
        return read_recipe(name), options_in(name)
    return named(name, table), {}


def recipe_text(recipe: Recipe) -> str:
    """The recipe as YAML, every field spelled out."""
    plain = TypeAdapter(Recipe).dump_python(recipe, mode="json")
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)


def read_recipe(file: str | Path) -> Recipe:
    """The recipe in a YAML file; what is not in it has its default, what is not a field is refused."""
    content, _ = _read(file)
    try:
        return TypeAdapter(Recipe).validate_python(content)
    except ValidationError as error:
        raise ValueError(f"{file}: {_sentence(error)}") from error


def options_in(file: str | Path) -> dict[str, Any]:
    """The options of a run that a recipe of an earlier version holds; today's recipes hold none."""
    return _read(file)[1]


def _read(file: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields in a YAML file under their names of today, and what are options today."""
    file = Path(file).expanduser()
    content = read_yaml(file)
    if not isinstance(content, dict):
        holds = "is empty" if content is None else f"holds a {type(content).__name__}, not fields"
        raise ValueError(f"{file} is not a recipe: it {holds}")
    options: dict[str, Any] = {}
    for old, new in RENAMED_FIELDS.items():
        section, _, name = old.rpartition(".")
        values = content.get(section) if section else content
        if not isinstance(values, dict) or name not in values:
            continue
        value, new_name = values.pop(name), new.rpartition(".")[2]
        if new.startswith("options."):
            options[new_name] = _SWITCHES[value] if isinstance(value, bool | None) else value
        else:  # a field of the same section
            values.setdefault(new_name, value)
    if isinstance(model := content.get("model"), dict):
        for name in ("compress_args", "sparsify_args"):
            _read_numbers(model.get(name))
    return content, options


def _read_numbers(values: Any) -> None:
    """Read 1e-4 as a number, in place: YAML 1.1, which PyYAML reads, takes it for a string without a point."""
    for name, value in values.items() if isinstance(values, dict) else ():
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            values[name] = float(value)


def differences(old: Recipe, new: Recipe) -> list[str]:
    """The fields that two recipes would compute differently, as "optim.lr 0.1 → 0.2"."""
    lines = []
    for path in _paths():
        before, after = (attrgetter(path)(recipe) for recipe in (old, new))
        if is_dataclass(before) or path == "name" or path.startswith("expected."):
            continue
        is_same = list(before) == list(after) if isinstance(before, tuple) else before == after
        if not is_same:
            lines.append(f"{path} {shown(before)} → {shown(after)}")
    return lines


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    path = ".".join(map(str, first["loc"]))
    if first["type"] == "unexpected_keyword_argument":
        return f"there is no field {shown(path)}{_nearest(path)}"
    if first["type"] in ("missing", "missing_argument"):
        return f"the field {shown(path)} is missing"
    reason = one_line(str(first["msg"]).removeprefix("Value error, "))
    given = "" if first["type"] == "value_error" else f", got {shown(first['input'])}"
    return f"{one_line(path, 60)}: {reason}{given}" if path and given else reason


def _nearest(path: str) -> str:
    """The field that was meant: the only one of that name elsewhere, or one with a similar path."""
    paths = _paths()
    namesakes = [known for known in paths if known.rpartition(".")[2] == path.rpartition(".")[2]]
    return suggestion(namesakes[0], namesakes) if len(namesakes) == 1 else suggestion(path, paths)


def _paths() -> list[str]:
    """Every section and field of a recipe by its path: optim, optim.lr, …"""
    paths = []
    for part in fields(Recipe):
        inner = fields(part.type) if is_dataclass(part.type) else ()
        paths += [part.name, *(f"{part.name}.{field.name}" for field in inner)]
    return paths
