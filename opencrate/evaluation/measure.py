"""Evaluating a checkpoint: accuracy, nearest neighbours, a linear probe, the layer table."""

from typing import Any

from ..checkpoints import load_any
from ..data import Augmentation, open_feed
from ..distributed import World, joined
from ..measures import layerwise
from ..run_recipe import import_modules_of
from ..settings import Measuring
from ..stack import is_stack
from ..tasks import Classification
from .features import features, knn, linear_probe, real


def measure_checkpoint(checkpoint: str, wanted: Measuring) -> dict[str, Any]:
    """Everything that was asked for, as plain values."""
    import_modules_of(checkpoint)
    with joined(wanted.device) as world:
        model: Any = load_any(checkpoint).float().eval().to(world.device)
        classes = wanted.data.num_classes
        if model.num_classes != classes:
            raise ValueError(
                f"the dataset has {classes} classes, but the classifier of {checkpoint} has {model.num_classes}"
            )
        validation = _feed(wanted, world, training=False)
        how = world, wanted.precision, wanted.batch
        measured: dict[str, Any] = Classification(classes).evaluate(model, validation, *how)
        if wanted.real:
            measured["real"] = real(model, validation, *how)
        if wanted.knn or wanted.linear:
            known = features(model, _feed(wanted, world, training=True), *how)
            asked = features(model, validation, *how)
            if wanted.knn:
                measured[f"knn_{wanted.knn}"] = knn(known, asked, wanted.knn)
            if wanted.linear:
                measured["linear"] = linear_probe(known, asked)
        if wanted.layers and is_stack(model):
            sample = validation.sample(wanted.samples, wanted.batch)
            measured["layers"] = layerwise(model, sample, wanted.layers)
    return measured


def _feed(wanted: Measuring, world: World, training: bool) -> Any:
    """A split as evaluation sees it: the centre of every picture."""
    augment, device = Augmentation(crop="none", flip=0.0), world.device
    return open_feed(wanted.data, augment, training, device=device, workers=wanted.workers, augmented=False)
