"""Operators by name: a class enters a registry by a decorator, and its constructor's arguments are its options.

    @sparsifications.register("dictionary")
    class Dictionary(Sparsification):
        def __init__(self, dim: int, expansion: int = 4, eta: float = 0.1, lam: float = 0.1) -> None: ...

The network supplies `dim`, and `num_heads`, `head_dim` and `attn_drop` to a constructor that names them. Every other
argument is an option that a user may set: a number, a truth value or a word with a default. A constructor with
`**arguments` also takes those of the class it extends. Options are checked, written to config.json and shown by
`describe`.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from ..errors import nearest, require_nonnegative, require_positive, shown, suggestion

Options = dict[str, bool | int | float | str]
SUPPLIED = ("dim", "num_heads", "head_dim", "attn_drop")

_CHECKS = {
    "eps": require_positive,
    "sigma": require_positive,
    "eta": require_positive,
    "kappa": require_positive,
    "steps": require_positive,
    "expansion": require_positive,
    "lam": require_nonnegative,
}

Op = TypeVar("Op", bound=nn.Module)


class Registry(dict[str, type[Op]], Generic[Op]):
    """The operators of one kind, each under its name."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def register(self, name: str) -> Callable[[type[Op]], type[Op]]:
        """Class decorator: make the operator available under `name`."""
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f'a {self.kind} is registered under a name, @register("name"), got {name!r}')

        def enter(operator: type[Op]) -> type[Op]:
            known = self.get(name)
            if known is not None and known.__module__ != operator.__module__:
                raise ValueError(f"{self.kind} {name!r} exists in {known.__module__}; choose another name")
            self._require_constructor(name, operator)
            self[name] = operator
            return operator

        return enter

    def named(self, name: str) -> type[Op]:
        if not isinstance(name, str):
            raise ValueError(f"a {self.kind} is chosen by its registered name, got {name!r}")
        if name not in self:
            hint = "" if nearest(name, self) else "; an operator of your own must be registered first (model.imports)"
            raise ValueError(f"unknown {self.kind} {shown(name)}{suggestion(name, self)}{hint}")
        return self[name]

    def options(self, name: str, given: Mapping[str, Any] | None = None) -> Options:
        """The operator's options: its defaults, overridden by what is given."""
        if not isinstance(given, Mapping | None):
            raise ValueError(f"the options of {name} must be a dictionary, got {given!r}")
        defaults = {key: p.default for key, p in self._arguments(self.named(name)).items() if key not in SUPPLIED}
        options: Options = dict(defaults)
        for option, value in (given or {}).items():
            if option in SUPPLIED:
                raise ValueError(f"{option!r} of {name} is set by the network and is not an option")
            if option not in defaults:
                raise ValueError(f"{name} has no option {shown(option)}{suggestion(str(option), defaults)}")
            options[option] = _value(option, value, like=defaults[option])
        return options

    def build(
        self,
        name: str,
        options: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **supplied: Any,
    ) -> Op:
        """The operator with fresh weights; it keeps its name and options as `spec`."""
        chosen = self.options(name, options)
        operator_class = self.named(name)
        taken = {key: value for key, value in supplied.items() if key in self._arguments(operator_class)}
        with nullcontext() if device is None else torch.device(device):
            operator = operator_class(**taken, **chosen).to(dtype=dtype)
        operator.spec = (name, chosen)  # type: ignore[assignment]
        if not operator_class.__module__.startswith(f"{__package__}."):
            operator.register_forward_hook(_require_tokens)
        return operator

    @staticmethod
    def _arguments(operator: type[Op]) -> dict[str, inspect.Parameter]:
        """The constructor's arguments; behind them those of the base classes to which its `**arguments` are passed."""
        arguments: dict[str, inspect.Parameter] = {}
        for kind in operator.__mro__[: operator.__mro__.index(nn.Module)]:
            if "__init__" in vars(kind):
                _, *own = inspect.signature(vars(kind)["__init__"]).parameters.values()
                for argument in own:
                    arguments.setdefault(argument.name, argument)
                if not own or own[-1].kind is not own[-1].VAR_KEYWORD:
                    break
                del arguments[own[-1].name]
        return arguments

    def _require_constructor(self, name: str, operator: type[Op]) -> None:
        arguments = self._arguments(operator)
        if "dim" not in arguments:
            raise ValueError(f"the constructor of {self.kind} {name!r} must take `dim`, the dimension of the tokens")
        for key, argument in arguments.items():
            if key in SUPPLIED:
                continue
            if argument.default is argument.empty or not isinstance(argument.default, bool | int | float | str):
                raise ValueError(
                    f"{key!r} of {self.kind} {name!r} is an option, so it needs a default that is a number, "
                    "a truth value or a string"
                )
            _value(key, argument.default, like=argument.default)


def _require_tokens(operator: Any, inputs: tuple[Any, ...], result: Any) -> None:
    """A forward hook on operators from outside this package: a wrong shape is said where it is made."""
    wanted = inputs[0].shape
    if isinstance(inputs[0], Tensor) and (not isinstance(result, Tensor) or result.shape != wanted):
        got = tuple(result.shape) if isinstance(result, Tensor) else repr(result)
        raise ValueError(f"operator {operator.spec[0]!r} must return tokens of shape {tuple(wanted)}, got {got}")


def _value(option: str, value: Any, like: Any) -> bool | int | float | str:
    """The value in its default's type, so that it can be written to a JSON file."""
    if isinstance(like, bool | str):
        if not isinstance(value, type(like)):
            raise ValueError(
                f"{option} must be {'true or false' if isinstance(like, bool) else 'a string'}, got {value!r}"
            )
        return value
    whole = isinstance(like, int)
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or (whole and value % 1):
        raise ValueError(f"{option} must be a {'whole' if whole else 'finite'} number, got {value!r}")
    converted: int | float = type(like)(value)
    if option in _CHECKS:
        _CHECKS[option](option, converted)
    return converted
