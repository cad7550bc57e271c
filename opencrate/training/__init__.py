"""Training: runs a recipe, on one device or on many, and resumes after any interruption."""

from typing import TYPE_CHECKING

from ..lazy import lazy_names
from .launch import is_main, is_worker, launch, require_room
from .options import Options

if TYPE_CHECKING:
    from .run import summary, train
    from .signals import Stopped

__getattr__ = lazy_names(__name__, {"Stopped": "signals", "summary": "run", "train": "run"})
