"""Evaluating a checkpoint: accuracy, nearest neighbours, a linear probe, the layer table."""

from typing import Any

from ..checkpoints import load_any
from ..data import open_feed
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
            sample = validation.sample(wanted.samples, wanted.batch)
            measured["layers"] = layerwise(model, sample, wanted.layers)
    return measured


def _feed(wanted: Measuring, world: World, training: bool) -> Any:
    return open_feed(wanted.data, None, training, device=world.device, workers=wanted.workers)
