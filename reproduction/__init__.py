"""The paper again: its tables and figures as a plan of recipes, carried out, written down, and judged."""

from .plan import PARTS
from .reproduce import Reproduction, reproduce

__all__ = ["PARTS", "Reproduction", "reproduce"]
