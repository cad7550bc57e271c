"""Operators by name: a function enters the table by a decorator, and its signature says what it needs.

The first arguments are Z and the weight that the module learns, U or D. A compression may also name `W` and `bias`, a
free output map, and `scale`, `dropout`, `attention` and `queries`, which come from the module. Everything else is an
option that a user may set: a number with a default.
"""

import inspect
import math
from collections.abc import Callable, Iterable
from functools import wraps
from numbers import Real
from typing import Any, cast

from torch import Tensor

from ..errors import nearest, require_nonnegative, require_positive, suggestion

__all__ = ["Operator", "OperatorTable", "Options"]

Operator = Callable[..., Tensor]
Options = dict[str, int | float]

_CHECKS = {
    "eps": require_positive,
    "sigma": require_positive,
    "eta": require_positive,
    "kappa": require_positive,
    "steps": require_positive,
    "lam": require_nonnegative,
}


class OperatorTable(dict[str, Operator]):
    """The operators of one kind: `weight` is the argument after Z, `supplied` what the module may pass besides."""

    def __init__(self, kind: str, weight: str, supplied: Iterable[str] = ()) -> None:
        super().__init__()
        self.kind, self.weight, self.supplied = kind, weight, frozenset(supplied)
        self.increments: set[str] = set()
        self.unrecorded: set[str] = set()

    def register(self, operator: Operator | None = None, *, increment: bool = False, recorded: bool = True) -> Any:
        """Decorator, `@register` or `@register(increment=True)`: make the function available under its own name.

        An operator returns the new tokens; an increment returns what is to be added to them. One that looks at values
        on the host says `recorded=False`: a training step with it is no CUDA graph. What a function from outside this
        package returns is checked at every call.
        """
        if operator is None:
            return lambda function: self.register(function, increment=increment, recorded=recorded)
        name = getattr(operator, "__name__", "")
        self._require_signature(name, operator)
        if name in self and self[name].__module__ != operator.__module__:
            raise ValueError(f"{self.kind} {name!r} exists in {self[name].__module__}: give yours another name")
        if not str(operator.__module__).startswith(__package__):  # there is none in a console
            operator = self._checked(name, operator)
        self[name] = operator
        (self.increments.add if increment else self.increments.discard)(name)
        (self.unrecorded.discard if recorded else self.unrecorded.add)(name)
        return operator

    def named(self, name: str) -> Operator:
        if not isinstance(name, str):
            raise ValueError(f"a {self.kind} is chosen by its name, not by {name!r}: register the function first")
        if name not in self:
            own = "" if nearest(name, self) else "; one of yours must be registered first, by importing its module"
            raise ValueError(f"unknown {self.kind} {name!r}{suggestion(name, self)}{own}")
        return self[name]

    def options(self, name: str, given: Options | None) -> Options:
        """The operator's options: its defaults, overridden by what was given."""
        arguments = inspect.signature(self.named(name)).parameters.values()
        defaults = {a.name: a.default for a in arguments if a.name not in {"Z", self.weight, *self.supplied}}
        options: Options = dict(defaults)
        for option, value in _mapping(name, given).items():
            if option in self.supplied and self.takes(name, option):
                raise ValueError(f"{option!r} of {name} is given by the network, and is no option")
            if option not in defaults:
                raise ValueError(f"{name} has no option {option!r}{suggestion(str(option), defaults)}")
            options[option] = _number(option, value, like=defaults[option])
        return options

    def takes(self, name: str, argument: str) -> bool:
        return argument in inspect.signature(self.named(name)).parameters

    def _checked(self, name: str, operator: Operator) -> Operator:
        @wraps(operator)
        def checked(Z: Tensor, *weights: Tensor, **options: Any) -> Tensor:
            found = operator(Z, *weights, **options)
            if isinstance(Z, Tensor):  # and no stand-in for one, by which torch.fx traces
                _require_tokens(f"{self.kind} {name!r}", found, Z, options.get("queries"))
            return found

        return checked

    def _require_signature(self, name: str, operator: Operator) -> None:
        if not name.isidentifier():
            raise ValueError(f"a {self.kind} is registered under its function's name, which {operator!r} has not")
        arguments = list(inspect.signature(operator).parameters.values())
        if [argument.name for argument in arguments[:2]] != ["Z", self.weight]:
            raise ValueError(f"{self.kind} {name!r} must begin with the arguments Z and {self.weight}")
        for argument in arguments[2:]:
            if argument.default is argument.empty or argument.kind is argument.POSITIONAL_ONLY:
                raise ValueError(f"argument {argument.name!r} of {self.kind} {name!r} needs a name and a default")
            if argument.name not in self.supplied:
                if not isinstance(argument.default, Real):
                    learned = "U, W and bias" if "W" in self.supplied else self.weight
                    raise ValueError(
                        f"{argument.name!r} of {self.kind} {name!r} is an option, so its default must be a number:"
                        f" what an operator may learn is {learned}"
                    )
                _number(argument.name, argument.default, like=argument.default)
        names = {argument.name for argument in arguments}
        if "bias" in names & self.supplied and "W" not in names:
            raise ValueError(f"{self.kind} {name!r} has a bias and no W for it to belong to")


def _require_tokens(operator: str, found: Any, Z: Tensor, queries: int | None) -> None:
    """That an operator returns a token for each of Z's, or for the first `queries` of them."""
    wanted = Z.shape if queries is None else (*Z.shape[:-2], queries, Z.shape[-1])
    if not isinstance(found, Tensor) or found.shape != wanted:
        got = tuple(found.shape) if isinstance(found, Tensor) else repr(found)
        raise ValueError(f"{operator} must return tokens of shape {tuple(wanted)}, got {got}")


def _mapping(name: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, dict | None):
        raise ValueError(f"the options of {name} must be a dictionary, got {given!r}")
    return given or {}


def _number(option: str, value: Any, like: Any) -> int | float:
    """The value as a plain number of the default's type, so that it can be written to a JSON file."""
    whole = isinstance(like, int)
    if not isinstance(value, Real) or not math.isfinite(value) or (whole and value % 1):
        raise ValueError(f"{option} must be a {'whole' if whole else 'finite'} number, got {value!r}")
    number: int | float = type(like)(cast(float, value))
    if option in _CHECKS:
        _CHECKS[option](option, number)
    return number
