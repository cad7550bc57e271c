"""What a network attends to: attention rows as maps, tokens as colours, and the patches of a head or of an atom.

    attention of token i in head k    softmax(scale · V_k V_kᵀ)_i  over the patches, with V_k = LN(Z^l) U_k
    coherent patches of a head        the largest ⟨V_k,i, v⟩, v the leading right-singular direction of V_k
    top patches of a coordinate       the largest entries of column j of Z^{l+1}

`attention_of`, `coherent_patches` and `top_patches` take a CRATE and normalised pictures (b, c, H, W) of any size that
it takes, and compute in evaluation mode without gradients, TOGETHER pictures at a time; the network is left as it was.
`attention_rows`, `leading_scores` and `best_patches` compute the same from a step that was recorded. Layers, heads and
coordinates are counted from 1, as in the paper. Tokens are counted from 0, which is the class token, so that patches
begin at 1; images, rows and columns of the grid of patches are counted from 0.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from timm.utils import unwrap_model
from torch import Tensor

from ..layers import Layer
from ..models import CRATE
from ..objective.rates import require_finite, require_tokens
from ..shapes import Float
from ..stack import Step, trajectory
from ..stems.patches import PatchEmbed, cut

TOGETHER = 64  # pictures that pass through the network together
ROBUST = (0.01, 0.99)  # the quantiles that become 0 and 1 of a colour
ROUNDING = 1e-6  # share of a component's range below which its quantiles are taken for equal


@dataclass(frozen=True)
class Patches:
    """Chosen patches, best first: the picture of each, its row and column in the grid of patches, and its score."""

    image: tuple[int, ...]
    row: tuple[int, ...]
    column: tuple[int, ...]
    score: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.image)


def attention_of(
    model: CRATE, images: Tensor, token: int = 0, layers: Sequence[int] | None = None
) -> Float[Tensor, "layers b k h w"]:
    """The attention that `token` pays to every patch, in every head of the chosen layers (all, unless told).

    The class token's share is left out and the rest is not scaled up: what the maps lack to a sum of 1 is that share.
    A dead head pays 1/n to every token. The maps are those that the
    operator states, so that it does not matter by which kernel the network runs.
    """
    with looking(model, images) as (model, batches):
        h, w = _grid(model, images)
        _require_among("token", token, 0, h * w)
        chosen = range(1, len(model.blocks) + 1) if layers is None else list(layers)
        if not chosen:
            raise ValueError("layers is empty: name at least one layer, or None for all")
        for layer in chosen:
            require_layer(model, layer)
        maps = []
        for batch in batches:
            rows = {
                step.number: attention_rows(step, token)[..., 1:]
                for step in _steps(model, batch, last=max(chosen))
                if step.number in chosen
            }
            maps.append(torch.stack([rows[layer] for layer in chosen]))
        return torch.cat(maps, dim=1).unflatten(-1, (h, w))


def attention_rows(step: Step, token: int) -> Float[Tensor, "b k n"]:
    """Row `token` of the compression's own attention maps, at least in float32."""
    operator: Any = step.layer.compress.operator
    maps = operator.maps(step.layer.compress.norm(step.Z))
    if maps is None:
        raise ValueError(f"the compression {operator.name} has no attention maps")
    row: Tensor = maps[:, :, token].to(_wide(maps))
    require_finite(f"the attention of layer {step.number}", row)
    return row


def patch_token(model: CRATE, images: Tensor, row: int, column: int) -> int:
    """The number of the patch's token, 1 + row·w + column; the first row and column are 0."""
    h, w = _grid(model, images)
    _require_among("row", row, 0, h - 1)
    _require_among("column", column, 0, w - 1)
    return 1 + row * w + column


def pca_colours(Z: Float[Tensor, "b n d"], first: int = 1) -> Float[Tensor, "b m 3"]:
    """The three leading principal components of the tokens of all pictures together, each scaled to [0, 1].

    Tokens before `first` are left out: the class token. The 1 % and 99 % quantiles over all tokens become 0 and 1, and
    what lies outside is cut off; where these quantiles are one but for rounding, as when few tokens differ from the
    rest, the extremes take their place. The largest loading of a component is positive. A component without variance
    is 0.5.
    """
    if Z.dim() != 3 or not 0 <= first < Z.shape[1] or len(Z) == 0:
        raise ValueError(f"Z must be tokens (b, n, d) with n > first = {first}, got shape {tuple(Z.shape)}")
    require_tokens(Z)
    tokens = Z[:, first:].double().flatten(0, 1)
    centred = tokens - tokens.mean(0)
    # Components below the rounding of the scatter matrix are noise: constant tokens have nothing else.
    rounding = torch.finfo(tokens.dtype).eps * max(tokens.shape) * tokens.square().sum()
    energies, directions = torch.linalg.eigh(centred.mT @ centred)
    colours = torch.full((len(tokens), 3), 0.5, dtype=torch.float64, device=Z.device)
    for i in range(min(3, Z.shape[-1])):
        if energies[-1 - i] > rounding:
            loadings = directions[:, -1 - i]
            colours[:, i] = _to_unit_interval(centred @ (loadings * loadings[loadings.abs().argmax()].sign()))
    return colours.unflatten(0, (len(Z), -1)).to(_wide(Z))


