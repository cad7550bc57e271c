"""The engine: runs a recipe, on one device or on many, and goes on after anything."""

from .evaluation import evaluate
from .launching import is_main, launch, under_torchrun
from .measuring import Measuring, data_of, measure_checkpoint
from .options import Options
from .run import summary, train
from .training import Stopped

__all__ = [
    "Measuring",
    "Options",
    "Stopped",
    "data_of",
    "evaluate",
    "is_main",
    "launch",
    "measure_checkpoint",
    "summary",
    "train",
    "under_torchrun",
]
