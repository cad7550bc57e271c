"""What the page shows of one picture: numbers of `analysis` and `measures`, as values that travel as JSON.

Tokens travel as signed bytes with a scale, and an entry that is not zero never becomes one.
"""

import base64
import io
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..inspection.ablation import ablated
from ..inspection.views import attention_of, coherent_patches, crop, top_patches
from ..layers import Layer
from ..measures import DEFINITIONS, measure
from ..measures.geometry import coherence, effective_rank, orthonormality_gap
from ..models import CRATE
from ..sources import Gallery
from ..stack import Step, trajectory

__all__ = ["attention", "coordinate", "curves", "head", "look", "png", "without"]

BEST = 5  # classes that are told
PATCHES = 12  # patches of a head or a coordinate

Pairs = Sequence[tuple[int, int]]


def without(model: CRATE, heads: Pairs, atoms: Pairs) -> CRATE:
    return ablated(model, heads, atoms) if heads or atoms else model


@torch.inference_mode()
def curves(model: CRATE, images: Tensor) -> dict[str, Tensor]:
    """R^c of every layer and picture, by every definition, and the non-zero fraction: (layers, b) each."""
    return _curves(model, list(trajectory(model, images)))


@torch.inference_mode()
def look(model: CRATE, picture: Gallery, name_of: Callable[[int], str]) -> dict[str, Any]:
    """The tokens at every site, the curves of every definition, and the prediction."""
    steps = list(trajectory(model, picture.images))
    sites = [("Z", steps[0].Z)]
    for step in steps:
        sites += [("Z_half", step.Z_half), ("Z_next", step.Z_next)]
    return {
        "sites": [{"name": name, **_bytes(Z[0])} for name, Z in sites],
        "curves": {name: values[:, 0].tolist() for name, values in _curves(model, steps).items()},
        **_prediction(model, steps[-1].Z_next, name_of),
    }


@torch.inference_mode()
def attention(model: CRATE, picture: Gallery, token: int) -> dict[str, Any]:
    """The attention of one token in every head of every layer, each map as a share of its largest entry."""
    maps = attention_of(model, picture.images, token)[:, 0]  # (layers, k, h, w)
    largest = maps.amax((-1, -2))
    shares = (255 * maps / largest[..., None, None].clamp_min(1e-12)).round().to(torch.uint8)
    return {
        "token": token,
        "shape": list(maps.shape),
        "maps": _encoded(shares.numpy()),
        "largest": largest.tolist(),
        "to_patches": maps.sum((-1, -2)).tolist(),
    }


@torch.inference_mode()
def head(model: CRATE, picture: Gallery, reference: Gallery | None, layer: int, number: int) -> dict[str, Any]:
    """A head's subspace: how it lies to the others, how many directions the picture uses, which patches it groups."""
    here = _layers(model)[layer - 1]
    step = _step(model, picture, layer)
    operator: Any = here.compress.operator
    V = operator.projections(here.compress.norm(step.Z))[0, number - 1].double()
    spectrum = torch.linalg.svdvals(V)
    grouped = coherent_patches(model, picture.images, layer, number, PATCHES)
    return {
        "layer": layer,
        "head": number,
        "coherence": coherence(here.U)[number - 1].tolist(),
        "orthonormality_gap": _number(orthonormality_gap(here.U)[number - 1]),
        "spectrum": (spectrum / spectrum.max().clamp_min(1e-12)).tolist(),
        "directions": V.shape[1],
        "effective_rank": _number(effective_rank(V)),
        "grouped": [list(place) for place in zip(grouped.row, grouped.column, strict=True)],
        "reference": _crops(model, reference, coherent_patches, layer, number),
    }


@torch.inference_mode()
def coordinate(model: CRATE, picture: Gallery, reference: Gallery | None, layer: int, number: int) -> dict[str, Any]:
    """A coordinate of the sparse code: where it is active, where else, and the dictionary's column behind it."""
    step = _step(model, picture, layer)
    column = _layers(model)[layer - 1].D[:, number - 1].double()
    return {
        "layer": layer,
        "coordinate": number,
        "activity": step.Z_next[0, :, number - 1].tolist(),
        "column": column.tolist(),
        "norm": _number(column.norm()),
        "reference": _crops(model, reference, top_patches, layer, number),
    }


def png(pixels: np.ndarray) -> str:
    """A picture (H, W, 3) of uint8 as an address that holds it."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _crops(model: CRATE, reference: Gallery | None, find: Any, layer: int, number: int) -> list[dict[str, Any]]:
    """The reference pictures' patches, one a picture, with a margin around them."""
    if reference is None:
        return []
    patches = find(model, reference.images, layer, number, PATCHES)
    cuts = crop(reference.shown, patches, model.patch_embed.patch_size, margin=1)
    return [
        {"picture": picture, "score": score, "png": png(np.ascontiguousarray(cut))}
        for picture, score, cut in zip(patches.image, patches.score, cuts, strict=True)
    ]


def _curves(model: CRATE, steps: list[Step]) -> dict[str, Tensor]:
    found: dict[str, list[Tensor]] = {name: [] for name in (*DEFINITIONS, "nonzero")}
    for step in steps:
        for name, definition in DEFINITIONS.items():
            measured = measure(step, definition)
            found[name].append(measured["Rc"].double())
        found["nonzero"].append(measured["nonzero"].double())
    return {name: torch.stack(values) for name, values in found.items()}


def _prediction(model: CRATE, Z: Tensor, name_of: Callable[[int], str]) -> dict[str, Any]:
    """The most probable classes with their names, and the probabilities of all."""
    if model.num_classes == 0:
        return {"prediction": [], "probabilities": []}
    probabilities = model.forward_head(Z)[0].double().softmax(-1)
    best = probabilities.topk(min(BEST, len(probabilities)))
    named = [
        {"number": i, "name": name_of(i), "probability": p}
        for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
    return {"prediction": named, "probabilities": [round(p, 6) for p in probabilities.tolist()]}


def _bytes(Z: Tensor) -> dict[str, Any]:
    """Tokens (n, d) as signed bytes; `scale` is what 127 stands for."""
    if not Z.isfinite().all():
        raise ValueError("The network's tokens are not finite for this picture.")
    scale = float(Z.abs().max())
    shares = (127 * (Z / (scale or 1.0))).round()
    shares = torch.where((shares == 0) & (Z != 0), Z.sign(), shares).to(torch.int8)
    return {"shape": list(Z.shape), "scale": scale, "values": _encoded(shares.numpy())}


def _encoded(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _step(model: CRATE, picture: Gallery, layer: int) -> Step:
    """What passes through one layer; those behind it are not computed."""
    return next(islice(trajectory(model, picture.images), layer - 1, None))


def _layers(model: CRATE) -> list[Layer]:
    layers: Iterable[Any] = model.blocks
    return list(layers)


def _number(value: Tensor) -> float:
    return round(float(value), 6)