def coherent_patches(model: CRATE, images: Tensor, layer: int, head: int, count: int = 9) -> Patches:
    """The patches of all pictures that lie farthest along the leading direction of a head's subspace.

    With V the projections U_kᵀ LN z of all patches as rows and v their leading right-singular vector, the score is
    ⟨V_i, v⟩ = cos(V_i, v)·‖V_i‖. v points to the side that holds more of Σ⟨V_i, v⟩², and only that side counts: the
    softmax draws together patches of one side, ⟨V_i, V_j⟩ > 0, and not those opposite. So there are fewer than
    `count` if fewer lie there, and none for a dead head.
    """
    with looking(model, images) as (model, batches):
        require_layer(model, layer)
        require_head(model, head)
        norm, U = _layer(model, layer).compress.norm, _layer(model, layer).U
        if U is None:
            raise ValueError(f"the compression of layer {layer} has no subspaces")
        V = torch.cat([norm(_step(model, batch, layer).Z[:, 1:]) @ U[head - 1] for batch in batches]).double()
        require_finite(f"the projection of layer {layer}", V)
        return best_patches(leading_scores(V), _grid(model, images), count)


def leading_scores(V: Float[Tensor, "*heads b n p"]) -> Float[Tensor, "*heads b n"]:
    """The score of every patch of `coherent_patches`, from the patches' projections in one head or in several."""
    V = V.double()
    _, directions = torch.linalg.eigh(torch.einsum("...bnp,...bnq->...pq", V, V))
    along = torch.einsum("...bnp,...p->...bn", V, directions[..., -1])
    behind = along.clamp_max(0).square().sum((-2, -1)) > along.clamp_min(0).square().sum((-2, -1))
    return torch.where(behind[..., None, None], -along, along)


def top_patches(model: CRATE, images: Tensor, layer: int, coordinate: int, count: int = 9) -> Patches:
    """The patches of all pictures where a coordinate of the sparse code Z^{l+1} of layer l is largest.

    Only where it is positive: fewer than `count` patches if it is active in fewer.
    """
    with looking(model, images) as (model, batches):
        require_layer(model, layer)
        codes = (_code(_step(model, batch, layer), coordinate) for batch in batches)
        activations = torch.cat([code[:, 1:, coordinate - 1].clone() for code in codes])  # a view would keep all of it
        require_finite(f"the sparse code of layer {layer}", activations)
        return best_patches(activations, _grid(model, images), count)


def patches_at(places: Tensor, scores: Tensor, grid: tuple[int, int]) -> Patches:
    """The patches with these numbers among the patches of all pictures, those left out whose score is not positive."""
    places, scores = places[scores > 0], scores[scores > 0]
    image, within = places // (grid[0] * grid[1]), places % (grid[0] * grid[1])
    row, column = within // grid[1], within % grid[1]
    return Patches(*(tuple(part.tolist()) for part in (image, row, column, scores)))


def crop(images: np.ndarray, patches: Patches, patch_size: int | tuple[int, int], margin: int = 0) -> list[np.ndarray]:
    """The patches as they look, cut from pictures (b, H, W, c) of uint8 at the size that the network saw.

    `margin` adds so many patches around each, as far as the picture goes, so that at its border the cut is smaller.
    """
    if images.ndim != 4 or images.dtype != np.uint8:
        raise ValueError(f"images must be uint8 of axes (b, H, W, c), got {images.dtype} of shape {images.shape}")
    if margin < 0:
        raise ValueError(f"margin must not be negative, got {margin}")
    height, width = (patch_size, patch_size) if isinstance(patch_size, int) else patch_size
    if height < 1 or width < 1:
        raise ValueError(f"patch_size must be at least 1, got {patch_size}")
    grid = len(images), images.shape[1] // height, images.shape[2] // width
    cuts = []
    for place in zip(patches.image, patches.row, patches.column, strict=True):
        if any(not 0 <= at < size for at, size in zip(place, grid, strict=True)):
            raise ValueError(
                f"patch {place[1:]} of picture {place[0]} lies outside: there are {grid[0]} pictures of "
                f"{grid[1]} x {grid[2]} patches"
            )
        image, row, column = place
        top, left = max(row - margin, 0) * height, max(column - margin, 0) * width
        cuts.append(images[image, top : (row + margin + 1) * height, left : (column + margin + 1) * width])
    return cuts


