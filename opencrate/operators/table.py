"""Operators by name: a function enters the table by a decorator, and its signature says what it needs.

Arguments that name a weight (`U`, `W`, `bias`, `D`) are parameters that the module learns; `scale` and `dropout` come
from the module; everything else has a default and is an option that a user may set.
"""

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches

from torch import Tensor

from ..objective.rates import require_nonnegative, require_positive

Operator = Callable[..., Tensor]
Options = dict[str, int | float]

_FROM_MODULE = {"Z", "U", "W", "bias", "D", "scale", "dropout"}
_CHECKS = {
    "eps": require_positive,
    "sigma": require_positive,
    "eta": require_positive,
    "kappa": require_positive,
    "steps": require_positive,
    "lam": require_nonnegative,
}


class OperatorTable(dict[str, Operator]):
    """The operators of one kind, for example every compression."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def register(self, operator: Operator) -> Operator:
        """Decorator: make the function available under its own name."""
        self[operator.__name__] = operator
        return operator

    def named(self, name: str) -> Operator:
        if name not in self:
            raise ValueError(f"unknown {self.kind} {name!r}{_suggestion(name, self)}")
        return self[name]

    def options(self, name: str, given: Options | None) -> Options:
        """The operator's options: its defaults, overridden by what was given."""
        defaults = {
            parameter.name: parameter.default
            for parameter in inspect.signature(self.named(name)).parameters.values()
            if parameter.name not in _FROM_MODULE
        }
        options = {**defaults, **(given or {})}
        for option, value in options.items():
            if option not in defaults:
                raise ValueError(f"{name} has no option {option!r}{_suggestion(option, defaults)}")
            if option in _CHECKS:
                _CHECKS[option](option, value)
        return options

    def takes(self, name: str, argument: str) -> bool:
        return argument in inspect.signature(self.named(name)).parameters


def _suggestion(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names) or 'none'}"
