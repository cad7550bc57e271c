"""What a layer's tokens show: attention rows, tokens as colours, and the patches of a head or of a coordinate.

    attention of token i in head k    softmax(scale · V_k V_kᵀ)_i  over the patches, with V_k = LN(Z^l) U_k
    coherent patches of a head        the largest ⟨V_k,i, v⟩, v the leading right-singular direction of V_k
    top patches of a coordinate       the largest entries of column j of Z^{l+1}

All read a `Step`: one of a recording, or one of `trajectory` while it passes. Heads and coordinates are counted from 1,
as in the paper. Tokens are counted from 0, which is the class token; pictures, and the patches of a picture row by row,
from 0.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..objective.rates import require_finite, require_tokens
from ..shapes import Float
from ..stack import Step

ROBUST = (0.01, 0.99)  # the quantiles that become 0 and 1 of a colour
ROUNDING = 1e-6  # share of a component's range below which its quantiles are taken for equal


def attention_rows(step: Step, token: int) -> Float[Tensor, "b k n"]:
    """The attention that `token` pays to every token, by the compression's own maps, at least in float32.

    It does not matter by which kernel the network runs. A dead head pays 1/n to every token.
    """
    maps = step.maps
    require_within("token", token, 0, maps.shape[-1] - 1)
    return _finite("attention", step, maps[:, :, token].to(_wide(maps)))


def pca_colours(Z: Float[Tensor, "b n d"], first: int = 1) -> Float[Tensor, "b m 3"]:
    """The three leading principal components of the tokens of all pictures together, each scaled to [0, 1].

    Tokens before `first` are left out: the class token. The 1 % and 99 % quantiles over all tokens become 0 and 1, and
    what lies outside is cut off; where these quantiles are one but for rounding, as when few tokens differ from the
    rest, the extremes take their place. The largest loading of a component is positive. A component without variance
    is 0.5.
    """
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


def _to_unit_interval(values: Tensor) -> Tensor:
    low, high = values.quantile(torch.tensor(ROBUST, dtype=values.dtype, device=values.device))
    least, most = values.aminmax()
    if high - low < ROUNDING * (most - least):
        low, high = least, most
    return ((values - low) / (high - low)).clamp(0, 1)


@dataclass(frozen=True)
class Patches:
    """Chosen patches, best first: the picture of each, its number in the picture, and its score."""

    image: tuple[int, ...]
    patch: tuple[int, ...]
    score: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.image)


def coherent_patches(step: Step, head: int, count: int = 9) -> Patches:
    """The patches of all pictures that lie farthest along the leading direction of a head's subspace.

    Fewer than `count` if fewer have a positive score, and none for a dead head.
    """
    V = finite_projections(step)
    require_within("head", head, 1, V.shape[1])
    return _best_patches(leading_scores(V[:, head - 1, 1:]), count)


def leading_scores(V: Float[Tensor, "*heads b n p"]) -> Float[Tensor, "*heads b n"]:
    """How far every patch lies along the leading direction of a head, from the patches' projections.

    With all projections V of a head as rows and v their leading right-singular vector, the score is
    ⟨V_i, v⟩ = cos(V_i, v)·‖V_i‖. v points to the side that holds more of Σ⟨V_i, v⟩², and only that side counts: the
    softmax draws together patches of one side, ⟨V_i, V_j⟩ > 0, and not those opposite.
    """
    V = V.double()
    _, directions = torch.linalg.eigh(torch.einsum("...bnp,...bnq->...pq", V, V))
    along = torch.einsum("...bnp,...p->...bn", V, directions[..., -1])
    behind = along.clamp_max(0).square().sum((-2, -1)) > along.clamp_min(0).square().sum((-2, -1))
    return torch.where(behind[..., None, None], -along, along)


def top_patches(step: Step, coordinate: int, count: int = 9) -> Patches:
    """The patches of all pictures where a coordinate of the sparse code is largest; of the tokens, if there is no code.

    Fewer than `count` if it is positive in fewer.
    """
    code = step.Z_next if step.code is None else step.code
    require_within("coordinate", coordinate, 1, code.shape[-1])
    return _best_patches(_finite("sparse code", step, code)[:, 1:, coordinate - 1], count)


def _best_patches(scores: Float[Tensor, "b n"], count: int) -> Patches:
    """The largest positive scores; of equal ones the first in the order of pictures and patches."""
    flat = scores.flatten()
    order = flat.argsort(descending=True, stable=True)[:count]
    return patches_at(order, flat[order], scores.shape[1])


def patches_at(places: Tensor, scores: Tensor, per_image: int) -> Patches:
    """The patches with these numbers among the patches of all pictures, those left out whose score is not positive."""
    places, scores = places[scores > 0], scores[scores > 0]
    image, patch = places // per_image, places % per_image
    return Patches(*(tuple(part.tolist()) for part in (image, patch, scores)))


def crop(images: np.ndarray, patches: Patches, patch_size: tuple[int, int], margin: int = 0) -> list[np.ndarray]:
    """The patches as they look, cut from pictures (b, H, W, c) of uint8 at the size that the network saw.

    `margin` adds so many patches around each, as far as the picture goes, so that at its border the cut is smaller.
    """
    height, width = patch_size
    cuts = []
    for image, patch in zip(patches.image, patches.patch, strict=True):
        row, column = divmod(patch, images.shape[2] // width)
        top, left = max(row - margin, 0) * height, max(column - margin, 0) * width
        cuts.append(images[image, top : (row + margin + 1) * height, left : (column + margin + 1) * width])
    return cuts


def finite_projections(step: Step) -> Float[Tensor, "b k n p"]:
    return _finite("projection", step, step.projections)


def require_within(name: str, number: Any, first: int, last: int) -> None:
    if not isinstance(number, int) or not first <= number <= last:
        raise ValueError(f"{name} must be a whole number from {first} to {last}, got {number!r}")


def _finite(what: str, step: Step, values: Tensor) -> Tensor:
    require_finite(f"the {what} of layer {step.number}", values)
    return values


def _wide(tokens: Tensor) -> torch.dtype:
    """float64 stays, everything else is float32."""
    return torch.promote_types(tokens.dtype, torch.float32)
