"""The explorer: a local page on which a picture goes through the network layer by layer, fed by `analysis`."""

from .explore import Exploring, explore, open_subject

__all__ = ["Exploring", "explore", "open_subject"]
