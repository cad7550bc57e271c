"""Recipes as YAML: what a run saves, and what `opencrate train FILE` repeats."""

from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from ..errors import suggestion
from .recipe import Recipe

__all__ = ["RENAMED_FIELDS", "differences", "read_recipe", "recipe_text"]

RENAMED_FIELDS = {"data.broken": "data.max_decode_failures"}
"""The name in recipes of version 0.1 → today's name, in the same part of the recipe."""


def recipe_text(recipe: Recipe) -> str:
    """The recipe as YAML, every field spelled out."""
    plain = TypeAdapter(Recipe).dump_python(recipe, mode="json")
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
    return text


def read_recipe(file: str | Path) -> Recipe:
    """The recipe in a YAML file; what is not in it has its default, what is not a field is refused."""
    file = Path(file).expanduser()
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        holds = "is empty" if content is None else f"holds a {type(content).__name__}, not fields"
        raise ValueError(f"{file} is not a recipe: it {holds}")
    _rename(content)
    try:
        return TypeAdapter(Recipe).validate_python(content)
    except ValidationError as error:
        raise ValueError(f"{file}: {_sentence(error)}") from error


def _rename(content: dict[str, Any]) -> None:
    for old, new in RENAMED_FIELDS.items():
        part, _, name = old.rpartition(".")
        values = content.get(part) if part else content
        if isinstance(values, dict) and name in values:
            values[new.rpartition(".")[2]] = values.pop(name)


def differences(old: Recipe, new: Recipe) -> list[str]:
    """The fields that two recipes would compute differently, as "optim.lr 0.1 → 0.2"."""
    ignored = {"name", "expected"}
    return _differences(
        {key: value for key, value in asdict(old).items() if key not in ignored},
        {key: value for key, value in asdict(new).items() if key not in ignored},
    )


def _differences(old: Any, new: Any, path: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict) and not path.endswith("_args"):
        return [line for key in old for line in _differences(old[key], new[key], f"{path}.{key}" if path else key)]
    same = list(old) == list(new) if isinstance(old, list | tuple) and isinstance(new, list | tuple) else old == new
    return [] if same else [f"{path} {old!r} → {new!r}"]


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    path = ".".join(map(str, first["loc"]))
    if first["type"] == "unexpected_keyword_argument":
        return f"there is no field {path!r}{_nearest(path)}"
    if first["type"] in ("missing", "missing_argument"):
        return f"the field {path!r} is missing"
    reason = str(first["msg"]).removeprefix("Value error, ")
    given = "" if first["type"] == "value_error" else f", got {first['input']!r}"
    return f"{path}: {reason}{given}" if path and given else reason


def _nearest(path: str) -> str:
    """The field that was meant: the only one of that name elsewhere, or one with a similar path."""
    paths = _paths(Recipe)
    namesakes = [known for known in paths if known.rpartition(".")[2] == path.rpartition(".")[2]]
    return suggestion(namesakes[0], namesakes) if len(namesakes) == 1 else suggestion(path, paths)


def _paths(kind: Any, prefix: str = "") -> list[str]:
    """Every field of a recipe by its path, the parts that hold fields included."""
    paths = []
    for field in fields(kind):
        paths.append(f"{prefix}{field.name}")
        if is_dataclass(field.type):
            paths += _paths(field.type, f"{prefix}{field.name}.")
    return paths
