"""What the tools take from a run's recipe: its pictures, and the modules that its network needs."""

from dataclasses import replace
from pathlib import Path

from .data.settings import Dataset
from .imports import import_modules
from .recipes import FINETUNING, RECIPES, named, read_recipe
from .run_folder import RunFolder, run_of


def data_of(checkpoint: str, recipe: str | None) -> Dataset:
    """The pictures of a recipe, by its name or file; without one, those of the checkpoint's run."""
    if recipe is not None and recipe.endswith((".yaml", ".yml")):
        return read_recipe(recipe).data
    if recipe is not None:
        return named(recipe, RECIPES | FINETUNING).data
    path = run_of(checkpoint)
    if path is None:
        missing = "" if Path(checkpoint).expanduser().exists() else ", which does not exist here"
        raise ValueError(
            f"no run folder found for {checkpoint}{missing}, so its dataset is unknown; pass --recipe NAME"
        )
    folder = RunFolder(path)
    data = read_recipe(folder.recipe).data
    root = folder.last_options().get("root")
    return data if root is None else replace(data, root=root)


def import_modules_of(checkpoint: str) -> None:
    """Import the modules that the recipe of the checkpoint's run names (`model.imports`), if it is of a run."""
    path = run_of(checkpoint)
    if path is not None:
        import_modules(read_recipe(RunFolder(path).recipe).model.imports)
