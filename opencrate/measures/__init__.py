"""Measures: what is measured at a layer, with a name for each definition, and layer-wise tables of it."""

from .layerwise import (
    DEFINITIONS,
    Definition,
    LayerReader,
    LayerTable,
    Reader,
    definition_named,
    interval,
    layerwise,
    layerwise_by,
    measure,
    read_steps,
    stream,
    summary,
)

__all__ = [
    "DEFINITIONS",
    "Definition",
    "LayerReader",
    "LayerTable",
    "Reader",
    "definition_named",
    "interval",
    "layerwise",
    "layerwise_by",
    "measure",
    "read_steps",
    "stream",
    "summary",
]
