"""Evaluation of checkpoints: everything that `opencrate eval` measures."""

from .measure import measure_checkpoint
