"""Evaluating a checkpoint: accuracy, nearest neighbours, a linear probe, the layer table."""

from dataclasses import replace
from typing import Any

from ..checkpoints import load_any
from ..data import Augmentation, open_feed
from ..distributed import World, joined
from ..measures import layerwise
from ..models import CRATE
from ..run_recipe import data_of, import_modules_of
from ..settings import Measuring
from .accuracy import evaluate
from .features import features, knn, linear_probe, real

__all__ = ["Measuring", "data_of", "measure_checkpoint"]


def measure_checkpoint(checkpoint: str, wanted: Measuring) -> dict[str, Any]:
    """Everything that was asked for, as plain values."""
    import_modules_of(checkpoint)
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
            apart = max(1, len(validation) // wanted.samples)
            batches = validation.evaluate(wanted.batch, 0, apart)
            found["layers"] = layerwise(model, batches, wanted.layers, wanted.samples)
    return found


def _feed(wanted: Measuring, world: World, training: bool) -> Any:
    """A split as evaluation sees it: the centre of every picture."""
    data = replace(wanted.data, validation=wanted.data.train) if training else wanted.data
    still = Augmentation(crop="none", flip=0.0)
    return open_feed(data, still, training=training, device=world.device, workers=wanted.workers, varied=False)
