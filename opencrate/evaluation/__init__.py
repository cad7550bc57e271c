"""Evaluation: accuracy, features (kNN, linear probe), and everything that `opencrate eval` measures."""

from .accuracy import evaluate
from .measure import Measuring, data_of, measure_checkpoint

__all__ = ["Measuring", "data_of", "evaluate", "measure_checkpoint"]
