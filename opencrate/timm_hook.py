"""Registers `crate_*` with timm as soon as timm is imported, whether before opencrate or after it.

`import opencrate` does not import timm, which takes two seconds that a help text must not cost. But whoever imports
both, in either order, may call `timm.create_model("crate_tiny_patch16_224")`: so Python is asked to call us back.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def register_with_timm() -> None:
    """Register now if timm is imported, else once it has been."""
    if "timm" in sys.modules:
        import_module("opencrate.models.registry")
    else:
        sys.meta_path.insert(0, _AfterTimm())


class _AfterTimm:
    """Finds timm as the other finders do, and registers after timm's own code has run."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "timm":
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run_timm = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run_timm(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                import_module("opencrate.models.registry")

            loader.exec_module = exec_module
        return spec
