"""Operations of a network's matrix products for one picture; a multiplication and an addition count as two.

    CRATE   patches + Σ_l (U: n d kp,  V Vᵀ and its product with V: 2 q n kp,  W: q kp d,  A: q d²) + classifier
    ViT     patches + Σ_l (key, value: 2 n d²,  query, output: 2 q d²,  attention: 2 q n d,  MLP: 2 q d m) + classifier

with q = n tokens, and q = 1 in the last layer, where the classifier needs the class token alone. This is the work that
the logits need, not what a variant does: the other tokens of a ViT's last layer, the three products of the pseudocode's
ISTA and the maps that fused attention recomputes in the backward pass are not counted. Forming A, d³ once a batch, and
the empty patch in the class token's place are left out. The backward pass has two products for each one of the forward
pass, except for the gradient of the pictures.
"""

from typing import Any

from torch import nn

from opencrate.models import CRATE


def flops_of(network: nn.Module, training: bool, all_tokens: bool = False) -> int:
    """Operations of a CRATE or a timm ViT for one picture: forward, or forward and backward in training.

    `all_tokens` counts all tokens of the last layer.
    """
    patches, rest = _crate(network, all_tokens) if isinstance(network, CRATE) else _vit(network, all_tokens)
    return 2 * (2 * patches + 3 * rest if training else patches + rest)


def _crate(network: CRATE, all_tokens: bool) -> tuple[int, int]:
    embed, d, inner = network.patch_embed, network.embed_dim, network.num_heads * network.head_dim
    grid, n = embed.grid_size[0] * embed.grid_size[1], network.pos_embed.shape[1]
    patch_dim = embed.in_chans * embed.patch_size[0] * embed.patch_size[1]
    tokens = _tokens(n, len(network.blocks), all_tokens)
    layers = sum(n * d * inner + q * (2 * n * inner + inner * d + d * d) for q in tokens)
    return grid * patch_dim * d, layers + d * network.num_classes


def _vit(network: Any, all_tokens: bool) -> tuple[int, int]:
    weight, d, n = network.patch_embed.proj.weight, network.embed_dim, network.pos_embed.shape[1]
    hidden = network.blocks[0].mlp.fc1.out_features
    tokens = _tokens(n, len(network.blocks), all_tokens)
    layers = sum(2 * n * d * d + q * (2 * d * d + 2 * n * d + 2 * d * hidden) for q in tokens)
    return network.patch_embed.num_patches * weight.numel(), layers + d * network.num_classes


def _tokens(n: int, depth: int, all_tokens: bool) -> list[int]:
    """The number of tokens that are needed of each layer."""
    return [n] * (depth - 1) + [n if all_tokens else 1]
