"""State dictionaries in two layouts, ours and the paper's authors', and their fit to a model of another input size."""

import math
import re
from collections.abc import Iterable
from typing import Any

from timm.layers import resample_abs_pos_embed
from torch import Tensor

from ..errors import shown
from ..models.crate import CRATE
from ..stems.patches import PatchEmbed

StateDict = dict[str, Tensor]

# ours ↔ the authors'; {l} is the layer. The shapes are the same on both sides.
_NAMES = {
    "cls_token": "cls_token",
    "pos_embed": "pos_embedding",
    "patch_embed.norm_patch": "to_patch_embedding.1",
    "patch_embed.proj": "to_patch_embedding.2",
    "patch_embed.norm_token": "to_patch_embedding.3",
    "blocks.{l}.compress.norm": "transformer.layers.{l}.0.norm",
    "blocks.{l}.compress.operator.UT": "transformer.layers.{l}.0.fn.qkv.weight",
    "blocks.{l}.compress.operator.W": "transformer.layers.{l}.0.fn.to_out.0",
    "blocks.{l}.sparsify.norm": "transformer.layers.{l}.1.norm",
    "blocks.{l}.sparsify.operator.D": "transformer.layers.{l}.1.fn.weight",
    "norm": "mlp_head.0",
    "head": "mlp_head.1",
}


def is_ours(state: dict[str, Any]) -> bool:
    return "patch_embed.proj.weight" in state and any(key.startswith("blocks.0.compress.") for key in state)


def is_authors(state: dict[str, Any]) -> bool:
    return "to_patch_embedding.2.weight" in state and "transformer.layers.0.0.fn.qkv.weight" in state


def current_names(state: dict[str, Any]) -> dict[str, Any]:
    """The keys that version 0.1 wrote, under today's names: a half-step's operator was called `step` there."""
    old = re.compile(r"\b(compress|sparsify)\.step\.")
    return {old.sub(r"\1.operator.", key) if isinstance(key, str) else key: value for key, value in state.items()}


def current_checkpoint(value: Any) -> Any:
    """A run's checkpoint with today's names in every part, wherever a weight is named: weights, optimiser, average."""
    if isinstance(value, dict):
        return {key: current_checkpoint(part) for key, part in current_names(value).items()}
    if isinstance(value, list):
        return [current_checkpoint(part) for part in value]
    return next(iter(current_names({value: None}))) if isinstance(value, str) else value


def from_authors(state: StateDict) -> StateDict:
    return _rename(state, {theirs: ours for ours, theirs in _NAMES.items()})


def to_authors(state: StateDict) -> StateDict:
    return _rename(state, _NAMES)


def _rename(state: StateDict, names: dict[str, str]) -> StateDict:
    renamed = {}
    for key, tensor in state.items():
        layer = re.search(r"(?:blocks|layers)\.(\d+)\.", key)
        number = layer[1] if layer else ""
        pattern = key.replace(f".{number}.", ".{l}.", 1) if layer else key
        stem, _, leaf = pattern.rpartition(".")
        if pattern in names:
            new = names[pattern]
        elif stem in names and leaf in ("weight", "bias"):
            new = f"{names[stem]}.{leaf}"
        else:
            raise ValueError(f"unknown key {shown(key)} in a CRATE checkpoint")
        renamed[new.replace("{l}", number)] = tensor
    return renamed


def checkpoint_filter_fn(state: StateDict, model: CRATE) -> StateDict:
    """Make a checkpoint of either layout fit a model of another picture size, patch size or number of channels.

    The checkpoint's pictures and patches are taken to be square.
    """
    state = from_authors(state) if is_authors(state) else current_names(state)
    embed = model.patch_embed
    if state["pos_embed"].shape != model.pos_embed.shape:
        state["pos_embed"] = resample_abs_pos_embed(
            state["pos_embed"], new_size=list(embed.grid_size), num_prefix_tokens=model.num_prefix_tokens
        )
    if state["patch_embed.proj.weight"].shape != embed.proj.weight.shape:
        state.update(_refitted(state, embed))
    return state


def square_patch(values: int, channels: Iterable[int] = (3, 1)) -> tuple[int, int] | None:
    """Channels and side of a square patch of so many values, by the first of these numbers of channels that fits."""
    sides = ((in_chans, math.isqrt(values // in_chans)) for in_chans in channels)
    return next(((in_chans, side) for in_chans, side in sides if in_chans * side**2 == values), None)


def _refitted(state: StateDict, embed: PatchEmbed) -> StateDict:
    """The patch embedding of a checkpoint with other channels or patches, adapted to this one."""
    embed_dim, patch_dim = state["patch_embed.proj.weight"].shape
    patch = square_patch(patch_dim, (embed.in_chans, 3, 1))
    if patch is None:
        raise ValueError(f"a patch embedding of {patch_dim} values is not one of square patches in 3 channels or 1")
    in_chans, patch_size = patch
    norm_eps, prefix = embed.norm_patch.eps, "patch_embed."
    adapted = PatchEmbed((patch_size, patch_size), (patch_size, patch_size), in_chans, embed_dim, norm_eps)
    adapted.load_state_dict({key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)})
    adapted.set_in_chans(embed.in_chans)
    adapted.set_input_size(embed.img_size, embed.patch_size)
    return {prefix + key: value for key, value in adapted.state_dict().items()}
