"""Layer-wise tables: R^c of every layer by one of `opencrate.definitions`, and its non-zero fraction.

The non-zero fraction is that of the sparse code; for ISTA, whose code is the tokens, ‖Z^{l+1}‖₀/(d·N). The spread, by
which the audit names a collapse, is that of the definition's tokens. R^c of a compression without subspaces is not a
number.
"""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from timm.utils import unwrap_model
from torch import Tensor, nn
from torch.nn.functional import normalize

from ..definitions import Definition, definition_named
from ..objective import nonzero_fraction
from ..objective.rates import coding_rate, project
from ..stack import Step, require_stack, trajectory
from .geometry import spread

GPU_BYTES = 2**25  # of the tokens of layers that are measured together on a GPU
RESAMPLES = 1000  # of the samples, for an interval
LEVEL = 0.95

Reader = Callable[[Sequence[Step]], dict[str, Tensor]]
"""Measures a batch of pictures in some layers of a network: values by name, each (layers, b)."""


def measure(steps: Sequence[Step], definition: Definition) -> dict[str, Tensor]:
    """R^c, the non-zero fraction and the tokens' spread of every sample in steps, each (layers, b) in float64."""
    codes = torch.stack([_code(step, definition) for step in steps])
    tokens = torch.stack([_counted(getattr(step, definition.site), definition) for step in steps])
    rates = _rates(steps, definition).double()
    return {"Rc": rates, "nonzero": nonzero_fraction(codes).double(), "spread": spread(tokens)}


def _code(step: Step, definition: Definition) -> Tensor:
    """The code of the tokens that the definition counts, (b, n, m); the tokens themselves where there is none."""
    return _counted(step.Z_next if step.code is None else step.code, definition)


def _counted(tokens: Tensor, definition: Definition) -> Tensor:
    return tokens if definition.class_token else tokens[:, 1:]


def _rates(steps: Sequence[Step], definition: Definition) -> Tensor:
    """R^c, (layers, b)."""
    Z = steps[0].Z
    if any(step.layer.U is None for step in steps):
        return torch.full((len(steps), len(Z)), torch.nan, device=Z.device)
    V = torch.stack([_projected(step, definition) for step in steps])  # (layers, b, k, n, p)
    # coding_rate scales with the dimension of what it is given, p; scaling by d is the same with ε·√(p/d).
    eps = definition.eps * (math.sqrt(V.shape[-1] / Z.shape[-1]) if definition.scaling == "d" else 1.0)
    return coding_rate(V, eps).sum(-1)


def _projected(step: Step, definition: Definition) -> Tensor:
    """Z U_k of the tokens that the definition names, (b, k, n, p)."""
    tokens: Tensor = getattr(step, definition.site)
    if definition.norm:
        tokens = step.layer.compress.norm(tokens)
    tokens = _counted(tokens, definition)
    # Float32 is enough for tokens of one size.
    exact = torch.promote_types(tokens.dtype, torch.float32) if definition.unit else torch.float64
    V = project(tokens.to(exact), step.layer.U.to(exact))
    return normalize(V, dim=-1) if definition.unit else V


@dataclass(frozen=True)
class LayerTable:
    """Mean, deviation and 95 % bootstrap interval of the mean (`_low`, `_high`) of every measure at every layer."""

    definition: Definition
    samples: int
    rows: tuple[dict[str, float], ...]

    @classmethod
    def of(cls, definition: Definition, values: dict[str, Tensor], resamples: int = RESAMPLES) -> "LayerTable":
        """The table of what `measure` gave, (layers, samples)."""
        return cls(definition, values["Rc"].shape[-1], tuple(by_layer(summary(values, resamples))))

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
    known = [definition_named(definition) for definition in definitions]
    values = read_steps(model, batches, [partial(measure, definition=definition) for definition in known], samples)
    return [LayerTable.of(definition, columns, resamples) for definition, columns in zip(known, values, strict=True)]


def read_steps(
    model: nn.Module, batches: Tensor | Iterable[Any], readers: Sequence[Reader], samples: int | None = None
) -> list[dict[str, Tensor]]:
    """Every reader's values, each (layers, samples), from one pass of the pictures through the network."""
    network = unwrap_model(model)
    require_stack("layerwise", network)

    def values_of(images: Tensor) -> list[dict[str, Tensor]]:
        parts = [[reader(steps) for reader in readers] for steps in _measured_together(trajectory(network, images))]
        return [joined(of_reader, dim=0) for of_reader in zip(*parts, strict=True)]

    return stream(network, batches, values_of, samples)


def _measured_together(steps: Iterable[Step]) -> Iterator[list[Step]]:
    """Every layer by itself on a CPU, and several together on a GPU.

    There, one small batch of matrices costs as much time as twelve, and every look at values makes the host wait.
    """
    waiting, waiting_bytes = list[Step](), 0
    for step in steps:
        waiting.append(step)
        waiting_bytes += step.Z.nbytes
        if waiting_bytes > GPU_BYTES or not step.Z.is_cuda:
            yield waiting
            waiting, waiting_bytes = [], 0
    if waiting:
        yield waiting


@torch.inference_mode()
def stream(
    model: nn.Module,
    batches: Tensor | Iterable[Any],
    values_of: Callable[[Tensor], list[dict[str, Tensor]]],
    samples: int | None = None,
) -> list[dict[str, Tensor]]:
    """The values of pictures, (layers, b) each, for batch after batch, put together on the CPU: (layers, samples).

    The network is in evaluation mode meanwhile, and the pictures are brought to its device and type.
    """
    if samples is not None and (not isinstance(samples, int) or samples < 1):
        raise ValueError(f"samples must be a whole number, at least 1, got {samples!r}")
    like, count, parts = next(model.parameters()), 0, list[list[dict[str, Tensor]]]()
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
            parts.append([{name: column.cpu() for name, column in values.items()} for values in values_of(images)])
            count += len(images)
            if count == samples:
                break
    finally:
        model.train(was_training)
    if count == 0:
        raise ValueError("there are no pictures to measure")
    return [joined(values, dim=1) for values in zip(*parts, strict=True)]


def joined(parts: Sequence[dict[str, Tensor]], dim: int) -> dict[str, Tensor]:
    """Values (layers, samples) by name: of several parts of the layers (dim 0) or of the samples (dim 1)."""
    return {name: torch.cat([part[name] for part in parts], dim) for name in parts[0]}


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


def by_layer(columns: dict[str, Tensor]) -> list[dict[str, Any]]:
    """A row for every layer, from columns (layers,)."""
    layers = len(next(iter(columns.values())))
    return [{"layer": i + 1} | {name: column[i].item() for name, column in columns.items()} for i in range(layers)]


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
