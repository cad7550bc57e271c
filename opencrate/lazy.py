"""Names of a package that are imported at their first use, so that a help text does not wait for torch (PEP 562)."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: dict[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`; `homes` says in which of its modules each name is defined.

    A name may also be a module itself, and is then its own home. No other name may be that of a module: importing the
    module would put it in the name's place.
    """

    def __getattr__(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{homes[name]}")
        return module if name == homes[name] else getattr(module, name)

    return __getattr__
