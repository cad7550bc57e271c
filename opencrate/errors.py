"""Checks that everybody uses, and the parts of the sentences that they raise."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


def require_positive(name: str, value: int | float) -> None:
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}")


def require_nonnegative(name: str, value: int | float) -> None:
    if not value >= 0:
        raise ValueError(f"{name} must not be negative, got {value}")


def require_at_least(least: int, **counts: int) -> None:
    """Check that every named count is a whole number, and not too small."""
    for name, count in counts.items():
        if not isinstance(count, int) or count < least:
            raise ValueError(f"{name} must be a whole number, at least {least}, got {count!r}")


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest known one, or all of them."""
    names = sorted(known)
    if close := nearest(name, names):
        return f"; did you mean {close!r}?"
    return f"; known: {one_line(', '.join(names))}" if names else "; it has none"


def nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(get_close_matches(name, sorted(known), n=1)), None)


def shown(value: Any, limit: int = 60) -> str:
    """A value from a file as part of a sentence: its `repr`, without control characters and not at length."""
    return one_line(repr(value), limit)


def one_line(text: str, limit: int = 160) -> str:
    """Text from a file or another library on one line: control characters escaped, its middle left out if long."""
    line = printable(" ".join(_ends(text, 4 * limit).split()))
    return _ends(line, limit)


def first_problem(error: Any) -> str:
    """What pydantic says first: where, and what is wrong there."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return one_line(f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": "))


def sentence(error: BaseException) -> str:
    """What an error says; the system's as "/proc/x: No such file or directory"."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def printable(text: str) -> str:
    """The text with control characters escaped, but for line breaks: escape codes never reach a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def _ends(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}…{text[len(text) - (limit - limit // 2 - 1) :]}"
