"""Checks that everybody uses, and the ends of the sentences that they raise."""

from collections.abc import Iterable
from difflib import get_close_matches


def require_positive(name: str, value: int | float) -> None:
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}")


def require_nonnegative(name: str, value: int | float) -> None:
    if not value >= 0:
        raise ValueError(f"{name} must not be negative, got {value}")


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest known one, or all of them."""
    names = sorted(known)
    if close := nearest(name, names):
        return f"; did you mean {close!r}?"
    return f"; known: {', '.join(names)}" if names else "; it has none"


def nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(get_close_matches(name, sorted(known), n=1)), None)
