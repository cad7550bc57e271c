"""Layer-wise tables: R^c of every layer by one of `opencrate.definitions`, and its non-zero fraction.

The non-zero fraction is that of the sparse code; for ISTA, whose code is the tokens, ‖Z^{l+1}‖₀/(d·N). R^c of a
compression without subspaces is not a number.
"""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from timm.utils import unwrap_model
from torch import Tensor, nn
from torch.nn.functional import normalize

from ..definitions import Definition, definition_named
from ..objective import nonzero_fraction
from ..objective.rates import coding_rate, project
from ..stack import Step, require_stack, trajectory

GPU_BYTES = 2**26  # of projected tokens whose rates are computed together on a GPU, for each definition
RESAMPLES = 1000  # of the samples, for an interval
LEVEL = 0.95


def measure(step: Step, definition: Definition) -> dict[str, Tensor]:
    """R^c and the non-zero fraction of every sample in a step of a trajectory, each (b,)."""
    V = _projected(step, definition)
    return {"Rc": _rate([V], [step], definition)[0], "nonzero": nonzero_fraction(_code(step, definition))}


def _projected(step: Step, definition: Definition) -> Tensor | None:
    """Z U_k of the tokens that the definition names, (b, k, n, p)."""
    U = step.layer.U
    if U is None:
        return None
    tokens: Tensor = getattr(step, definition.site)
    if definition.norm:
        tokens = step.layer.compress.norm(tokens)
    if not definition.class_token:
        tokens = tokens[:, 1:]
    # Float32 is enough for tokens of one size.
    exact = torch.promote_types(tokens.dtype, torch.float32) if definition.unit else torch.float64
    V = project(tokens.to(exact), U.to(exact))
    return normalize(V, dim=-1) if definition.unit else V


def _code(step: Step, definition: Definition) -> Tensor:
    """The code of the tokens that the definition counts, (b, n, m); the tokens themselves where there is none."""
    code = step.Z_next if step.code is None else step.code
    return code if definition.class_token else code[:, 1:]


def _rate(projected: list[Tensor | None], steps: list[Step], definition: Definition) -> Tensor:
    """R^c of layers that are measured together, (layers, b)."""
    known = [V for V in projected if V is not None]
    if len(known) < len(projected):
        return torch.full((len(projected), len(steps[0].Z)), torch.nan, dtype=torch.float64, device=steps[0].Z.device)
    d, p = steps[0].Z.shape[-1], known[0].shape[-1]
    # coding_rate scales with the dimension of what it is given, p; scaling by d is the same with ε·√(p/d).
    eps = definition.eps * (math.sqrt(p / d) if definition.scaling == "d" else 1.0)
    return coding_rate(torch.stack(known), eps).sum(-1)


@dataclass(frozen=True)
class LayerTable:
    """Mean, deviation and 95 % bootstrap interval of the mean (`_low`, `_high`) of every measure at every layer."""

    definition: Definition
    samples: int
    rows: tuple[dict[str, float], ...]

    def __str__(self) -> str:
        lines = [f"definition {self.definition.name}, {self.samples} samples", "layer        R^c             non-zero"]
        for row in self.rows:
            rate, nonzero = (
                f"{row[name]:{f}} ± {row[f'{name}_std']:<{f}}" for name, f in (("Rc", "8.1f"), ("nonzero", "6.3f"))
            )
            lines.append(f"{row['layer']:5.0f}  {rate} {nonzero}".rstrip())
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a JSON file."""
        return {"definition": asdict(self.definition), "samples": self.samples, "rows": list(self.rows)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "LayerTable":
        """The table that `to_dict` gave."""
        return cls(Definition(**values["definition"]), values["samples"], tuple(values["rows"]))

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    def to_csv(self) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, ["definition", *self.rows[0]])
        writer.writeheader()
        writer.writerows({"definition": self.definition.name, **row} for row in self.rows)
        return text.getvalue()


def layerwise(
    model: nn.Module,
    batches: Tensor | Iterable[Any],
    definition: str | Definition = "paper",
    samples: int | None = None,
    resamples: int = RESAMPLES,
) -> LayerTable:
    """Measure every layer on pictures: a tensor of them, or batches, each a tensor or (pictures, labels).

    Batches stream through the network in evaluation mode, so any number of pictures fits in memory; `samples` stops
    after that many. A network in training is set back to it. `resamples=0` leaves the intervals out.
    """
    (table,) = layerwise_by(model, batches, (definition,), samples, resamples)
    return table


def layerwise_by(
    model: nn.Module,
    batches: Tensor | Iterable[Any],
    definitions: Sequence[str | Definition],
    samples: int | None = None,
    resamples: int = RESAMPLES,
) -> list[LayerTable]:
    """`layerwise` by each of several definitions, in one pass of the pictures through the network."""
    readers = [LayerReader(definition_named(definition)) for definition in definitions]
    values = read_steps(model, batches, readers, samples)
    return [reader.table(columns, resamples) for reader, columns in zip(readers, values, strict=True)]


class Reader(Protocol):
    """Measures a batch of pictures while it passes through the layers of a network."""

    def read(self, step: Step) -> None:
        """Measure one layer; the layers come in their order."""

    def values(self) -> dict[str, Tensor]:
        """What was measured of the batch by name, each (layers, b) in float64; the next batch begins."""


def read_steps(
    model: nn.Module, batches: Tensor | Iterable[Any], readers: Sequence[Reader], samples: int | None = None
) -> list[dict[str, Tensor]]:
    """Every reader's values, each (layers, samples), from one pass of the pictures through the network."""
    network: Any = unwrap_model(model)
    require_stack("layerwise", network)
    names: list[list[str]] = []

    def values_of(images: Tensor) -> Tensor:
        for step in trajectory(network, images):
            for reader in readers:
                reader.read(step)
        values = [reader.values() for reader in readers]
        names[:] = [list(columns) for columns in values]
        return torch.stack([column for columns in values for column in columns.values()])

    rows = iter(stream(network, batches, values_of, samples))
    return [{name: next(rows) for name in columns} for columns in names]


