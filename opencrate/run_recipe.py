"""What the tools take from a checkpoint and the recipe of its run: the network, its pictures, its model card."""

import logging
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .data.settings import Dataset
from .errors import one_line
from .imports import import_modules
from .recipes import FINETUNING, RECIPES, Recipe, find_recipe, read_recipe
from .run_folder import RunFolder, damaged, run_of

if TYPE_CHECKING:
    from .checkpoints import Card

log = logging.getLogger("opencrate")

USUAL_PATCHES = 196  # of the paper's networks: 224 pixels in patches of 16
MANY_PATCHES = 4  # times as many as usual


def recipe_of(run: RunFolder) -> Recipe:
    """The recipe of a run, which its own command writes again where it is damaged."""
    try:
        return read_recipe(run.recipe)
    except ValueError as error:
        why = one_line(str(error).replace(str(run.recipe), "it", 1).removeprefix("it: "))
        raise damaged(run.recipe, why, "the command that trains this run writes it again") from error


def load_network(checkpoint: str | Path) -> Any:
    """The network of a run or a checkpoint, in float32 and evaluation mode.

    The modules that the run's recipe names (`model.imports`) are imported first. Of a run's folder it is the last
    network, or the best so far; where the two could be mistaken for each other, a warning says which it is.
    """
    from .checkpoints import load_any  # here, for help texts, which `data_of` serves, must not wait for torch

    run = run_of(checkpoint)
    if run is not None:
        import_modules(recipe_of(run).model.imports)
    model = load_any(checkpoint).float().eval()
    is_main = os.environ.get("RANK", "0") == "0"
    if run is not None and is_main and Path(checkpoint).expanduser() == run.path and (epoch := run.network_epoch()):
        log.warning("%s: %s", run.path, epoch)
    return model


def card_of(checkpoint: str | Path, **stated: Any) -> "Card":
    """What the run of a checkpoint says for its model card: dataset, recipe, accuracy; `stated` are further fields."""
    from .checkpoints import Card

    path, run = Path(checkpoint).expanduser(), run_of(checkpoint)
    if run is None:
        raise ValueError(f"no run folder found for {checkpoint}, so nothing is known for its card; give a Card instead")
    recipe, result = recipe_of(run), run.finished()
    known: dict[str, Any] = {"recipe": f"{recipe.name} of opencrate"}
    if recipe.data.name == "digits" or "/" in recipe.data.name:  # other sets have no name, only a place
        known["dataset"] = recipe.data.name
    if result is not None:
        measured = {run.path: result, run.model: result, run.best: result["best"]}.get(path, {})
        known["top1"] = measured.get("top1")
    return Card(**{**known, **stated})


def patches_warning(model: Any, size: int, trained: bool = True) -> str:
    """A sentence if pictures of this size are very many more patches than the network was trained on, or is usual."""
    patch_embed: Any = getattr(model, "patch_embed", None)
    if not hasattr(patch_embed, "grid_size"):
        return ""
    patch, usual = patch_embed.patch_size[0], math.prod(patch_embed.grid_size) if trained else USUAL_PATCHES
    patches = (size // patch) ** 2
    if patches <= MANY_PATCHES * usual:
        return ""
    instead = f"it was trained on {usual:,}, and its positions are resized" if trained else f"{usual} are usual"
    return (
        f"the network gets {patches:,} patches ({size} pixels in patches of {patch}), where {instead}: this is slow"
        " and may be poor; give a smaller --data.size, or a network with larger patches"
    )


def require_size(model: Any, size: int) -> None:
    """Refuse pictures of another size than the network takes; one that takes any is warned of very many patches."""
    patch_embed: Any = getattr(model, "patch_embed", None)
    if not hasattr(patch_embed, "grid_size") or tuple(patch_embed.img_size) == (size, size):
        return
    if not (getattr(model, "dynamic_img_size", False) or getattr(patch_embed, "dynamic_img_size", False)):
        height, width = patch_embed.img_size
        raise ValueError(
            f"the network takes pictures of {height} × {width} pixels, and these are prepared at {size} × {size}:"
            f" give --data.size {height}"
        )
    if warning := patches_warning(model, size):
        log.warning("%s", warning)


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
    data, root = recipe_of(run).data, run.last_options().get("root")
    return data if root is None else replace(data, root=root)
