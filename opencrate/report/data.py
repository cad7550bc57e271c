"""What the sections of a report read, computed in as few passes through the networks as there are sets of pictures.

    measured    the network on its validation pictures and on its training pictures, the untrained network on the
                validation pictures: one pass each gives the layer tables by all definitions and the audit
    gallery     the network on the pictures that are shown: one pass gives tokens, attention, patches and predictions

That is four passes. Every network of `--against`, and every checkpoint that the run kept, adds one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from torch import Tensor

from ..inspection.recording import Recording, record
from ..inspection.views import Patches, coherent_patches, top_patches
from ..measures import LayerTable, measure, read_steps
from ..measures.audit import Audit, AuditReader
from ..settings import Analysis
from ..sources import open_network, require_comparable
from ..stack import Step
from ..study import Study, evenly_spaced
from .sections import labels

UNTRAINED = "untrained"
LAYERS = 4  # of which heads and entries are drawn
PER_LAYER = 2  # heads and entries of a layer whose patches are drawn


class NotApplicable(ValueError):
    """A section has nothing to show for this network; the message says why."""


@dataclass(frozen=True, eq=False)
class Measured:
    """One network on one set of pictures: a layer table for each definition, and the audit if it was asked for."""

    tables: dict[str, LayerTable]
    audit: Audit | None


@dataclass(frozen=True, eq=False)
class GalleryData:
    """One pass of the gallery: the recording of its first pictures, and the best patches among all of them."""

    recording: Recording
    heads: dict[str, Patches]
    entries: dict[str, Patches]


class ReportData:
    """The study, the settings, and what is computed from them once, when the first section asks for it."""

    def __init__(self, study: Study, settings: Analysis) -> None:
        self.study, self.settings = study, settings

    def wants(self, section: str) -> bool:
        return not self.settings.only or section in self.settings.only

    @cached_property
    def measured(self) -> dict[str, Measured]:
        """By the label of a curve; the network itself comes first."""
        result: dict[str, Measured] = {}
        for label, model, batches in self._passes():
            audited = self.wants("audit") and (not result or label == UNTRAINED)
            result[label] = self._measure(model, batches, audited)
        return result

    def _passes(self) -> Iterator[tuple[str, Any, Iterator[Tensor]]]:
        """A label, a network and pictures for every pass."""
        study, against = self.study, self.settings.against if self.wants("layers") else ()
        if against:
            names = labels([study.source, *against])
            others = [open_network(source)[0].to(study.device) for source in against]
            for name, model in zip(names, [study.model, *others], strict=True):
                yield name, require_comparable(name, model, study.model), study.batches()
        else:
            for source in study.pictures if self.wants("layers") else study.pictures[:1]:
                yield source.name, study.model, study.batches(source)
        if study.untrained is not None:
            yield UNTRAINED, study.untrained, study.batches()

    def _measure(self, model: Any, batches: Iterator[Tensor], audited: bool) -> Measured:
        definitions = self.settings.readings() if self.wants("layers") else []
        readers = [partial(measure, definition=definition) for definition in definitions]
        auditors = [AuditReader(model, self.settings.eps)] if audited else []
        values = read_steps(model, batches, [*readers, *auditors])
        tables = {of.name: LayerTable.of(of, columns) for of, columns in zip(definitions, values, strict=False)}
        return Measured(tables, auditors[0].audit(values[-1]) if auditors else None)

    @cached_property
    def drawn_layers(self) -> list[int]:
        return evenly_spaced(list(range(1, len(self.study.model.layers) + 1)), LAYERS)

    @cached_property
    def gallery(self) -> GalleryData:
        study, heads, entries = self.study, dict[str, Patches](), dict[str, Patches]()

        def search(step: Step) -> None:
            if step.number not in self.drawn_layers:
                return
            U, code = step.layer.U, step.code
            for head in evenly_spaced(list(range(1, len(U) + 1)), PER_LAYER) if U is not None else ():
                heads[f"layer {step.number}, head {head}"] = coherent_patches(step, head)
            if code is not None:
                # An entry that is the same everywhere says nothing about a patch, so the most variable ones are shown.
                deviation = code[:, 1:].float().flatten(0, 1).std(0)
                for entry in deviation.topk(min(PER_LAYER, len(deviation))).indices.tolist():
                    entries[f"layer {step.number}, entry {entry + 1}"] = top_patches(step, entry + 1)

        recording = record(study.model, study.gallery.images, max(study.drawn, study.ablated), search)
        return GalleryData(recording, heads, entries)
