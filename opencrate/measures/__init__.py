"""Measures: what is measured at a layer, with a name for each definition, and layer-wise tables of it."""

from ..definitions import DEFINITIONS, Definition, definition_named
from .layerwise import LayerTable, interval, layerwise, layerwise_by, measure, read_steps
