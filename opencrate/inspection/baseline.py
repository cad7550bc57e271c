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
from ..measures.layerwise import by_layer, stream, summary
from ..objective import coding_rate, nonzero_fraction


def token_table(model: nn.Module, batches: Tensor | Iterable[Any], eps: float = 0.1) -> list[dict[str, Any]]:
    """Of the tokens after every block (class token included): non-zero fraction, effective rank, R, R at unit norm."""
    if not hasattr(model, "forward_intermediates"):
        raise ValueError(f"{type(model).__name__} does not hand out its tokens (timm's forward_intermediates)")

    def values_of(images: Tensor) -> list[dict[str, Tensor]]:
        try:
            layers = model.forward_intermediates(  # type: ignore[operator]
                images, output_fmt="NLC", intermediates_only=True, return_prefix_tokens=True
            )
        except (TypeError, AssertionError) as error:  # of a network without tokens
            raise ValueError(f"{type(model).__name__} does not hand out tokens: only transformers do") from error
        tokens = [_all_tokens(layer).double() for layer in layers]
        values = {
            "nonzero": [nonzero_fraction(Z) for Z in tokens],
            "rank": [effective_rank(Z) for Z in tokens],
            "R": [coding_rate(Z, eps) for Z in tokens],
            "R_unit": [coding_rate(normalize(Z, dim=-1), eps) for Z in tokens],
        }
        return [{name: torch.stack(column) for name, column in values.items()}]

    (values,) = stream(model, batches, values_of)
    return by_layer(summary(values))


def _all_tokens(layer: Any) -> Tensor:
    """timm's patch tokens, and the class token where there is one."""
    if isinstance(layer, Tensor):
        return layer
    patches, prefix = layer
    return torch.cat([prefix, patches], dim=1)
