"""Speed put on from outside: fast forms of a network, each tested equal to the definition."""

from .fold import FoldedCRATE, fold
from .training import training_forms
