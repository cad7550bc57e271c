"""Layer-wise tables: R^c by one of `opencrate.definitions`, and the non-zero fraction ‖Z^{l+1}‖₀/(d·N)."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from timm.utils import unwrap_model
from torch import Tensor, nn
from torch.nn.functional import normalize

from ..definitions import DEFINITIONS, Definition, definition_named
from ..layers import Layer
from ..models import CRATE
from ..objective import nonzero_fraction
from ..objective.rates import coding_rate, project
from ..stack import Step, require_crate, trajectory

__all__ = [
    "DEFINITIONS",
    "Definition",
    "LayerTable",
    "definition_named",
    "interval",
    "layerwise",
    "layerwise_by",
    "measure",
    "stream",
    "summary",
]

MEASURES = ("Rc", "nonzero")
TOGETHER = 2**28  # bytes of projected tokens whose rates are taken together on a GPU
RESAMPLES = 1000  # of the samples, for an interval
LEVEL = 0.95


def measure(step: Step, layer: Layer, definition: Definition) -> dict[str, Tensor]:
    """R^c and the non-zero fraction of every sample in a step of a trajectory, each (b,)."""
    V, code = _projected(step, layer, definition), _code(step, definition)
    return {"Rc": _rate(V, layer, definition), "nonzero": nonzero_fraction(code)}


def _projected(step: Step, layer: Layer, definition: Definition) -> Tensor:
    """Z U_k of the tokens that the definition names, (b, k, n, p)."""
    tokens: Tensor = getattr(step, definition.site)
    if definition.norm:
        tokens = layer.compress.norm(tokens)
    if not definition.class_token:
        tokens = tokens[:, 1:]
    # Float32 is enough for tokens of one size.
    exact = torch.promote_types(tokens.dtype, torch.float32) if definition.unit else torch.float64
    V = project(tokens.to(exact), layer.U.to(exact))
    return normalize(V, dim=-1) if definition.unit else V


def _code(step: Step, definition: Definition) -> Tensor:
    """The tokens Z^{l+1} that the definition counts, (b, n, d)."""
    return step.Z_next if definition.class_token else step.Z_next[:, 1:]


def _rate(V: Tensor, layer: Layer, definition: Definition) -> Tensor:
    """R^c of projected tokens (…, k, n, p), of one layer or of several together."""
    d, p = layer.U.shape[1:]
    # coding_rate scales with the dimension of what it is given, p; scaling by d is the same with ε·√(p/d).
    return coding_rate(V, definition.eps * (math.sqrt(p / d) if definition.scaling == "d" else 1.0)).sum(-1)


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
    model: CRATE,
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
    model: CRATE,
    batches: Tensor | Iterable[Any],
    definitions: Sequence[str | Definition],
    samples: int | None = None,
    resamples: int = RESAMPLES,
) -> list[LayerTable]:
    """`layerwise` by each of several definitions, in one pass of the pictures through the network."""
    chosen = [definition_named(definition) for definition in definitions]
    model = unwrap_model(model)
    require_crate("layerwise", model)
    layers = cast("list[Layer]", list(model.blocks))
    values = stream(model, batches, lambda images: _values(model, layers, images, chosen), samples)
    return [_table(definition, found, resamples) for definition, found in zip(chosen, values, strict=True)]


def _table(definition: Definition, values: Tensor, resamples: int) -> LayerTable:
    """Of values (layers, measures, samples)."""
    columns = summary({name: values[:, i] for i, name in enumerate(MEASURES)}, resamples)
    rows = (
        {"layer": layer + 1} | {name: column[layer].item() for name, column in columns.items()}
        for layer in range(len(values))
    )
    return LayerTable(definition, values.shape[-1], tuple(rows))


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
    like, count, found = next(model.parameters()), 0, list[Tensor]()
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
            found.append(values_of(images).cpu())
            count += len(images)
            if count == samples:
                break
    finally:
        model.train(was_training)
    if count == 0:
        raise ValueError("there are no pictures to measure")
    return torch.cat(found, dim=-1)


def summary(values: dict[str, Tensor], resamples: int = RESAMPLES) -> dict[str, Tensor]:
    """Of every (…, samples): its mean under its name, and `_std`, and with resamples `_low` and `_high`, each (…)."""
    found = {name: value.double().mean(-1) for name, value in values.items()}
    for name, value in values.items():
        one = value.shape[-1] == 1
        found[f"{name}_std"] = torch.zeros_like(found[name]) if one else value.double().std(-1)
    if resamples:
        for name, value in values.items():
            found[f"{name}_low"], found[f"{name}_high"] = interval(value, resamples)
    return found


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


def _values(model: CRATE, layers: list[Layer], images: Tensor, definitions: list[Definition]) -> Tensor:
    """By every definition, every layer's every measure of every sample.

    Several layers are measured together: on a GPU, one small batch of matrices costs as much time as twelve, and every
    look at values makes the host wait.
    """
    found = [_Found(definition) for definition in definitions]
    limit = TOGETHER if images.is_cuda else 0
    for step, layer in zip(trajectory(model, images), layers, strict=True):
        for one in found:
            one.projected.append(_projected(step, layer, one.definition))
            one.codes.append(_code(step, one.definition))
        if step.layer == len(layers) or sum(V.nbytes for one in found for V in one.projected) > limit:
            for one in found:
                one.measure(layer)
    return torch.stack([one.values() for one in found])


class _Found:
    """What is found by one definition, and the layers that wait to be measured together."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.projected, self.codes = list[Tensor](), list[Tensor]()
        self.rates, self.fractions = list[Tensor](), list[Tensor]()

    def measure(self, layer: Layer) -> None:
        self.rates.append(_rate(torch.stack(self.projected), layer, self.definition))  # (layers, b)
        self.fractions.append(nonzero_fraction(torch.stack(self.codes)))
        self.projected.clear()
        self.codes.clear()

    def values(self) -> Tensor:
        """(layers, measures, b)."""
        return torch.stack([torch.cat(self.rates).double(), torch.cat(self.fractions).double()], dim=1)
