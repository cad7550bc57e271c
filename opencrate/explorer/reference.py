"""The reference pictures: one pass gives their mean curves and the best patches of every head and coordinate.

What passes through a layer is dropped after it. Only the curves and the places and scores of the patches are kept.
"""

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from ..inspection.views import Patches, finite_projections, leading_scores, patches_at
from ..measures.layerwise import joined
from ..models import CRATE
from ..objective.rates import require_finite
from ..sources import Gallery
from ..stack import Step, trajectory
from ..study import Study
from .picture_store import LRUCache
from .views import PATCHES, curves

GALLERY = 64  # pictures that are kept in memory
SAMPLES = 12  # the first of them, which the page offers
SEARCHED = 24  # the first of them, in which patches are looked for
VARIANTS = 16  # networks whose patches are kept

Turn = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, eq=False)
class LayerPatches:
    """The best patches of one layer: scores and places of every head (k, count) and every coordinate (d, count)."""

    best: dict[str, torch.return_types.topk]  # of "head" and "coordinate"
    per_image: int

    def patches(self, kind: str, number: int) -> Patches:
        """Those of a head or coordinate, which is counted from 1, best first."""
        scores, places = self.best[kind]
        return patches_at(places[number - 1], scores[number - 1], self.per_image)


class Reference:
    """The reference pictures of a study; `turn` is entered for every piece of work, and visitors come in between."""

    def __init__(self, study: Study, turn: Turn) -> None:
        self.study, self.turn = study, turn
        self.gallery = study.pictures[0].gallery(min(study.samples, GALLERY), prefixes=(SAMPLES, SEARCHED))
        self.searched = Gallery(*(part[:SEARCHED] for part in vars(self.gallery).values()))
        self.means: dict[str, Any] | None = None  # None until they are measured
        self._passing = Lock()  # two questions about one variant make one pass
        self._curves: list[dict[str, Tensor]] = []  # those of the searched pictures, by layer
        self._patches: LRUCache[list[LayerPatches]] = LRUCache(VARIANTS)

    def patches(self, variant: Hashable, open_model: Callable[[], CRATE]) -> list[LayerPatches]:
        """The best patches in every layer of a variant of the network, which is opened for its one pass alone."""
        kept = self._patches.get(variant)
        if kept is not None:
            return kept
        with self._passing:
            return self._patches.get(variant) or self._patches.put(variant, self._search(open_model()))

    def _search(self, model: CRATE) -> list[LayerPatches]:
        """One pass of the searched pictures, with a turn for every layer; the curves of the study's own network."""
        best, steps = [], trajectory(model, self.searched.images)
        for _ in model.layers:
            with self.turn(), torch.inference_mode():
                step = next(steps)
                best.append(_best_of(step))
                if model is self.study.model:
                    self._curves.append(curves([step]))
        return best

    def measure(self, variant: Hashable) -> None:
        """Find the study's own network's patches, and its mean curves over all reference pictures."""
        self.patches(variant, lambda: self.study.model)
        if self.study.samples <= GALLERY:
            parts = [joined(self._curves, dim=0)]
            batches = iter(self.gallery.images[SEARCHED:].split(self.study.batch))
        else:
            parts, batches = [], self.study.batches()
        for batch in batches:
            with self.turn(), torch.inference_mode():
                if len(batch) > 0:
                    parts.append(curves(list(trajectory(self.study.model, batch))))
        values = joined(parts, dim=1)  # (layers, samples)
        self.means = {
            "samples": values["nonzero"].shape[1],
            "curves": {name: value.mean(1).tolist() for name, value in values.items()},
            "name": self.study.pictures[0].name,
        }


def _best_of(step: Step) -> LayerPatches:
    tokens = step.Z_next[:, 1:].flatten(0, 1)  # (b·n, d)
    require_finite(f"the tokens of layer {step.number}", tokens)
    count = min(PATCHES, len(tokens))
    best = {"coordinate": tokens.mT.topk(count)}
    if step.layer.U is not None:
        V = finite_projections(step)[:, :, 1:].transpose(0, 1)  # (k, b, n, p)
        best["head"] = leading_scores(V).flatten(1).topk(count)
    return LayerPatches(best, step.Z_next.shape[1] - 1)
