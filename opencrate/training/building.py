"""From a recipe to its parts: network, task, optimiser, schedule. Most of them come from timm and torch."""

import logging
from pathlib import Path
from typing import Any

import timm
import timm.optim
import timm.scheduler
import torch
from timm.models import save_for_hf
from timm.utils import unwrap_model
from torch import nn

from ..checkpoints import network_folder, save_pretrained
from ..classes import are_numbers, class_names, places
from ..errors import one_line, shown, suggestion
from ..imports import import_modules
from ..models.registry import network_suggestion
from ..recipes import Recipe
from ..run_recipe import load_network, patches_warning
from ..tasks import Classification, Task
from .launch import is_main

log = logging.getLogger("opencrate")

_TIMMS_WEIGHTS = ("url", "hf_hub_id", "tag", "custom_load", "license")


def build_model(recipe: Recipe, classes: tuple[str, ...] = (), attention: str = "auto") -> nn.Module:
    """The recipe's network with fresh weights, or with those of `model.start` and a classifier for its classes.

    Its record (`pretrained_cfg`) says what it is trained on: how pictures are prepared, and the names of the classes.
    """
    import_modules(recipe.model.imports)
    data, arguments = recipe.data, recipe.model.arguments()
    if attention != "auto":
        arguments["attention"] = attention
    if recipe.model.start:
        model = _started(recipe, arguments, classes)
    else:
        model = _created(
            recipe.model.name, img_size=data.size, in_chans=data.in_chans, num_classes=data.num_classes, **arguments
        )
        _warn_of_patches(model, data.size, trained=False)
    record: dict[str, Any] = dict(getattr(model, "pretrained_cfg", None) or {})
    record = {key: value for key, value in record.items() if key not in _TIMMS_WEIGHTS}
    record |= {"mean": data.mean, "std": data.std, "crop_pct": data.crop_pct, "num_classes": data.num_classes}
    record |= {"input_size": (data.in_chans, data.size, data.size), "interpolation": recipe.augment.interpolation}
    if len(classes) == data.num_classes:
        record["label_names"] = classes
    model.pretrained_cfg = model.default_cfg = record  # type: ignore[assignment]
    return model


def _created(name: str, **arguments: Any) -> nn.Module:
    try:
        model: nn.Module = timm.create_model(name, **arguments)
    except (RuntimeError, TypeError, AssertionError) as error:
        if name not in timm.list_models():
            raise ValueError(f"unknown network {shown(name)}{network_suggestion(name)}") from error
        raise ValueError(f"{name} cannot be built as the recipe says: {one_line(str(error))}") from error
    model.built_with = arguments  # type: ignore[assignment]  # what timm needs, with the name, to build it again
    return model


def require_start(recipe: Recipe) -> None:
    """Refuse a fine-tuning recipe whose checkpoint is still the placeholder."""
    if recipe.model.start == "CHECKPOINT":
        raise ValueError("fine-tuning starts from a checkpoint: opencrate finetune RECIPE RUN_OR_CHECKPOINT")


def _started(recipe: Recipe, arguments: dict[str, Any], classes: tuple[str, ...]) -> nn.Module:
    """A checkpoint's network, adapted to the recipe's pictures and classes."""
    data = recipe.data
    require_start(recipe)
    model = load_network(recipe.model.start).train()
    architecture = model.pretrained_cfg["architecture"]
    if recipe.model.name not in ("", architecture):
        raise ValueError(f"model.name is {recipe.model.name}, but the checkpoint holds a {architecture}: leave it out")
    if arguments:
        raise ValueError(f"model.{next(iter(arguments))} cannot be changed: the network is the checkpoint's")
    channels = model.config()["in_chans"] if hasattr(model, "config") else model.pretrained_cfg["input_size"][0]
    if channels != data.in_chans:
        raise ValueError(
            f"the checkpoint's network takes pictures of {channels} channels, but the recipe has {data.in_chans}"
        )
    model.start_note = _adapt_classifier(model, classes, data.num_classes)
    _warn_of_patches(model, data.size, trained=True)
    model.set_input_size(data.size)
    if hasattr(model, "built_with"):  # a baseline
        model.built_with |= {"img_size": data.size, "num_classes": data.num_classes}
    return model


