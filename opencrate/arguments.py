"""The arguments of a command, read by tyro: help texts in plain words, and every mistake as one sentence."""

import os
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from functools import partial, wraps
from io import StringIO
from typing import Annotated, Any

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructTypeInfo,
)

from .errors import one_line

RULES = ConstructorRegistry()
_PASSED_ON: Any = "passed on to tyro's rules"  # marks a type that our rules have seen
_EXPECTED = {
    "INT": "a whole number",
    "FLOAT": "a number",
    "FLOAT FLOAT": "two numbers",
    "[INT [INT ...]]": "whole numbers",
    "[FLOAT [FLOAT ...]]": "numbers",
    "[NAME VALUE ...]": "names and values in turn",
}
_EMPTY: tuple[Any, ...] = (None, "", (), {})
WIDE = 1000  # columns, in which tyro breaks no line of an error


class _Refused(Exception):
    """A ValueError of a dataclass, on its way through tyro, which would draw a box around it."""


def parse(target: Any, arguments: list[str], prog: str, about: str, **more: Any) -> Any:
    """An instance of a dataclass, or what a function returns, made of these arguments; a mistake is a ValueError."""
    errors, width = StringIO(), None if asks_for_help(arguments) else WIDE
    try:
        with RULES, redirect_stderr(errors), _columns(width):
            return tyro.cli(target, args=arguments, prog=prog, description=wrapped(about, "  "), **more)
    except _Refused as refused:
        raise ValueError(str(refused)) from refused.__cause__
    except SystemExit as stop:
        if stop.code:
            raise ValueError(_sentence(errors.getvalue(), prog)) from None
        raise


def run(function: Callable[..., None], arguments: list[str], prog: str) -> None:
    """Call a function with these arguments; what it raises and prints is its own."""

    @wraps(function)
    def later(*args: Any, **kwargs: Any) -> Callable[[], None]:
        return partial(function, *args, **kwargs)

    parse(later, arguments, prog, function.__doc__ or "")()


def asks_for_help(arguments: list[str]) -> bool:
    return not {"-h", "--help"}.isdisjoint(arguments)


def wrapped(text: str, indent: str = "") -> str:
    """The text in lines that fit the terminal, all but the first indented."""
    return textwrap.fill(text, shutil.get_terminal_size().columns, subsequent_indent=indent)


@contextmanager
def _columns(width: int | None) -> Iterator[None]:
    """Make tyro write lines of another width than the terminal's."""
    before = os.environ.get("COLUMNS")
    if width:
        os.environ["COLUMNS"] = str(width)
    try:
        yield
    finally:
        os.environ.pop("COLUMNS", None)
        if before is not None:
            os.environ["COLUMNS"] = before


@RULES.primitive_rule
def _plain_value(info: PrimitiveTypeInfo) -> Any:
    """A value as tyro reads it, but INT for {None}|INT, and with an error that names what is expected."""
    if _PASSED_ON in info.markers:
        return None
    spec = ConstructorRegistry.get_primitive_spec(replace(info, markers=info.markers | {_PASSED_ON}))
    if not isinstance(spec, PrimitiveConstructorSpec):
        return spec
    metavar = re.sub(r"^\{None\}\|\{?([^{}]*)\}?$", r"\1", spec.metavar).replace("{None,", "{")
    if "|" in metavar:  # the values of a dictionary
        metavar = "[NAME VALUE ...]"
    expected = _EXPECTED.get(metavar) or " or ".join(metavar.strip("{}").rsplit(",", 1)).replace(",", ", ")

    def read(words: list[str]) -> Any:
        try:
            if spec.choices is None or set(words) <= set(spec.choices):
                return spec.instance_from_str(words)
        except ValueError:
            pass
        raise ValueError(f"expected {expected}, got {one_line(repr(' '.join(words)))}")

    return replace(spec, metavar=metavar, instance_from_str=read, choices=None)


@RULES.struct_rule
def _plain_fields(info: StructTypeInfo) -> StructConstructorSpec | None:
    """The fields as tyro reads them, without "(default: None)"; and what the dataclass refuses is not for tyro."""
    if _PASSED_ON in info.markers:
        return None
    spec = ConstructorRegistry.get_struct_spec(replace(info, markers=(*info.markers, _PASSED_ON)))
    if not isinstance(spec, StructConstructorSpec):
        return None
    without_default: Any = tyro.conf.arg(help_behavior_hint="")

    def make(**values: Any) -> Any:
        try:
            return spec.instantiate(**values)
        except ValueError as error:
            raise _Refused(str(error)) from error

    fields = []
    for field in spec.fields:
        kind: Any = Annotated[field.type, without_default] if field.default in _EMPTY else field.type
        fields.append(replace(field, type=kind))
    return StructConstructorSpec(make, tuple(fields))


def _sentence(box: str, prog: str) -> str:
    """What tyro's box says, in a sentence."""
    inside = "\n".join(line[1:].rstrip(" │") for line in box.splitlines()[1:-1])
    message, *more = (part for part in re.split(r"^ *[─-]{9,}$", inside, flags=re.MULTILINE) if part.strip())
    every = f"{prog} --help lists all"
    if unknown := re.search(r"Unrecognized options:\s+(.+?)(, |$)", "\n".join([message, *more]), re.MULTILINE):
        if not unknown[1].startswith("-"):
            return f"unexpected argument {one_line(repr(unknown[1]))}; {every}"
        similar = re.findall(r"^ {5}(--\S+)", more[0], re.MULTILINE) if "Missing from" not in message else []
        similar.sort(key=lambda option: re.split(r"--|\.", option)[-1] != unknown[1][2:])  # --lr: --optim.lr first
        return f"unknown option {one_line(unknown[1])}; {f'did you mean {similar[0]}?' if similar else every}"
    if missing := re.search(r"Missing value for argument [^-\w]*([-\w.]+)\W+Expected (\d+) values", message):
        return f"{missing[1]} needs {'a value' if missing[2] == '1' else f'{missing[2]} values'}"
    if message.strip().startswith("Missing from"):
        needed = re.findall(r"^ {5}(\S.*)", message, re.MULTILINE)
        return f"{prog} needs {' and '.join(needed)}"
    return one_line(message.strip().removeprefix("Error parsing "))
