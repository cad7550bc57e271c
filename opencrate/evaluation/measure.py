"""Evaluating a checkpoint: accuracy, nearest neighbours, a linear probe, the layer table."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..checkpoints import load_any
from ..data import Augmentation, Dataset, open_feed
from ..distributed import World, joined
from ..measures import layerwise
from ..models import CRATE
from ..recipes import FINETUNING, RECIPES, named, read_recipe
from ..run_folder import run_of
from .accuracy import evaluate
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
    """The pictures that belong to a checkpoint: its run's, or those of a recipe."""
    if recipe is not None and recipe.endswith((".yaml", ".yml")):
        return read_recipe(recipe).data
    if recipe is not None:
        return named(recipe, RECIPES | FINETUNING).data
    folder = run_of(checkpoint)
    if folder is None:
        missing = "" if Path(checkpoint).expanduser().exists() else " does not exist here, or"
        raise ValueError(f"{checkpoint}{missing} lies in no run that tells its pictures: name a recipe, --recipe NAME")
    return read_recipe(folder / "recipe.yaml").data


def measure_checkpoint(checkpoint: str, wanted: Measuring) -> dict[str, Any]:
    """Everything that was asked for, as plain values."""
    with joined(wanted.device) as world:
        model: Any = load_any(checkpoint).float().eval().to(world.device)
        if model.num_classes != wanted.data.num_classes:
            raise ValueError(
                f"{checkpoint} tells {model.num_classes} classes apart, and the pictures have {wanted.data.num_classes}"
            )
        validation = _feed(wanted, world, training=False)
        found = evaluate(model, validation, world, wanted.precision, wanted.batch)
        if wanted.real:
            found["real"] = real(model, validation, world, wanted.precision, wanted.batch)
        if wanted.knn or wanted.linear:
            known, asked = (
                features(model, feed, world, wanted.precision, wanted.batch)
                for feed in (_feed(wanted, world, training=True), validation)
            )
            found |= {f"knn_{wanted.knn}": knn(known, asked, wanted.knn)} if wanted.knn else {}
            found |= {"linear": linear_probe(known, asked)} if wanted.linear else {}
        if wanted.layers and isinstance(model, CRATE):
            found["layers"] = layerwise(model, validation.sample(wanted.samples, wanted.batch), wanted.layers)
    return found


def _feed(wanted: Measuring, world: World, training: bool) -> Any:
    """A split as evaluation sees it: the centre of every picture."""
    data = replace(wanted.data, validation=wanted.data.train) if training else wanted.data
    still = Augmentation(crop="none", flip=0.0)
    return open_feed(data, still, training=training, device=world.device, workers=wanted.workers, augmented=False)
