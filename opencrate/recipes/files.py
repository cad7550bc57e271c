"""Recipes as YAML: what a run saves, and what `opencrate train FILE` repeats.

Files and commands written for an earlier version still work: RENAMED_FIELDS says what its fields are called now.
"""

import re
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from ..errors import suggestion
from .recipe import Recipe

# Fields of 0.1 by their paths, and their paths now. What begins with "options." is an option of a run, not of a recipe.
RENAMED_FIELDS: dict[str, str] = {
    "compile": "options.compile",
    "graphs": "options.graphs",
    "model.attention": "options.attention",
    "data.broken": "data.max_decode_failures",
}
_SWITCHES = {True: "on", False: "off", None: "auto"}  # values of 0.1, and what they are as options
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


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
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        holds = "is empty" if content is None else f"holds a {type(content).__name__}, not fields"
        raise ValueError(f"{file} is not a recipe: it {holds}")
    options = _rename(content)
    for name in ("compress_args", "sparsify_args"):
        _read_numbers(_part(content, "model").get(name))
    return content, options


def _part(content: dict[str, Any], path: str) -> dict[str, Any]:
    """The mapping at a path, or an empty one."""
    part: Any = content
    for key in filter(None, path.split(".")):
        part = part.get(key) if isinstance(part, dict) else None
    return part if isinstance(part, dict) else {}


def _rename(content: dict[str, Any]) -> dict[str, Any]:
    """Rename fields in place; those that are options today are taken out and returned."""
    options = {}
    for old, new in RENAMED_FIELDS.items():
        home, _, name = old.rpartition(".")
        part = _part(content, home)
        if name not in part:
            continue
        value = part.pop(name)
        new_home, _, new_name = new.rpartition(".")
        if new_home == "options":
            options[new_name] = _SWITCHES[value] if isinstance(value, bool | None) else value
        else:
            _part(content, new_home).setdefault(new_name, value)
    return options


def _read_numbers(values: Any) -> None:
    """Read 1e-4 as a number, in place: YAML 1.1, which PyYAML reads, takes it for a string without a point."""
    for name, value in values.items() if isinstance(values, dict) else ():
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            values[name] = float(value)


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