def _adapt_classifier(model: Any, classes: tuple[str, ...], count: int) -> str:
    """A classifier for these classes: its rows of the same names, if the network knows them all, else a new one.

    Returns a sentence about it.
    """
    names, total, old = class_names(model), model.num_classes, model.get_classifier()
    if (names, total) == (classes, count):
        return f"the checkpoint's classifier is kept, for the same {count:,} classes"
    numbers = [] if are_numbers(classes) or not isinstance(old, nn.Linear) else places(names, classes)
    model.reset_classifier(count)
    if not numbers:
        return f"the classifier is new: the checkpoint's {total:,} classes do not have the names of these {count:,}"
    with torch.no_grad():
        for row, known in zip(model.get_classifier().parameters(), old.parameters(), strict=True):
            row.copy_(known[numbers])
    return f"the classifier keeps the rows of {count:,} of the checkpoint's {total:,} classes, by name"


def _warn_of_patches(model: Any, size: int, trained: bool) -> None:
    if (warning := patches_warning(model, size, trained)) and is_main():
        log.warning("%s", warning)


def build_task(recipe: Recipe) -> Task:
    augment = recipe.augment
    return Classification(recipe.data.num_classes, recipe.label_smoothing, augment.mixup, augment.cutmix, recipe.seed)


def build_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    settings = recipe.optim
    arguments: dict[str, Any] = {} if settings.betas is None else {"betas": settings.betas}
    known = [str(name) for name in timm.optim.list_optimizers()]
    if settings.name not in known:
        raise ValueError(f"unknown optimiser {shown(settings.name)}{suggestion(settings.name, known)}")
    # timm exempts vectors and a network's `no_weight_decay`, which a wrapper would hide; it decays all of a list.
    trained: Any = unwrap_model(model)
    if settings.decay == "all":
        trained = [weight for weight in model.parameters() if weight.requires_grad]
    try:
        optimizer = timm.optim.create_optimizer_v2(
            trained, opt=settings.name, lr=settings.lr, weight_decay=settings.weight_decay, **arguments
        )
    except (AssertionError, TypeError, ImportError, RuntimeError) as error:
        raise ValueError(f"the optimiser {settings.name} cannot be built: {one_line(str(error))}") from error
    if settings.betas is not None and "betas" not in optimizer.param_groups[0]:
        raise ValueError(f"the optimiser {settings.name} has no betas: leave optim.betas out")
    return optimizer


def build_schedule(
    recipe: Recipe, optimizer: torch.optim.Optimizer, steps_per_epoch: int
) -> timm.scheduler.CosineLRScheduler:
    """Linear warm-up, then half a cosine to the end: `step_update(t)` sets the learning rate of step t."""
    schedule = recipe.schedule
    warmup = schedule.warmup_epochs * steps_per_epoch
    return timm.scheduler.CosineLRScheduler(
        optimizer,
        t_initial=schedule.epochs * steps_per_epoch - warmup,
        lr_min=schedule.min_lr,
        warmup_t=warmup,
        warmup_lr_init=schedule.warmup_lr,
        warmup_prefix=True,  # timm would count the warm-up inside the cosine's period
        t_in_epochs=False,
    )


def compile_model(model: nn.Module, by_layer: bool = False) -> None:
    """Compile the network in place, as one or layer by layer: then gradients are sent while others are computed."""
    layers = getattr(model, "blocks", None) if by_layer else None
    for part in [model] if layers is None else layers:
        part.compile()


def save_network(model: Any, directory: Path) -> Path:
    """Save in the format that `opencrate.load` and the Hub take; a baseline in timm's.

    What is there stays if this one cannot be written, or has weights that are not finite.
    """
    broken = [name for name, weight in model.state_dict().items() if not weight.isfinite().all()]
    if broken:
        raise ValueError(
            f"{broken[0]} is no longer finite, so the network is not saved to {directory};"
            " --optim.clip 1 skips steps whose gradient is not finite"
        )
    if hasattr(model, "config"):
        return save_pretrained(model, directory, card=None)
    with network_folder(directory) as folder:
        save_for_hf(model, str(folder), model_args=getattr(model, "built_with", None), safe_serialization=True)
    return directory
