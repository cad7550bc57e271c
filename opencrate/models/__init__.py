"""The network, its names in timm's registry, and its checkpoints."""

from .crate import CRATE, Step, trajectory
from .folding import FoldedCRATE
from .reading import Checkpoint, load, read
from .registry import SIZES, VARIANTS
from .writing import convert, push_to_hub, save_authors, save_pretrained

__all__ = [
    "CRATE",
    "SIZES",
    "VARIANTS",
    "Checkpoint",
    "FoldedCRATE",
    "Step",
    "convert",
    "load",
    "push_to_hub",
    "read",
    "save_authors",
    "save_pretrained",
    "trajectory",
]
