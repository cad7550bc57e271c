"""Recipes by name."""

from collections.abc import Callable
from typing import Any

from ..errors import shown, suggestion
from .recipe import Recipe

Maker = Callable[[], Recipe]

RECIPES: dict[str, Maker] = {}  # `opencrate train NAME`
FINETUNING: dict[str, Maker] = {}  # `opencrate finetune NAME CHECKPOINT`


def register(maker: Maker) -> Maker:
    """Decorator: `opencrate train NAME` runs the recipe that the function returns."""
    RECIPES[maker.__name__] = maker
    return maker


def enter(
    name: str, about: str, make: Callable[..., Recipe], *arguments: Any, table: dict[str, Maker] = RECIPES
) -> None:
    """Enter a recipe of a family, `make(name, *arguments)`, into a table; `about` says what it trains."""

    def maker() -> Recipe:
        return make(name, *arguments)

    maker.__name__, maker.__doc__ = name, about
    table[name] = maker


def named(name: str, table: dict[str, Maker]) -> Recipe:
    if name not in table:
        raise ValueError(f"unknown recipe {shown(name)}{suggestion(name, table)}")
    return table[name]()
