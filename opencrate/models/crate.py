"""CRATE: tokens Z¹ of a picture, L layers that compress and sparsify them, and a classifier (the paper's Algorithm 1).

The class speaks timm's words at its edge and keeps timm's promises (features, intermediates, classifier, input sizes).
`trajectory` walks the same two halves of every layer as `forward` does and hands out what passes between them.

Departure: `global_pool="avg"` is the paper's `pool="mean"`, which counts the class token among the tokens.
"""

from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from timm.layers import calculate_drop_path_rates, resample_abs_pos_embed, to_2tuple
from timm.models import checkpoint, checkpoint_seq
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from ..errors import require_at_least, require_positive
from ..layers import Layer
from ..operators.attention import require_attention
from ..operators.registry import Options
from ..stack import build_layers
from ..stems.patches import PatchEmbed, with_class_token

Pool = Literal["token", "avg", ""]
ImageSize = int | tuple[int, int]


class CRATE(nn.Module):
    """The white-box transformer.

    Args:
        img_size, patch_size, in_chans: the pictures; `dynamic_img_size` takes any size divisible into patches.
        num_classes: 0 leaves out the classifier.
        global_pool: "token" (the class token), "avg" (the mean of all tokens) or "" (all tokens).
        embed_dim, depth, num_heads, head_dim: d, L, K and p; p = d/K unless given.
        compress, sparsify: operators by name, from `operators.compressions` and `operators.sparsifications`.
        compress_args, sparsify_args: their options, for example `sparsify_args={"eta": 0.1, "lam": 0.1}`.
        drop_rate, pos_drop_rate, proj_drop_rate, attn_drop_rate: dropout before the classifier, on Z¹, on the
            compression's move and on its attention maps.
        drop_path_rate: the rate at which the last layer's move is skipped; it rises to that from the first.
        norm, norm_eps: what stands before every half-step, one of `layers.NORMS`, and its guard.
        attention: how attention is computed, one of `operators.attention.ATTENTIONS`; not part of what the network is.
    """

    pretrained_cfg: dict[str, Any] | None = None  # timm's record of the network, which timm sets
    default_cfg: dict[str, Any] | None = None

    def __init__(
        self,
        img_size: ImageSize = 224,
        patch_size: ImageSize = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: Pool = "token",
        embed_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        head_dim: int | None = None,
        compress: str = "mssa",
        sparsify: str = "ista",
        compress_args: Options | None = None,
        sparsify_args: Options | None = None,
        dynamic_img_size: bool = False,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        norm: str = "layernorm",
        norm_eps: float = 1e-5,
        attention: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        _require_pool(global_pool)
        require_at_least(1, in_chans=in_chans, embed_dim=embed_dim, depth=depth, num_heads=num_heads)
        require_at_least(0, num_classes=num_classes)
        require_positive("norm_eps", norm_eps)
        self.drop_rates = {
            "drop_rate": drop_rate,
            "pos_drop_rate": pos_drop_rate,
            "proj_drop_rate": proj_drop_rate,
            "attn_drop_rate": attn_drop_rate,
            "drop_path_rate": drop_path_rate,
        }
        for name, rate in self.drop_rates.items():
            if not 0 <= rate < 1:
                raise ValueError(f"{name} must be in [0, 1), got {rate}")
        head_dim = _head_dim(embed_dim, num_heads) if head_dim is None else head_dim
        require_at_least(1, head_dim=head_dim)
        self.num_classes, self.global_pool = num_classes, global_pool
        self.num_features = self.head_hidden_size = self.embed_dim = embed_dim
        self.num_heads, self.head_dim = num_heads, head_dim
        self.norm_name, self.norm_eps = norm, norm_eps
        self.num_prefix_tokens = 1
        self.grad_checkpointing = False

        self.patch_embed = PatchEmbed(
            _pair("img_size", img_size),
            _pair("patch_size", patch_size),
            in_chans,
            embed_dim,
            norm_eps,
            dynamic_img_size,
            **dd,
        )
        grid = self.patch_embed.grid_size
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim, **dd))
        self.pos_embed = nn.Parameter(torch.empty(1, grid[0] * grid[1] + 1, embed_dim, **dd))
        self.pos_drop = nn.Dropout(pos_drop_rate)

        self.blocks = build_layers(
            embed_dim,
            depth,
            num_heads,
            head_dim,
            compress,
            sparsify,
            compress_args,
            sparsify_args,
            norm,
            norm_eps,
            attn_drop_rate,
            proj_drop_rate,
            cast("list[float]", calculate_drop_path_rates(drop_path_rate, depth)),
            **dd,
        )
        self.set_attention(attention)
        reduction = self.patch_embed.patch_size[0]
        self.feature_info = [
            {"module": f"blocks.{layer}", "num_chs": embed_dim, "reduction": reduction} for layer in range(depth)
        ]
        self.norm: nn.Module = nn.LayerNorm(embed_dim, eps=norm_eps, **dd)
        self.head_drop = nn.Dropout(drop_rate)
        self.head = nn.Linear(embed_dim, num_classes, **dd) if num_classes > 0 else nn.Identity()
        self.init_weights(needs_reset=False)

    def init_weights(self, needs_reset: bool = True) -> None:
        """Draw the weights as the paper's code does; `needs_reset` includes those that the layers drew themselves."""
        nn.init.normal_(self.pos_embed)
        nn.init.normal_(self.cls_token)
        if needs_reset:
            for module in self.modules():
                if callable(reset := getattr(module, "reset_parameters", None)):
                    reset()

    @property
    def layers(self) -> Any:
        """The stack of `Layer`s, which timm calls `blocks`."""
        return self.blocks

    def set_attention(self, attention: str) -> None:
        """Choose how attention is computed, where there is a choice: one of `operators.attention.ATTENTIONS`."""
        require_attention(attention)
        for layer in self.blocks:
            operator: Any = cast(Layer, layer).compress.operator
            if hasattr(operator, "attention"):
                operator.attention = attention

    def embed(self, images: Tensor) -> Tensor:
        """Images (b, c, H, W) → tokens Z¹ (b, n, d); the class token is the first."""
        tokens = self.patch_embed(images)  # (b, n, d)
        positions = self.pos_embed
        if self.patch_embed.dynamic_img_size:
            positions = resample_abs_pos_embed(
                positions,
                new_size=self.patch_embed.grid_of(images),
                old_size=self.patch_embed.grid_size,
                num_prefix_tokens=1,
            )
        # squeezed, so that its gradient, a row of the padded one's, has its own strides: DDP copies others, and warns
        constant = positions + F.pad(self.cls_token.squeeze(0), [0, 0, 0, positions.shape[1] - 1])
        return self.pos_drop(with_class_token(tokens, constant.to(tokens.dtype)))

    def forward_features(self, images: Tensor) -> Tensor:
        """Images → the last layer's sparse tokens Z^{L+1} (b, n, d)."""
        Z = self.embed(images)
        if self.grad_checkpointing:
            return checkpoint_seq(self.blocks, Z)
        return self.blocks(Z)

    def pool(self, Z: Tensor) -> Tensor:
        if self.global_pool == "token":
            return Z[:, 0]
        if self.global_pool == "avg":
            return Z.mean(dim=1)
        return Z

    def forward_head(self, Z: Tensor, pre_logits: bool = False) -> Tensor:
        """Z^{L+1} → logits: pool, LayerNorm, classifier. `pre_logits` stops before the classifier."""
        pooled = self.head_drop(self.norm(self.pool(Z)))
        return pooled if pre_logits else self.head(pooled)

    def forward(self, images: Tensor) -> Tensor:
        """Images → logits. In evaluation the last layer computes the class token alone if nobody sees another token."""
        from ..speed.first_token import first_token, has_first_token_alone, is_watched

        *layers, last = self.blocks
        whole = self.training or self.global_pool != "token" or self.grad_checkpointing
        if whole or is_watched(self.blocks, images) or not has_first_token_alone(last):
            return self.forward_head(self.forward_features(images))
        Z = self.embed(images)
        for layer in layers:
            Z = layer(Z)
        return self.forward_head(first_token(last, Z))

    def forward_intermediates(
        self,
        images: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        output_dict: bool = False,
    ) -> Any:
        """timm's features of chosen layers: Z^{l+1} without the class token, as maps (NCHW) or as tokens (NLC).

        `norm` applies the final LayerNorm to them. The final output is that of `forward_features`; after `stop_early`
        it is that of the last layer taken.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt must be 'NCHW' or 'NLC', got {output_fmt!r}")
        take, last = feature_take_indices(len(self.blocks), indices)
        height, width = (
            pixels // patch for pixels, patch in zip(images.shape[-2:], self.patch_embed.patch_size, strict=True)
        )
        Z = self.embed(images)
        taken = []
        for layer, block in enumerate(self.blocks[: last + 1] if stop_early else self.blocks):
            Z = checkpoint(block, Z) if self.grad_checkpointing else block(Z)
            if layer in take:
                taken.append(self.norm(Z) if norm else Z)

        prefixes = [tokens[:, :1] for tokens in taken]
        features = [tokens[:, 1:] for tokens in taken]
        if output_fmt == "NCHW":
            features = [tokens.mT.unflatten(-1, (height, width)).contiguous() for tokens in features]

        if output_dict:
            result: dict[str, Any] = {"image_intermediates": features}
            if return_prefix_tokens:
                result["image_intermediates_prefix"] = prefixes
            return result if intermediates_only else {**result, "image_features": Z}
        intermediates = list(zip(features, prefixes, strict=True)) if return_prefix_tokens else features
        return intermediates if intermediates_only else (Z, intermediates)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop the layers after the last one taken, and what is not needed behind them."""
        take, last = feature_take_indices(len(self.blocks), indices)
        self.blocks = self.blocks[: last + 1]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return take

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: Pool | None = None) -> None:
        """A fresh classifier for other classes; 0 removes it."""
        if global_pool is not None:
            _require_pool(global_pool)
            self.global_pool = global_pool
        require_at_least(0, num_classes=num_classes)
        self.num_classes = num_classes
        like: dict[str, Any] = {"device": self.cls_token.device, "dtype": self.cls_token.dtype}
        self.head = nn.Linear(self.embed_dim, num_classes, **like) if num_classes > 0 else nn.Identity()
        self.head.train(self.training)

    @property
    def in_chans(self) -> int:
        return self.patch_embed.in_chans

    def set_input_size(self, img_size: ImageSize | None = None, patch_size: ImageSize | None = None) -> None:
        """Take pictures or patches of another size; the positions are interpolated to the new grid."""
        old_grid = self.patch_embed.grid_size
        self.patch_embed.set_input_size(
            None if img_size is None else _pair("img_size", img_size),
            None if patch_size is None else _pair("patch_size", patch_size),
        )
        if self.patch_embed.grid_size != old_grid:
            positions = resample_abs_pos_embed(
                self.pos_embed.detach(), self.patch_embed.grid_size, old_size=old_grid, num_prefix_tokens=1
            )
            self.pos_embed = nn.Parameter(positions, self.pos_embed.requires_grad)
        for entry in self.feature_info:
            entry["reduction"] = self.patch_embed.patch_size[0]
        if hasattr(self, "_traits"):  # what timm, from 1.0.31 on, knows of a network that it has made
            from timm.models._input import update_model_input_size

            update_model_input_size(self, self.patch_embed.img_size, patch_size=self.patch_embed.patch_size)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        return {"pos_embed", "cls_token"}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """timm's parameter groups by depth, for layer-wise learning rates."""
        return {
            "stem": r"^cls_token|^pos_embed|^patch_embed",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))],
        }

    def fold(self) -> nn.Module:
        """A copy for inference, all plain linear layers: the same outputs to rounding, for less work."""
        from ..speed.fold import fold

        return fold(self)

    def config(self) -> dict[str, Any]:
        """The constructor's arguments that make this network, as it is now; plain values, for a JSON file."""
        first = cast(Layer, self.blocks[0])
        (compress, compress_args), (sparsify, sparsify_args) = (
            first.compress.operator.spec,
            first.sparsify.operator.spec,
        )
        return {
            "img_size": list(self.patch_embed.img_size),
            "patch_size": list(self.patch_embed.patch_size),
            "in_chans": self.patch_embed.in_chans,
            "num_classes": self.num_classes,
            "global_pool": self.global_pool,
            "embed_dim": self.embed_dim,
            "depth": len(self.blocks),
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "compress": compress,
            "sparsify": sparsify,
            "compress_args": dict(compress_args),
            "sparsify_args": dict(sparsify_args),
            "dynamic_img_size": self.patch_embed.dynamic_img_size,
            **self.drop_rates,
            "norm": self.norm_name,
            "norm_eps": self.norm_eps,
        }


def _pair(name: str, size: ImageSize) -> tuple[int, int]:
    pair = to_2tuple(size)
    if len(pair) != 2 or not all(isinstance(pixels, int) for pixels in pair):
        raise ValueError(f"{name} must be a whole number or two, got {size!r}")
    return pair


def _head_dim(embed_dim: int, num_heads: int) -> int:
    if embed_dim % num_heads:
        raise ValueError(f"embed_dim {embed_dim} is not divisible by num_heads {num_heads}")
    return embed_dim // num_heads


def _require_pool(global_pool: str) -> None:
    if global_pool not in ("token", "avg", ""):
        raise ValueError(f"global_pool must be 'token', 'avg' or '', got {global_pool!r}")
