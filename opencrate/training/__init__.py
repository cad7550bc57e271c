"""Training: runs a recipe, on one device or on many, and resumes after any interruption."""

from .launch import is_main, launch, under_torchrun
from .options import Options
from .run import summary, train
from .signals import Stopped

__all__ = ["Options", "Stopped", "is_main", "launch", "summary", "train", "under_torchrun"]
