"""Tasks: what a network is trained for and judged by."""

from .classification import Classification
from .language import NextByte
from .regularised import Regularised, RegularisedNetwork
from .task import Task, describe_metrics
