"""What the tools take from a checkpoint and the recipe of its run: the network, and its pictures."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from .data.settings import Dataset
from .imports import import_modules
from .recipes import FINETUNING, RECIPES, find_recipe, read_recipe
from .run_folder import run_of


def load_network(checkpoint: str | Path) -> Any:
    """The network of a run or a checkpoint, in float32 and evaluation mode.

    The modules that the run's recipe names (`model.imports`) are imported first.
    """
    from .checkpoints import load_any  # here, for help texts, which `data_of` serves, must not wait for torch

    run = run_of(checkpoint)
    if run is not None:
        import_modules(read_recipe(run.recipe).model.imports)
    return load_any(checkpoint).float().eval()


def data_of(checkpoint: str, recipe: str | None) -> Dataset:
    """The pictures of a recipe, by its name or file; without one, those of the checkpoint's run."""
    if recipe is not None:
        return find_recipe(recipe, RECIPES | FINETUNING)[0].data
    run = run_of(checkpoint)
    if run is None:
        missing = "" if Path(checkpoint).expanduser().exists() else ", which does not exist here"
        raise ValueError(
            f"no run folder found for {checkpoint}{missing}, so its dataset is unknown; pass --recipe NAME"
        )
    data, root = read_recipe(run.recipe).data, run.last_options().get("root")
    return data if root is None else replace(data, root=root)
