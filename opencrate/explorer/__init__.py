"""The explorer: a local web page on which a picture goes through the network layer by layer."""

from .explore import Exploring, explore, open_subject
