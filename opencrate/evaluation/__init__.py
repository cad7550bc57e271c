"""Evaluation of checkpoints: everything that `opencrate eval` measures."""

from .measure import Measuring, data_of, measure_checkpoint

__all__ = ["Measuring", "data_of", "measure_checkpoint"]
