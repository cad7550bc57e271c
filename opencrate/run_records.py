"""What a run writes for others to read (run.json, result.json, tables in metrics.jsonl), checked when it is read.

Numbers that JSON does not have are written as null, and read as NaN.
"""

import math
from typing import Annotated, Any, NotRequired

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    with_config,
)
from typing_extensions import TypedDict

from .definitions import Definition
from .errors import first_problem

MORE = ConfigDict(extra="allow")  # of another version
_DEFINITION = TypeAdapter(Definition)
ROW = {"layer", "Rc", "nonzero", "Rc_std", "nonzero_std"}


def require_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it holds control characters")
    return text


def _require_definition(values: dict[str, Any]) -> dict[str, Any]:
    _DEFINITION.validate_python(values)
    return values


def _require_row(row: dict[str, Any]) -> dict[str, Any]:
    if missing := ROW - row.keys():
        raise ValueError(f"{min(missing)} is missing")
    return row


Text = Annotated[str, StringConstraints(max_length=250), AfterValidator(require_printable)]
Place = Annotated[str, StringConstraints(max_length=500), AfterValidator(require_printable)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Measure = Annotated[
    Annotated[int, Field(gt=-(2**63), lt=2**63)] | float, BeforeValidator(lambda x: math.nan if x is None else x)
]


@with_config(MORE)
class Hardware(TypedDict):
    gpus: list[Text]
    cpus: Count | None


@with_config(MORE)
class UsedOptions(TypedDict, total=False):
    root: Place | None


@with_config(MORE)
class Start(TypedDict):
    """A start of a run: what `training.start.provenance` says of it."""

    started: Text
    seed: Count
    options: NotRequired[UsedOptions]
    versions: dict[Text, Text | None]
    hardware: Hardware


@with_config(MORE)
class Layers(TypedDict):
    """A layer table, as `LayerTable.to_dict` gives it."""

    definition: Annotated[dict[Text, Text | bool | int | float], AfterValidator(_require_definition)]
    samples: Count
    rows: list[Annotated[dict[Text, Measure], AfterValidator(_require_row)]]


@with_config(MORE)
class LayersLine(Layers):
    """A layer table in metrics.jsonl."""

    epoch: Count


@with_config(MORE)
class Result(TypedDict):
    """What a run ends with."""

    recipe: Text
    top1: NotRequired[Measure]
    bits_per_byte: NotRequired[Measure]
    best: dict[Text, Measure]
    steps: Count
    epochs: Count
    skipped_steps: Count
    training_seconds: Measure
    start_up_seconds: Measure
    layers: Layers | None
    model: Place


STARTS, RESULT, LAYERS = TypeAdapter(list[Start]), TypeAdapter(Result), TypeAdapter(LayersLine)


def checked(content: Any, kind: TypeAdapter[Any]) -> Any:
    """The content, if it is of this kind; a ValueError says in short what is not."""
    try:
        return kind.validate_python(content)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from error
