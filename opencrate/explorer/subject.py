"""What is explored: a network, those it can be compared with, its samples, and a reference set measured beside."""

from threading import Event, Lock, Thread
from typing import Any, cast

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ..data import Augmentation
from ..data.datasets.pictures import with_channels
from ..data.feeds.loading import Loaded
from ..measures import DEFINITIONS
from ..models import CRATE
from ..report.sections import labels
from ..sources import Gallery, Source, open_network, require_comparable
from ..study import Study
from .views import curves

__all__ = ["Subject"]

SAMPLES = 12  # pictures that a visitor can take
TOGETHER = 24  # reference pictures among which patches are looked for
THIS = "this network"


class Subject:
    """The networks by name, the first being the one that is explored, and what is known of pictures for it."""

    def __init__(self, study: Study, against: str | None = None, settings: str = "Exploring()") -> None:
        if not isinstance(study.model, CRATE):
            raise ValueError(f"{study.source} is no CRATE, and has no layers to explore")
        self.study, self.model, self.settings = study, study.model, settings
        self.networks: dict[str, CRATE] = {THIS: study.model}
        if study.untrained is not None:
            self.networks["untrained"] = study.untrained
        self.networks |= {f"epoch {epoch}": model for epoch, model in study.kept()}
        if against is not None:
            self.networks[against] = require_comparable(against, open_network(against)[0], study.model)
        self.computing = Lock()  # one at a time: torch takes all cores for each
        self.closing, self.measuring = Event(), cast("Thread | None", None)
        self.reference: dict[str, Any] | None = None
        self.shown = study.gallery

    @property
    def samples(self) -> list[np.ndarray]:
        return list(self.shown.shown[:SAMPLES])

    def sample(self, number: int) -> Gallery:
        if not 0 <= number < len(self.samples):
            raise ValueError(f"There is no sample {number}.")
        return _one(self.shown, number)

    @property
    def patched(self) -> Gallery:
        """The reference pictures among which patches are looked for."""
        return Gallery(self.shown.images[:TOGETHER], self.shown.shown[:TOGETHER], self.shown.targets[:TOGETHER])

    def prepare(self, image: Image.Image) -> Gallery:
        """A picture as the network sees it, upright."""
        image = with_channels(ImageOps.exif_transpose(image), self.model.patch_embed.in_chans)
        first = self.study.pictures[0]
        feed = Loaded(_Single(image), first.data, Augmentation(crop="none", flip=0.0), False, 0, "cpu", 0)
        return Source("your picture", feed, first.data, labelled=False).gallery(1)

    def measure_reference(self) -> Thread:
        """In the background: the mean curves of the reference pictures, by every definition."""
        self.measuring = Thread(target=self._measure, name="reference", daemon=True)
        self.measuring.start()
        return self.measuring

    def _measure(self) -> None:
        parts: list[dict[str, Tensor]] = []  # (layers, b) of every measure, batch by batch
        batches = self.study.batches()
        while self.reference is None:
            with self.computing:  # visitors come in between
                if self.closing.is_set():
                    return
                batch = next(batches, None)
                if batch is None:
                    self.reference = self._mean_of(parts)
                else:
                    parts.append(curves(self.model, batch))

    def _mean_of(self, parts: list[dict[str, Tensor]]) -> dict[str, Any]:
        means = {name: torch.cat([part[name] for part in parts], 1).mean(1).tolist() for name in parts[0]}
        samples = sum(part["nonzero"].shape[1] for part in parts)
        return {"samples": samples, "curves": means, "name": self.study.pictures[0].name}

    def close(self) -> None:
        """Let nobody compute any more: a thread that is in torch while Python ends would end it by a signal."""
        self.closing.set()
        if self.measuring is not None:
            self.measuring.join()
        self.computing.acquire()

    def about(self) -> dict[str, Any]:
        """What the page has to know before a picture is open."""
        rows, columns = self.study.grid
        model = self.model
        return {
            "name": labels([self.study.source])[0],
            "source": self.study.source,
            "settings": self.settings,
            "note": self.study.note,
            "layers": len(model.blocks),
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

    def network(self, name: str) -> CRATE:
        if name not in self.networks:
            raise ValueError(f"There is no network “{name}” here.")
        return self.networks[name]


def _one(gallery: Gallery, number: int) -> Gallery:
    which = slice(number, number + 1)
    return Gallery(gallery.images[which], gallery.shown[which], gallery.targets[which])


class _Single:
    """One picture, as a set of pictures."""

    classes: tuple[str, ...] = ("unknown",)

    def __init__(self, image: Image.Image) -> None:
        self.image = image

    def __len__(self) -> int:
        return 1

    def picture(self, i: int) -> Image.Image:
        return self.image

    def target(self, i: int) -> int:
        return 0

    def name(self, i: int) -> str:
        return "the visitor's picture"
