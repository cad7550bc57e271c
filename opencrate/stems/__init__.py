"""Stems: from an input to the tokens Z¹."""

from .bytes import ByteEmbed
from .patches import PatchEmbed
