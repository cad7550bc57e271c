"""What bench.json holds, checked when it is read: a report may come from another machine."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, TypeAdapter, with_config
from typing_extensions import TypedDict

from opencrate.run_records import MORE, Count, Text, require_printable

from .attention import IMPLEMENTATIONS
from .settings import VARIANTS

MOST = 100  # rows of a table, and tables; the plot has a bar for each row


def _require_variant(name: str) -> str:
    if name not in VARIANTS:
        raise ValueError("it is no variant")
    return name


def _require_implementation(name: str) -> str:
    if name not in IMPLEMENTATIONS:
        raise ValueError("it is no implementation")
    return name


Positive = Annotated[float, Field(gt=0, lt=1e12)]
Share = Annotated[float, Field(ge=0, lt=1e12)]
Words = Annotated[str, StringConstraints(max_length=2000), AfterValidator(require_printable)]


@with_config(MORE)
class Ratios(TypedDict):
    spread: Share
    times_as_fast_as: dict[Text, Positive]


@with_config(MORE)
class Speed(Ratios):
    seconds: Positive
    pictures_per_second: Positive
    share_of_ceiling: Share | None


@with_config(MORE)
class Cost(Ratios):
    ms: Positive


@with_config(MORE)
class Row(TypedDict):
    variant: Annotated[str, AfterValidator(_require_variant)]
    status: Text
    why: Words
    errors: dict[Text, Share | None]
    timings: dict[Text, Speed]
    peak_bytes: Count | None


@with_config(MORE)
class Ceiling(TypedDict):
    flops: Annotated[float, Field(gt=0, lt=1e18)]


@with_config(ConfigDict(extra="ignore"))
class Networks(TypedDict):
    crate: Count
    vit: Count


@with_config(MORE)
class Comparison(TypedDict):
    size: Text
    task: Literal["training", "inference", "latency"]
    batch: Count
    vit: Text
    parameters: Networks
    baselines: list[Annotated[str, AfterValidator(_require_variant)]]
    ceiling: Ceiling | None
    rows: Annotated[list[Row], Field(max_length=MOST)]


@with_config(MORE)
class Implementation(TypedDict):
    implementation: Annotated[str, AfterValidator(_require_implementation)]
    status: Text
    why: Words
    gradient_error: Share | None
    same_bits: bool | None
    timings: dict[Text, Cost]


@with_config(MORE)
class Attention(TypedDict):
    kind: Text
    b: Annotated[Count, Field(gt=0)]
    n: Annotated[Count, Field(gt=0)]
    k: Count
    p: Count
    rows: Annotated[list[Implementation], Field(max_length=MOST)]


@with_config(MORE)
class UsedOptions(TypedDict):
    precision: Text
    rounds: Count
    tolerance: Share


class _Stopped(TypedDict):
    """A run that was stopped before its first measurement."""

    comparisons: Annotated[list[Any], Field(max_length=0)]
    attention: Annotated[list[Any], Field(max_length=0)]


@with_config(MORE)
class Report(TypedDict):
    device: Text
    options: UsedOptions
    versions: dict[Text, Text | None]
    notes: NotRequired[list[Words]]
    comparisons: Annotated[list[Comparison], Field(max_length=MOST)]
    attention: Annotated[list[Attention], Field(max_length=MOST)]


REPORT: TypeAdapter[Any] = TypeAdapter(Report | _Stopped)
