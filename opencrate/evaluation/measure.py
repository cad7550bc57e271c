"""Evaluating a checkpoint: accuracy, nearest neighbours, a linear probe, the layer table."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..classes import class_names, match_classes
from ..data import Feed, open_feed
from ..data.feeds.feed import Renumbered, Watched
from ..data.settings import ANY
from ..distributed import World, joined
from ..measures import layerwise
from ..run_recipe import load_network, require_size
from ..settings import Measuring
from ..stack import is_stack
from ..tasks import Classification
from .features import features, knn, linear_probe, real

Watch = Callable[[str, Feed], Feed]


@contextmanager
def _progress(world: World) -> Iterator[Watch]:
    """A bar for every pass over a feed, on the terminal behind stderr only."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<19}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    disabled = not (world.main and console.is_terminal)
    with Progress(*columns, console=console, transient=True, disable=disabled) as bar:

        def watch(what: str, feed: Feed) -> Feed:
            task = bar.add_task(what, total=-(-len(feed) // world.size))
            return Watched(feed, lambda count: bar.advance(task, count))

        yield watch


def measure_checkpoint(checkpoint: str, wanted: Measuring) -> dict[str, Any]:
    """Everything that was asked for, as plain values."""
    with joined(wanted.device) as world, _progress(world) as watch:
        model = load_network(checkpoint).to(world.device)
        require_size(model, wanted.data.size)
        data, how = replace(wanted.data, num_classes=ANY), (world, wanted.precision, wanted.batch)
        validation = open_feed(data, None, False, device=world.device, workers=wanted.workers)
        measured: dict[str, Any]
        try:
            match = match_classes(class_names(model), model.num_classes, validation.classes)
        except ValueError as error:
            if wanted.real or not (wanted.knn or wanted.linear):
                raise
            measured = {"classes": f"of features alone: {error}"}
        else:
            matched = watch("validation pictures", Renumbered(validation, match.numbers))
            measured = {"classes": str(match), **Classification(match.total).evaluate(model, matched, *how)}
        if wanted.real:
            measured["real"] = real(model, watch("ImageNet-ReaL", validation), *how)
        if wanted.knn or wanted.linear:
            training = open_feed(data, None, True, device=world.device, workers=wanted.workers)
            same = match_classes(training.classes, len(training.classes), validation.classes, "the training split")
            known = features(model, watch("training features", training), *how)
            asked = features(model, watch("validation features", Renumbered(validation, same.numbers)), *how)
            if wanted.knn:
                measured[f"knn_{wanted.knn}"] = knn(known, asked, wanted.knn)
            if wanted.linear:
                measured["linear"] = linear_probe(known, asked)
        if wanted.layers and is_stack(model):
            sample = validation.sample(wanted.samples, wanted.batch)
            measured["layers"] = layerwise(model, sample, wanted.layers)
    return measured
