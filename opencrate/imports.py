"""Modules of a user's own, which a recipe or a checkpoint names: importing them registers their operators.

Only modules that Python finds by itself, or in the current folder, are imported; nothing is fetched or unpacked.
"""

import sys
from collections.abc import Iterable
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from pathlib import Path

from .errors import one_line, shown


def require_module_names(names: Iterable[str]) -> None:
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(
                f"{shown(name)} is not the name of a module: write package.module, not a file or an address"
            )


def import_modules(names: Iterable[str]) -> None:
    """Import the modules by their dotted names, from the current folder where Python does not know them otherwise."""
    names = tuple(names)
    require_module_names(names)
    for name in names:
        if name in sys.modules:
            continue
        first = name.partition(".")[0]
        here = str(Path.cwd())
        if find_spec(first) is None and here not in sys.path:
            sys.path.insert(0, here)
            invalidate_caches()
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            module = one_line(name, 80)
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise ValueError(f"the module {module} needs {error.name}, which is not installed") from error
            raise ValueError(
                f"there is no module {module}, neither installed nor in {here}: run from its folder, or install it"
            ) from error
