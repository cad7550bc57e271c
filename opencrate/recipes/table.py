"""Recipes by name."""

from collections.abc import Callable

from ..errors import suggestion
from .recipe import Recipe

Maker = Callable[[], Recipe]

RECIPES: dict[str, Maker] = {}
FINETUNING: dict[str, Maker] = {}


def register(maker: Maker) -> Maker:
    """Decorator: `opencrate train NAME` runs the recipe that the function returns."""
    RECIPES[maker.__name__] = maker
    return maker


def register_finetuning(maker: Maker) -> Maker:
    """Decorator: `opencrate finetune NAME --model.start CHECKPOINT` runs it."""
    FINETUNING[maker.__name__] = maker
    return maker


def named(name: str, table: dict[str, Maker]) -> Recipe:
    if name not in table:
        raise ValueError(f"unknown recipe {name!r}{suggestion(name, table)}")
    return table[name]()
