"""Evaluating a checkpoint: accuracy, nearest neighbours, a linear probe, the layer table."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..checkpoints import load_any
from ..data import Augmentation, Dataset, open_feed
from ..distributed import World, joined
from ..measures import layerwise
from ..recipes import FINETUNING, RECIPES, named, read_recipe
from ..run_folder import RunFolder, run_of
from ..stack import is_stack
from ..tasks import Classification
from .features import features, knn, linear_probe, real

__all__ = ["Measuring", "data_of", "measure_checkpoint"]


@dataclass(frozen=True)
class Measuring:
    """What to measure, and how.

    Args:
        data: the pictures; those of the run if the checkpoint lies in one, else those of `--recipe`.
        knn: also the accuracy of this many nearest training features, 0 for not.
        linear: also the accuracy of a linear probe on frozen features.
        real: also ImageNet's reassessed labels.
        layers: also R^c and the non-zero fraction of every layer, by this definition; none for not.
        samples: pictures for the layer table.
        precision: type of the products.
        device: auto, cpu, cuda or cuda:N.
        batch: pictures at once.
        workers: processes that decode pictures.
    """

    data: Dataset
    knn: int = 0
    linear: bool = False
    real: bool = False
    layers: str | None = "paper"
    samples: int = 500
    precision: Literal["bf16", "fp16", "fp32"] = "fp32"
    device: str = "auto"
    batch: int = 256
    workers: int = 4

    def __post_init__(self) -> None:
        for name, least in (("knn", 0), ("samples", 1), ("batch", 1), ("workers", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


def data_of(checkpoint: str, recipe: str | None) -> Dataset:
    """The dataset of a recipe, or of the run that a checkpoint belongs to."""
    if recipe is not None and recipe.endswith((".yaml", ".yml")):
        return read_recipe(recipe).data
    if recipe is not None:
        return named(recipe, RECIPES | FINETUNING).data
    folder = run_of(checkpoint)
    if folder is None:
        missing = "" if Path(checkpoint).expanduser().exists() else ", which does not exist here"
        raise ValueError(
            f"no run folder found for {checkpoint}{missing}, so its dataset is unknown; pass --recipe NAME"
        )
    return read_recipe(RunFolder(folder).recipe).data


def measure_checkpoint(checkpoint: str, wanted: Measuring) -> dict[str, Any]:
    """Everything that was asked for, as plain values."""
    with joined(wanted.device) as world:
        model: Any = load_any(checkpoint).float().eval().to(world.device)
        classes = wanted.data.num_classes
        if model.num_classes != classes:
            raise ValueError(
                f"the dataset has {classes} classes, but the classifier of {checkpoint} has {model.num_classes}"
            )
        validation = _feed(wanted, world, training=False)
        measured: dict[str, Any] = Classification(classes).evaluate(
            model, validation, world, wanted.precision, wanted.batch
        )
        if wanted.real:
            measured["real"] = real(model, validation, world, wanted.precision, wanted.batch)
        if wanted.knn or wanted.linear:
            training_features, validation_features = (
                features(model, feed, world, wanted.precision, wanted.batch)
                for feed in (_feed(wanted, world, training=True), validation)
            )
            if wanted.knn:
                measured[f"knn_{wanted.knn}"] = knn(training_features, validation_features, wanted.knn)
            if wanted.linear:
                measured["linear"] = linear_probe(training_features, validation_features)
        if wanted.layers and is_stack(model):
            stride = max(1, len(validation) // wanted.samples)
            batches = validation.evaluate(wanted.batch, 0, stride)
            measured["layers"] = layerwise(model, batches, wanted.layers, wanted.samples)
    return measured


def _feed(wanted: Measuring, world: World, training: bool) -> Any:
    """A split as evaluation sees it: the centre of every picture."""
    data = replace(wanted.data, validation=wanted.data.train) if training else wanted.data
    no_augmentation = Augmentation(crop="none", flip=0.0)
    return open_feed(
        data, no_augmentation, training=training, device=world.device, workers=wanted.workers, varied=False
    )
