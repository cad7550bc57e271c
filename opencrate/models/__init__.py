"""The networks, and their names in timm's registry."""

from .crate import CRATE
from .registry import SIZES, VARIANTS

__all__ = ["CRATE", "SIZES", "VARIANTS"]
