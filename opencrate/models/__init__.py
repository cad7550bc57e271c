"""The networks, and their names in timm's registry."""

from typing import TYPE_CHECKING

from ..lazy import lazy_names
from .registry import SIZES, VARIANTS

if TYPE_CHECKING:
    from .crate import CRATE

__getattr__ = lazy_names(__name__, {"CRATE": "crate"})
