"""Recipes: values, not actions. Each is a function that returns a frozen `Recipe`."""

from . import scratch, imagenet, finetuning  # noqa: F401, I001, they fill the tables in this order
from .files import differences, read_recipe, recipe_text
from .recipe import Expected, Model, Objective, Optim, Recipe, Schedule
from .table import FINETUNING, RECIPES, named, register, register_finetuning

__all__ = [
    "FINETUNING",
    "RECIPES",
    "Expected",
    "Model",
    "Objective",
    "Optim",
    "Recipe",
    "Schedule",
    "differences",
    "named",
    "read_recipe",
    "recipe_text",
    "register",
    "register_finetuning",
]
