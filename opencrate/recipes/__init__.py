"""Recipes: each is a function that returns a frozen `Recipe`, which holds values only."""

from . import scratch, tiny_imagenet, imagenet, finetuning  # noqa: I001, they fill the tables in this order
from .files import RENAMED_FIELDS, differences, find_recipe, options_in, read_recipe, recipe_text
from .recipe import Expected, Model, Objective, Optim, Recipe, Schedule
from .table import FINETUNING, RECIPES, named, register
