"""Evaluating a checkpoint: accuracy, nearest neighbours, a linear probe, the layer table."""

from typing import Any

from ..data import open_feed
from ..distributed import joined
from ..measures import layerwise
from ..run_recipe import load_network
from ..settings import Measuring
from ..stack import is_stack
from ..tasks import Classification
from .features import features, knn, linear_probe, real


def measure_checkpoint(checkpoint: str, wanted: Measuring) -> dict[str, Any]:
    """Everything that was asked for, as plain values."""
    with joined(wanted.device) as world:
        model = load_network(checkpoint).to(world.device)
        classes = wanted.data.num_classes
        if model.num_classes != classes:
            raise ValueError(
                f"the dataset has {classes} classes, but the classifier of {checkpoint} has {model.num_classes}"
            )
        validation = open_feed(wanted.data, None, False, device=world.device, workers=wanted.workers)
        how = world, wanted.precision, wanted.batch
        measured: dict[str, Any] = Classification(classes).evaluate(model, validation, *how)
        if wanted.real:
            measured["real"] = real(model, validation, *how)
        if wanted.knn or wanted.linear:
            training = open_feed(wanted.data, None, True, device=world.device, workers=wanted.workers)
            known, asked = features(model, training, *how), features(model, validation, *how)
            if wanted.knn:
                measured[f"knn_{wanted.knn}"] = knn(known, asked, wanted.knn)
            if wanted.linear:
                measured["linear"] = linear_probe(known, asked)
        if wanted.layers and is_stack(model):
            sample = validation.sample(wanted.samples, wanted.batch)
            measured["layers"] = layerwise(model, sample, wanted.layers)
    return measured
