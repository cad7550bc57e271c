"""What the page shows of one picture: values that travel as JSON, computed from a recording of the picture.

Tokens travel as signed bytes with a scale, and an entry that is not zero never becomes one.
"""

import base64
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..inspection.recording import Recording
from ..inspection.views import (
    Patches,
    attention_rows,
    coherent_patches,
    crop,
    finite_projections,
    require_within,
)
from ..measures import DEFINITIONS, measure
from ..measures.geometry import coherence, effective_rank, orthonormality_gap
from ..stack import Step

BEST = 5  # classes in the prediction
PATCHES = 12  # patches of a head or a coordinate


def curves(steps: Sequence[Step]) -> dict[str, Tensor]:
    """R^c of every picture by every definition, and the non-zero fraction: (layers, b) each."""
    measured = {name: measure(steps, definition) for name, definition in DEFINITIONS.items()}
    nonzero = next(iter(measured.values()))["nonzero"]  # the same by every definition
    return {name: values["Rc"] for name, values in measured.items()} | {"nonzero": nonzero}


@torch.inference_mode()
def look(recording: Recording, name_of: Callable[[int], str]) -> dict[str, Any]:
    """The tokens at every site, the curves of every definition, and the prediction."""
    sites = [("Z", recording.steps[0].Z)]
    for step in recording.steps:
        sites += [("Z_half", step.Z_half), ("Z_next", step.Z_next)]
    return {
        "sites": [{"name": name, **_bytes(Z[0])} for name, Z in sites],
        "curves": {name: values[:, 0].tolist() for name, values in curves(recording.steps).items()},
        **_prediction(recording.logits, name_of),
    }


@torch.inference_mode()
def attention(recording: Recording, token: int) -> dict[str, Any]:
    """The attention of one token in every head of every layer, each map as a share of its largest entry."""
    rows = torch.stack([attention_rows(step, token)[0, :, 1:] for step in recording.steps])
    maps = rows.unflatten(-1, recording.grid)  # (layers, k, h, w)
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
def head(recording: Recording, layer: int, number: int) -> dict[str, Any]:
    """A head's subspace: its coherence with the others, how many directions the picture uses, what it groups."""
    step = _step(recording, layer)
    grouped = coherent_patches(step, number, PATCHES)
    V, U = finite_projections(step)[0, number - 1].double(), step.layer.U  # (n, p), (k, d, p)
    spectrum = torch.linalg.svdvals(V)
    return {
        "layer": layer,
        "head": number,
        "coherence": coherence(U)[number - 1].tolist(),
        "orthonormality_gap": _number(orthonormality_gap(U)[number - 1]),
        "spectrum": (spectrum / spectrum.max().clamp_min(1e-12)).tolist(),
        "directions": V.shape[1],
        "effective_rank": _number(effective_rank(V)),
        "grouped": [list(divmod(patch, recording.grid[1])) for patch in grouped.patch],
    }


@torch.inference_mode()
def coordinate(recording: Recording, layer: int, number: int) -> dict[str, Any]:
    """A coordinate of the tokens: where it is active, and the atom behind it where the code takes the tokens' place."""
    step = _step(recording, layer)
    require_within("coordinate", number, 1, step.Z_next.shape[-1])
    is_code = step.layer.D is not None and step.layer.sparsify.operator.replaces
    column = step.layer.D[:, number - 1].double() if is_code else torch.zeros(0)
    return {
        "layer": layer,
        "coordinate": number,
        "activity": step.Z_next[0, :, number - 1].tolist(),
        "column": column.tolist(),
        "norm": _number(column.norm()),
    }


def _step(recording: Recording, layer: int) -> Step:
    require_within("layer", layer, 1, len(recording.steps))
    return recording.steps[layer - 1]


def crops(pixels: np.ndarray, patches: Patches, patch_size: tuple[int, int]) -> list[dict[str, Any]]:
    """Patches of pictures (b, H, W, 3), each with a margin of one patch around it."""
    cuts = crop(pixels, patches, patch_size, margin=1)
    return [
        {"picture": picture, "score": score, "png": png(np.ascontiguousarray(cut))}
        for picture, score, cut in zip(patches.image, patches.score, cuts, strict=True)
    ]


def png(pixels: np.ndarray) -> str:
    """A picture (H, W, 3) of uint8 as a data URL."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _prediction(logits: Tensor | None, name_of: Callable[[int], str]) -> dict[str, Any]:
    """The most probable classes with their names, and the probabilities of all."""
    if logits is None:
        return {"prediction": [], "probabilities": []}
    probabilities = logits[0].double().softmax(-1)
    best = probabilities.topk(min(BEST, len(probabilities)))
    named = [
        {"number": i, "name": name_of(i), "probability": p}
        for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
    return {"prediction": named, "probabilities": [round(p, 6) for p in probabilities.tolist()]}


def _bytes(Z: Tensor) -> dict[str, Any]:
    """Tokens (n, d) as signed bytes; `scale` is the value that 127 stands for."""
    if not Z.isfinite().all():
        raise ValueError("The network's tokens are not finite for this picture.")
    scale = float(Z.abs().max())
    shares = (127 * (Z / (scale or 1.0))).round()
    shares = torch.where((shares == 0) & (Z != 0), Z.sign(), shares).to(torch.int8)
    return {"shape": list(Z.shape), "scale": scale, "values": _encoded(shares.numpy())}


def _encoded(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _number(value: Tensor) -> float:
    return round(float(value), 6)
