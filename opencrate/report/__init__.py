"""A run or a checkpoint → tables, figures and one page that tells what every layer does."""

from .analyzing import PARTS, Analysis, analyze, audit_of

__all__ = ["PARTS", "Analysis", "analyze", "audit_of"]
