"""Runs of a plan that take less than a second."""

from dataclasses import replace

from opencrate.recipes import Model
from reproduction.plan import Run
from tests.runs import small_recipe


def tiny(variant: str, start: Run | None = None, parts: tuple[str, ...] = (), **changes) -> Run:
    """One epoch of a network with two layers on the digits; from another's network if that is given."""
    recipe = small_recipe(**{"schedule": {"epochs": 1, "warmup_epochs": 0}, **changes})
    if start is not None:
        recipe = replace(recipe, model=Model(start="CHECKPOINT"))
    task = "digits" if start is None else "digits → digits again"
    return Run("CRATE-T", task, recipe, frozenset(parts), variant, start.key if start else None)
