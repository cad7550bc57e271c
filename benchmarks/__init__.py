"""The benchmark: speed and memory of the paper's pseudocode, ours and timm's ViT, once their results agree."""

from .results import disagreements
from .running import run
from .settings import Bench
from .table import console_of

__all__ = ["Bench", "console_of", "disagreements", "run"]
