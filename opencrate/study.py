"""A network with everything that is analysed with it: its untrained twin, its pictures and its run."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .classes import ClassMatch, class_names, imagenet, in_words, match_classes
from .measures import LayerTable
from .run_folder import RunFolder, run_of
from .run_recipe import load_network, recipe_of
from .settings import Studying
from .sources import Gallery, Source, open_network, open_sources
from .stack import is_stack

GALLERY = 64  # pictures in which patches are searched
DRAWN, ABLATED = 4, 8  # the first of them, which are drawn, and on which heads are switched off


def evenly_spaced(values: list[Any], count: int) -> list[Any]:
    """`count` of the values, with the first and the last; all of them if there are no more."""
    if len(values) <= count:
        return values
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]


@dataclass(eq=False)
class Study:
    """A network and the pictures on which it is studied."""

    source: str
    model: Any
    note: str | None  # for example that its weights are fresh
    pictures: list[Source]  # the first source is what the network is measured on
    samples: int
    batch: int
    run: RunFolder | None
    chosen: tuple[int, ...] = ()  # numbers of the pictures to draw
    own_pictures: bool = True  # the pictures are those of the run

    def __post_init__(self) -> None:
        self.starts = self.run.starts() if self.run else []  # of the run: command, versions, hardware
        self.result = self.run.finished() if self.run else None

    @property
    def has_layers(self) -> bool:
        """Whether the network's layers can be walked; if not, only its tokens are compared."""
        return is_stack(self.model)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.model.patch_embed.grid_size

    @cached_property
    def untrained(self) -> Any:
        """The same network before any training; None for one that is untrained itself."""
        if self.note is not None:
            return None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)  # other weights than `open_network` draws
            return type(self.model)(**self.model.config()).to(self.device).eval()

    @cached_property
    def gallery(self) -> Gallery:
        """The pictures that are shown: those that are drawn come first."""
        return self.pictures[0].gallery(min(self.samples, GALLERY), self.chosen, prefixes=(DRAWN, ABLATED))

    @property
    def drawn(self) -> int:
        """How many pictures of the gallery, from its start, are drawn."""
        return len(self.chosen) or min(DRAWN, len(self.gallery.images))

    @property
    def ablated(self) -> int:
        """On how many pictures of the gallery, from its start, heads are switched off."""
        return min(ABLATED, len(self.gallery.images))

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; empty if they are not known."""
        known, first = class_names(self.model), self.pictures[0]
        if not known and self.model.num_classes == 1000:
            return imagenet()[1]
        matches = first.labelled and len(first.feed.classes) == self.model.num_classes
        return in_words(known or (first.feed.classes if matches else ()))

    def batches(self, source: Source | None = None) -> Iterator[Tensor]:
        return (source or self.pictures[0]).batches(self.samples, self.batch)

    @property
    def decode_failures(self) -> int:
        """How many pictures could not be decoded so far."""
        return len(self.pictures[0].feed.decode_failures)

    def class_name(self, number: int) -> str:
        return self.classes[number].split(",")[0] if number < len(self.classes) else f"class {number}"

    @cached_property
    def match(self) -> ClassMatch | str:
        """The classes of the pictures among the network's, or why they cannot be compared."""
        if not self.pictures[0].labelled:
            return "the pictures have no classes"
        try:
            return match_classes(class_names(self.model), self.model.num_classes, self.pictures[0].feed.classes)
        except ValueError as error:
            return str(error)

    def target(self, i: int) -> int | None:
        """The network's number of the class of picture i of the gallery; None if it is not known."""
        target = self.gallery.targets[i]
        return None if target is None or isinstance(self.match, str) else self.match.numbers[target]

    def probed(self) -> dict[int, LayerTable]:
        """The layer tables that the run recorded while it trained, by epoch."""
        lines = self.run.recorded("layers") if self.run else ()
        return {line["epoch"]: LayerTable.from_dict(line) for line in lines}

    def kept(self) -> Iterator[tuple[int, Any]]:
        """The networks of the epochs whose checkpoints the run kept."""
        for epoch, file in self.run.kept_epochs().items() if self.run else ():
            yield epoch, load_network(file).to(self.device)

    @property
    def is_final(self) -> bool:
        """Whether the network is the one that the run ended with."""
        return self.run is not None and Path(self.source).expanduser() in (self.run.path, self.run.model)

    @property
    def is_best(self) -> bool:
        """Whether the network is the one of the run's best epoch, opened as such."""
        return self.run is not None and Path(self.source).expanduser() == self.run.best

    def accuracies(self) -> dict[int, float]:
        """Top-1 accuracy on the validation split in per cent, by epoch, as the run recorded it."""
        lines = self.run.recorded("validation") if self.run else ()
        values = ((line.get("epoch"), line.get("top1")) for line in lines)
        return {epoch: top1 for epoch, top1 in values if isinstance(epoch, int) and isinstance(top1, int | float)}

    @property
    def averages(self) -> bool:
        """Whether the run's network is a moving average, which its kept checkpoints are not read as."""
        return self.run is not None and recipe_of(self.run).optim.ema > 0

    @property
    def device(self) -> torch.device:
        return next(iter(self.model.parameters())).device


def open_study(
    source: str, settings: Studying, device: torch.device, training: bool = False, chosen: tuple[int, ...] = ()
) -> Study:
    """Open a network and the pictures that the settings name; `training` opens the training pictures, too."""
    model, note = open_network(source)
    pictures = open_sources(source, model.to(device), settings, str(device), training)
    own = not settings.named_pictures() and settings.root is None
    return Study(source, model, note, pictures, settings.samples, settings.batch, run_of(source), chosen, own)