@contextmanager
def looking(model: CRATE, images: Tensor, copies: int = 1) -> Iterator[tuple[CRATE, tuple[Tensor, ...]]]:
    """The bare network in evaluation mode and the pictures in its precision, in batches; no gradients.

    Batches are smaller where `copies` of every picture are to go through together. Every module goes back to the mode
    in which it was.
    """
    model = bare(model)
    if len(images) == 0:
        raise ValueError("there are no pictures to look at")
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            like = model.cls_token
            images = images.to(like.device, like.dtype if images.is_floating_point() else None)
            yield model, images.split(max(1, TOGETHER // copies))
    finally:
        for module, mode in modes:
            module.training = mode


def bare(model: CRATE) -> CRATE:
    """The network itself, without what training wraps around it."""
    model = unwrap_model(model)
    if not isinstance(getattr(model, "patch_embed", None), PatchEmbed):
        raise ValueError(f"only a CRATE can be looked into, got {type(model).__name__}")
    return model


def finite_projections(step: Step) -> Float[Tensor, "b k n p"]:
    """The projections of a step that was asked for them; an error where they hold NaN or infinity."""
    V = cast(Tensor, step.projections)
    require_finite(f"the projection of layer {step.number}", V)
    return V


def require_layer(model: CRATE, layer: int) -> None:
    _require_among("layer", layer, 1, len(model.blocks))


def require_head(model: CRATE, head: int) -> None:
    _require_among("head", head, 1, model.num_heads)


def require_coordinate(code: Tensor, coordinate: int) -> None:
    _require_among("coordinate", coordinate, 1, code.shape[-1])


def _code(step: Step, coordinate: int) -> Tensor:
    """The sparse code of a step, which has this coordinate; the tokens where there is no code."""
    code = step.Z_next if step.code is None else step.code
    require_coordinate(code, coordinate)
    return code


def _require_among(name: str, number: int, first: int, last: int) -> None:
    if not isinstance(number, int) or not first <= number <= last:
        raise ValueError(f"{name} must be a whole number from {first} to {last}, got {number!r}")


def _layer(model: CRATE, layer: int) -> Layer:
    return cast(Layer, model.blocks[layer - 1])


def _grid(model: CRATE, images: Tensor) -> tuple[int, int]:
    """Rows and columns of patches, of pictures that the network takes."""
    embed = bare(model).patch_embed
    patches = cut(images, embed.in_chans, embed.img_size, embed.patch_size, embed.dynamic_img_size)
    return patches.shape[2], patches.shape[4]


def _steps(model: CRATE, images: Tensor, last: int) -> Iterator[Step]:
    """The trajectory, no further than to layer `last`."""
    for step in trajectory(model, images):
        yield step
        if step.number == last:
            return


def _step(model: CRATE, images: Tensor, layer: int) -> Step:
    return next(step for step in trajectory(model, images) if step.number == layer)


def best_patches(scores: Tensor, grid: tuple[int, int], count: int) -> Patches:
    """The largest positive scores (b, h·w); of equal ones the first in the order of pictures, rows and columns."""
    if not isinstance(count, int) or count < 1:
        raise ValueError(f"count must be a whole number, at least 1, got {count!r}")
    flat = scores.flatten()
    order = flat.argsort(descending=True, stable=True)[:count]
    return patches_at(order, flat[order], grid)


def _to_unit_interval(values: Tensor) -> Tensor:
    low, high = values.quantile(torch.tensor(ROBUST, dtype=values.dtype, device=values.device))
    least, most = values.aminmax()
    if high - low < ROUNDING * (most - least):
        low, high = least, most
    return ((values - low) / (high - low)).clamp(0, 1)


def _wide(tokens: Tensor) -> torch.dtype:
    """float64 stays, everything else is float32."""
    return torch.promote_types(tokens.dtype, torch.float32)
