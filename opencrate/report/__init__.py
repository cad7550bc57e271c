"""A run or a checkpoint → tables, figures and one page that tells what every layer does."""

from .analyze import PARTS, Analysis, Auditing, analyze, audit_of

__all__ = ["PARTS", "Analysis", "Auditing", "analyze", "audit_of"]
