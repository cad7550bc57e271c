"""Where a network looked: how much the token that is classified attends to every patch, in a CRATE or a ViT of timm's.

That is the class token, or all tokens on average where they are pooled.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..stack import is_stack, trajectory


def classified_attention(network: Any, images: Tensor, layers: int = 1) -> Tensor:
    """Of every head of the last `layers` layers, (b, layers · k, h, w); a map and its prefix tokens sum to 1."""
    if is_stack(network):
        maps = [step.maps for step in list(trajectory(network, images))[-layers:]]
    else:
        with _extracting(network) as extract:
            maps = list(extract(images).values())[-layers:]
    return on_grid(network, rows_of_classified(network, torch.cat(maps, 1)))


def rows_of_classified(network: Any, maps: Tensor) -> Tensor:
    """Attention maps (b, k, n, n) → how much is paid to each of the patches (b, k, m)."""
    rows = maps[:, :, 0] if network.global_pool in ("token", "") else maps.mean(2)
    return rows[..., getattr(network, "num_prefix_tokens", 1) :]


def on_grid(network: Any, scores: Tensor) -> Tensor:
    """Scores of patches (…, m) → (…, h, w)."""
    return scores.unflatten(-1, network.patch_embed.grid_size)


@contextmanager
def _extracting(network: Any) -> Iterator[Any]:
    """timm's extraction of attention maps, for which attention must not be fused."""
    from timm.utils import AttentionExtract

    modules = [module for module in network.modules() if hasattr(module, "fused_attn")]
    if not modules:
        raise ValueError(f"{type(network).__name__} hands out no attention maps")
    fused = [module.fused_attn for module in modules]
    for module in modules:
        module.fused_attn = False
    try:
        yield AttentionExtract(network, method="hook")
    finally:
        for module, was in zip(modules, fused, strict=True):
            module.fused_attn = was
