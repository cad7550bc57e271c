"""What is measured at a layer, with a name for each definition, and layer-wise tables of it.

"R^c of layer l" has several readings (docs/ERRATA.md, 1.4). A `Definition` says which tokens are measured, whether
through the layer's LayerNorm, whether every projected token is scaled to unit norm, with which ε, whether with the
class token and with which scaling; every table carries its name. Two are built in:

    paper      R^c(Z^{l+1/2}; U_[K]^l), raw, as the text says; ε = 0.1 is ours, for the text gives none
    official   U_kᵀ LN(Z^l) at unit norm, class token counted, ε² = 0.01, as the authors' script measures

The non-zero fraction is ‖Z^{l+1}‖₀/(d·N) in all of them.
"""

import csv
import io
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

import torch
from timm.utils import unwrap_model
from torch import Tensor
from torch.nn.functional import normalize

from .blocks import Layer
from .models import CRATE, Step, trajectory
from .objective import nonzero_fraction
from .objective.rates import coding_rate, project, require_positive
from .operators.table import suggestion

__all__ = ["DEFINITIONS", "Definition", "LayerTable", "definition_named", "layerwise", "measure"]

MEASURES = ("Rc", "nonzero")
TOGETHER = 2**28  # bytes of projected tokens whose rates are taken together


@dataclass(frozen=True)
class Definition:
    """One reading of R^c: R^c(tokens; U_[K]^l) of the tokens at `site`."""

    name: str
    site: Literal["Z", "Z_half", "Z_next"] = "Z_half"
    norm: bool = False  # through the LayerNorm that stands before the compression: with site Z, the MSSA's input
    unit: bool = False  # every projected token U_kᵀ z scaled to unit norm
    eps: float = 0.1
    class_token: bool = True
    scaling: Literal["p", "d"] = "p"

    def __post_init__(self) -> None:
        require_positive("eps", self.eps)
        if self.site not in ("Z", "Z_half", "Z_next"):
            raise ValueError(f"unknown site {self.site!r}{suggestion(self.site, ('Z', 'Z_half', 'Z_next'))}")
        if self.scaling not in ("p", "d"):
            raise ValueError(f"scaling must be 'p' or 'd', got {self.scaling!r}")


DEFINITIONS = {
    definition.name: definition
    for definition in (Definition("paper"), Definition("official", site="Z", norm=True, unit=True))
}


def definition_named(definition: str | Definition) -> Definition:
    if isinstance(definition, Definition):
        if definition != DEFINITIONS.get(definition.name, definition):
            raise ValueError(f"the name {definition.name!r} is taken by another definition: give yours another")
        return definition
    if definition not in DEFINITIONS:
        raise ValueError(f"unknown definition {definition!r}{suggestion(definition, DEFINITIONS)}")
    return DEFINITIONS[definition]


def measure(step: Step, layer: Layer, definition: Definition) -> dict[str, Tensor]:
    """R^c and the non-zero fraction of every sample in a step of a trajectory, each (b,)."""
    return {"Rc": _rate(_projected(step, layer, definition), layer, definition), "nonzero": _nonzero(step, definition)}


def _projected(step: Step, layer: Layer, definition: Definition) -> Tensor:
    """Z U_k of the tokens that the definition names, (b, k, n, p)."""
    tokens: Tensor = getattr(step, definition.site)
    if definition.norm:
        tokens = layer.compress.norm(tokens)
    if not definition.class_token:
        tokens = tokens[:, 1:]
    return (
        normalize(project(tokens, layer.U), dim=-1) if definition.unit else project(tokens.double(), layer.U.double())
    )


def _nonzero(step: Step, definition: Definition) -> Tensor:
    return nonzero_fraction(step.Z_next if definition.class_token else step.Z_next[:, 1:])


def _rate(V: Tensor, layer: Layer, definition: Definition) -> Tensor:
    """R^c of projected tokens (…, k, n, p), of one layer or of several together."""
    d, p = layer.U.shape[1:]
    # coding_rate scales with the dimension of what it is given, p; scaling by d is the same with ε·√(p/d).
    return coding_rate(V, definition.eps * (math.sqrt(p / d) if definition.scaling == "d" else 1.0)).sum(-1)


@dataclass(frozen=True)
class LayerTable:
    """Mean and standard deviation over samples of every measure at every layer."""

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


@torch.inference_mode()
def layerwise(
    model: CRATE, batches: Tensor | Iterable[Any], definition: str | Definition = "paper", samples: int | None = None
) -> LayerTable:
    """Measure every layer on pictures: a tensor of them, or batches, each a tensor or (pictures, labels).

    Batches stream through the network in evaluation mode, so any number of pictures fits in memory; `samples` stops
    after that many. A network in training is set back to it.
    """
    chosen = definition_named(definition)
    if samples is not None and (not isinstance(samples, int) or samples < 1):
        raise ValueError(f"samples must be a whole number, at least 1, got {samples!r}")
    model = unwrap_model(model)
    was_training = model.training
    model.eval()
    try:
        return _accumulate(model, [batches] if isinstance(batches, Tensor) else batches, chosen, samples)
    finally:
        model.train(was_training)


def _values(model: CRATE, layers: list[Layer], images: Tensor, definition: Definition) -> Tensor:
    """Every measure of every layer and sample. Rates of several layers are taken together: on a GPU, one small batch of
    matrices costs as much time as twelve."""
    rates, fractions, waiting = [], [], list[Tensor]()
    for step, layer in zip(trajectory(model, images), layers, strict=True):
        waiting.append(_projected(step, layer, definition))
        fractions.append(_nonzero(step, definition))
        if step.layer == len(layers) or sum(V.nbytes for V in waiting) > TOGETHER:
            rates.append(_rate(torch.stack(waiting), layer, definition))  # (layers, b)
            waiting.clear()
    return torch.stack([torch.cat(rates).double(), torch.stack(fractions).double()], dim=1)


def _accumulate(model: CRATE, batches: Iterable[Any], definition: Definition, samples: int | None) -> LayerTable:
    count, layers = 0, cast("list[Layer]", list(model.blocks))
    mean = torch.zeros(len(model.blocks), len(MEASURES), dtype=torch.float64)
    squares = torch.zeros_like(mean)  # sum of squared deviations from the mean, by Chan's update
    for batch in batches:
        images = batch[0] if isinstance(batch, tuple | list) else batch
        if not isinstance(images, Tensor):
            raise ValueError(f"a batch must be a tensor of pictures, or begin with one, got a {type(images).__name__}")
        images = images[: None if samples is None else samples - count]
        if len(images) == 0:
            continue
        images = images.to(model.cls_token.device, model.cls_token.dtype if images.is_floating_point() else None)
        values = _values(model, layers, images, definition).cpu()  # (layer, measure, sample)
        new, total = values.shape[-1], count + values.shape[-1]
        shift = values.mean(-1) - mean
        squares += (values - values.mean(-1, keepdim=True)).square().sum(-1) + shift.square() * count * new / total
        mean += shift * new / total
        count = total
        if count == samples:
            break
    if count == 0:
        raise ValueError("there are no pictures to measure")
    deviation = (squares / max(count - 1, 1)).sqrt()
    rows = (
        {"layer": layer + 1}
        | {name: mean[layer, i].item() for i, name in enumerate(MEASURES)}
        | {f"{name}_std": deviation[layer, i].item() for i, name in enumerate(MEASURES)}
        for layer in range(len(model.blocks))
    )
    return LayerTable(definition, count, tuple(rows))
