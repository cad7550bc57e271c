"""Stems: from an input to the tokens Z¹."""

from .patches import PatchEmbed

__all__ = ["PatchEmbed"]