@torch.inference_mode()
def stream(
    model: nn.Module,
    batches: Tensor | Iterable[Any],
    values_of: Callable[[Tensor], Tensor],
    samples: int | None = None,
) -> Tensor:
    """What `values_of` pictures gives, (…, b), for batch after batch, put together on the CPU: (…, samples).

    The network is in evaluation mode meanwhile, and the pictures are brought to its device and type.
    """
    if samples is not None and (not isinstance(samples, int) or samples < 1):
        raise ValueError(f"samples must be a whole number, at least 1, got {samples!r}")
    like, count, parts = next(model.parameters()), 0, list[Tensor]()
    was_training = model.training
    model.eval()
    try:
        for batch in [batches] if isinstance(batches, Tensor) else batches:
            images = batch[0] if isinstance(batch, tuple | list) else batch
            if not isinstance(images, Tensor):
                raise ValueError(
                    f"a batch must be a tensor of pictures, or begin with one, got a {type(images).__name__}"
                )
            images = images[: None if samples is None else samples - count]
            if len(images) == 0:
                continue
            images = images.to(like.device, like.dtype if images.is_floating_point() else None)
            parts.append(values_of(images).cpu())
            count += len(images)
            if count == samples:
                break
    finally:
        model.train(was_training)
    if count == 0:
        raise ValueError("there are no pictures to measure")
    return torch.cat(parts, dim=-1)


def summary(values: dict[str, Tensor], resamples: int = RESAMPLES) -> dict[str, Tensor]:
    """Of every (…, samples): its mean under its name, and `_std`, and with resamples `_low` and `_high`, each (…)."""
    result = {name: value.double().mean(-1) for name, value in values.items()}
    for name, value in values.items():
        one = value.shape[-1] == 1
        result[f"{name}_std"] = torch.zeros_like(result[name]) if one else value.double().std(-1)
    if resamples:
        for name, value in values.items():
            result[f"{name}_low"], result[f"{name}_high"] = interval(value, resamples)
    return result


def interval(values: Tensor, resamples: int = RESAMPLES, level: float = LEVEL) -> tuple[Tensor, Tensor]:
    """The percentile bootstrap interval of the mean of values (…, samples) over the samples, each end (…).

    All rows see the same resamples, which are the same in every call. Of one sample it is the sample.
    """
    n, draw = values.shape[-1], torch.Generator().manual_seed(0)
    rows = values.double().reshape(-1, n).mT
    means, at_once = [], max(1, 2**19 // n)
    for start in range(0, resamples, at_once):
        count = min(at_once, resamples - start)
        drawn = torch.randint(n, (count, n), generator=draw) + n * torch.arange(count)[:, None]
        weights = torch.bincount(drawn.flatten(), minlength=count * n).view(count, n)
        means.append(weights.double() @ rows / n)
    tail = (1 - level) / 2
    low, high = torch.cat(means).quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64), dim=0)
    return low.view(values.shape[:-1]), high.view(values.shape[:-1])


class LayerReader:
    """R^c by one definition and the non-zero fraction, as a `Reader`.

    Several layers are measured together: on a GPU, one small batch of matrices costs as much time as twelve, and every
    look at values makes the host wait.
    """

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.waiting: list[tuple[Step, Tensor | None]] = []
        self.rates, self.fractions = list[Tensor](), list[Tensor]()

    def read(self, step: Step) -> None:
        self.waiting.append((step, _projected(step, self.definition)))
        waiting_bytes = sum(0 if V is None else V.nbytes for _, V in self.waiting)
        if waiting_bytes > GPU_BYTES or not step.Z.is_cuda:
            self._measure()

    def _measure(self) -> None:
        if self.waiting:
            steps, projected = [step for step, _ in self.waiting], [V for _, V in self.waiting]
            self.rates.append(_rate(projected, steps, self.definition))
            self.fractions.append(nonzero_fraction(torch.stack([_code(step, self.definition) for step in steps])))
            self.waiting.clear()

    def values(self) -> dict[str, Tensor]:
        self._measure()
        values = {"Rc": torch.cat(self.rates).double(), "nonzero": torch.cat(self.fractions).double()}
        self.rates, self.fractions = [], []
        return values

    def table(self, values: dict[str, Tensor], resamples: int = RESAMPLES) -> LayerTable:
        """Of values (layers, samples)."""
        columns, rates = summary(values, resamples), values["Rc"]
        rows = (
            {"layer": layer + 1} | {name: column[layer].item() for name, column in columns.items()}
            for layer in range(len(rates))
        )
        return LayerTable(self.definition, rates.shape[-1], tuple(rows))
