"""The tokens after every block of a timm transformer that has no CRATE layers.

It has no subspaces to compress against and no dictionary to code in, so there is no R^c, no LASSO and no audit. Its
tokens still have a non-zero fraction, a rank and a coding rate, which can be compared with a CRATE's.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ..measures.geometry import effective_rank
from ..measures.layerwise import RESAMPLES, stream, summary
from ..objective import coding_rate, nonzero_fraction

MEASURES = ("nonzero", "rank", "R", "R_unit")


def token_table(
    model: nn.Module,
    batches: Tensor | Iterable[Any],
    eps: float = 0.1,
    samples: int | None = None,
    resamples: int = RESAMPLES,
) -> list[dict[str, float | int]]:
    """Of the tokens after every block (class token included): non-zero fraction, effective rank, R, R at unit norm."""
    if not hasattr(model, "forward_intermediates"):
        raise ValueError(f"{type(model).__name__} does not hand out its tokens (timm's forward_intermediates)")

    def values_of(images: Tensor) -> Tensor:
        try:
            layers = model.forward_intermediates(  # type: ignore[operator]
                images, output_fmt="NLC", intermediates_only=True, return_prefix_tokens=True
            )
        except (TypeError, AssertionError) as error:  # of a network without tokens
            raise ValueError(f"{type(model).__name__} does not hand out tokens: only transformers do") from error
        return torch.stack([_values(_all_tokens(layer), eps) for layer in layers])

    values = stream(model, batches, values_of, samples)  # (layers, measures, samples)
    columns = summary({name: values[:, i] for i, name in enumerate(MEASURES)}, resamples)
    return [
        {"layer": layer + 1} | {name: column[layer].item() for name, column in columns.items()}
        for layer in range(len(values))
    ]


def _all_tokens(layer: Any) -> Tensor:
    """timm's patch tokens, and the class token where there is one."""
    if isinstance(layer, Tensor):
        return layer
    patches, prefix = layer
    return torch.cat([prefix, patches], dim=1)


def _values(Z: Tensor, eps: float) -> Tensor:
    Z = Z.double()
    rates = coding_rate(Z, eps), coding_rate(normalize(Z, dim=-1), eps)
    return torch.stack([nonzero_fraction(Z), effective_rank(Z), *rates])
