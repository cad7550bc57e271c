"""Settings: frozen values that check themselves. The annotation of a field says which values it takes.

lr: Positive[float] = 2.4e-4
batch: AtLeastOne[int] = 2048
"""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

from .errors import shown, suggestion


@dataclass(frozen=True)
class Bound:
    """Which values a field takes, and how an error says so."""

    holds: Callable[[Any], bool]
    words: str

    def require(self, name: str, value: Any) -> None:
        if not self.holds(value):
            raise ValueError(f"{name} {self.words}, got {shown(value)}")


@dataclass(frozen=True, eq=False)
class OneOf:
    """The names that a field takes, and what has them."""

    what: str
    names: Collection[str]

    def require(self, name: str, value: Any) -> None:
        if value not in self.names:
            raise ValueError(f"unknown {self.what} {shown(value)}{suggestion(value, self.names)}")


# Of a number, or of every number in a tuple. None is not checked.
Value = TypeVar("Value")
Positive = Annotated[Value, Bound(lambda value: value > 0, "must be positive")]
NotNegative = Annotated[Value, Bound(lambda value: value >= 0, "must not be negative")]
AtLeastOne = Annotated[Value, Bound(lambda value: value >= 1, "must be at least 1")]
Fraction = Annotated[Value, Bound(lambda value: 0 <= value <= 1, "must be between 0 and 1")]
ProperFraction = Annotated[Value, Bound(lambda value: 0 <= value < 1, "must be in [0, 1)")]


@dataclass(frozen=True)
class Settings:
    """Base of dataclasses whose fields are checked when one is made; numbers must be finite, too.

    `section` is the path of the fields in a recipe. A key without a field is refused when a recipe is read from a file.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012, pydantic reads this name
    _prefix: ClassVar[str] = ""

    def __init_subclass__(cls, section: str = "") -> None:
        cls._prefix = f"{section}." if section else ""

    def __post_init__(self) -> None:
        for field in fields(self):
            rules = getattr(field.type, "__metadata__", ())
            for name, value in _parts(f"{self._prefix}{field.name}", getattr(self, field.name)):
                for rule in rules:
                    rule.require(name, value)
                if isinstance(value, float) and not math.isfinite(value):
                    raise ValueError(f"{name} must be finite, got {value}")
                if get_origin(field.type) is Literal and value not in (choices := get_args(field.type)):
                    raise ValueError(f"{name} must be {', '.join(choices[:-1])} or {choices[-1]}, got {shown(value)}")


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A value, or those inside a tuple or a dictionary, each with its name."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _parts(f"{name}.{key}", part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _parts(name, part)
    elif value is not None:
        yield name, value
