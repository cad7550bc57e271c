"""The network, its names in timm's registry, and its checkpoints."""

from .checkpoints import Checkpoint, convert, load, push_to_hub, read, save_authors, save_pretrained
from .crate import CRATE, Step, trajectory
from .registry import SIZES, VARIANTS

__all__ = [
    "CRATE",
    "SIZES",
    "VARIANTS",
    "Checkpoint",
    "Step",
    "convert",
    "load",
    "push_to_hub",
    "read",
    "save_authors",
    "save_pretrained",
    "trajectory",
]
