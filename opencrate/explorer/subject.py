"""What is explored: a network, its variants, the networks it can be compared with, samples and reference pictures."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Any

import numpy as np
from PIL import Image

from ..inspection.ablation import ablated
from ..inspection.views import require_within
from ..measures import DEFINITIONS
from ..models import CRATE
from ..report.sections import labels
from ..settings import Exploring
from ..sources import Gallery, gallery_of, open_network, require_comparable
from ..stack import is_stack
from ..study import Study
from .reference import SAMPLES, Reference
from .views import crops

log = logging.getLogger("opencrate")

THIS = "this network"

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Variant:
    """A network by its name, with heads, pairs (layer, head), and atoms, pairs (layer, coordinate), switched off."""

    network: str = THIS
    heads: Pairs = ()
    atoms: Pairs = ()


class Subject:
    """The networks by name, the first being the one that is explored, and pictures for them."""

    def __init__(self, study: Study, settings: Exploring) -> None:
        if not is_stack(study.model):
            raise ValueError(f"{study.source} has no layers that can be explored")
        self.study, self.model, self.settings = study, study.model, settings
        self.networks: dict[str, CRATE] = {THIS: study.model}
        if study.untrained is not None:
            self.networks["untrained"] = study.untrained
        self.networks |= {f"epoch {epoch}": model for epoch, model in study.kept()}
        if (against := settings.against) is not None:
            self.networks[settings.shown(against)] = require_comparable(against, open_network(against)[0], study.model)
        self._computing, self._closing = Lock(), Event()
        self._measuring: Thread | None = None
        self.reference = Reference(study, self.turn)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One computation at a time, because torch takes all cores for each, and none after `close`."""
        with self._computing:
            if self._closing.is_set():
                raise ValueError("The explorer is closing.")
            yield

    @property
    def samples(self) -> list[np.ndarray]:
        return list(self.reference.gallery.shown[:SAMPLES])

    def sample(self, number: int) -> Gallery:
        require_within("sample", number, 0, len(self.samples) - 1)
        return Gallery(*(part[number : number + 1] for part in vars(self.reference.gallery).values()))

    def prepare(self, image: Image.Image) -> Gallery:
        """A picture as the network sees it, upright."""
        return gallery_of(image, self.study.pictures[0].data)

    def network(self, name: str) -> CRATE:
        if name not in self.networks:
            raise ValueError(f"There is no network “{name}” here.")
        return self.networks[name]

    def variant(self, variant: Variant) -> CRATE:
        """The network itself, or a copy without what is switched off."""
        model = self.network(variant.network)
        return ablated(model, variant.heads, variant.atoms) if variant.heads or variant.atoms else model

    def crops(self, variant: Variant, layer: int, kind: str, number: int) -> list[dict[str, Any]]:
        """The best patches of the reference pictures for a "head" or "coordinate" of a layer, cut out."""
        best = self.reference.patches(variant, lambda: self.variant(variant))[layer - 1]
        patch_size = self.network(variant.network).patch_embed.patch_size
        return crops(self.reference.searched.shown, best.patches(kind, number), patch_size)

    def measure_reference(self) -> Thread:
        """Measure the reference pictures in the background."""
        self._measuring = Thread(target=self._measure, name="reference", daemon=True)
        self._measuring.start()
        return self._measuring

    def _measure(self) -> None:
        try:
            self.reference.measure(Variant())
        except ValueError as error:
            if not self._closing.is_set():
                log.warning("the reference pictures could not be measured: %s", error)

    def close(self) -> None:
        """Let no computation begin, and wait for the last: Python must not exit while a thread is inside torch."""
        self._closing.set()
        if self._measuring is not None:
            self._measuring.join()
        with self._computing:
            pass

    def about(self) -> dict[str, Any]:
        """What the page has to know before a picture is open."""
        rows, columns = self.study.grid
        model = self.model
        return {
            "name": labels([self.study.source])[0],
            "source": self.settings.shown(self.study.source),
            "settings": self.settings.in_python(),
            "note": self.study.note,
            "layers": len(model.layers),
            "heads": model.num_heads,
            "dim": model.embed_dim,
            "grid": [rows, columns],
            "size": list(model.patch_embed.img_size),
            "classes": model.num_classes,
            "networks": list(self.networks),
            "definitions": list(DEFINITIONS),
            "samples": len(self.samples),
            "parameters": sum(weight.numel() for weight in model.parameters()),
        }
