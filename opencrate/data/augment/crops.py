"""Crops of whole batches on the device: every sample has its own box and flip, in two batched matrix products.

Resampling is separable and linear, so a crop that is resized to s × s is R X Cᵀ, with the weights of the rows R (s, H)
and of the columns C (s, W): those of the antialiased filters that PIL and torch use. PIL cuts a crop out before it is
resized, so that a filter sees nothing beyond the box: its taps there are zero, and the others are scaled to sum to 1.
A flip reverses the rows of C. Values are 0…255, which half precision holds exactly; bicubic filters may overshoot.
"""

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Interpolation = Literal["bicubic", "bilinear"]

ATTEMPTS = 10  # of RandomResizedCrop, before it takes the centre, and of RandomErasing, before it does nothing


def crop_boxes(
    count: int,
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    generator: torch.Generator,
) -> Tensor:
    """Boxes (count, 4) of top, left, height, width, drawn as torchvision's RandomResizedCrop draws one.

    area ~ H W U(scale) and ratio ~ exp U(log ratio), until one of 10 fits; else the centre, as large as `ratio` allows.
    In NumPy, because torch splits even so few roots over all cores, and then waits for those that copy pictures.
    """
    boxes = _boxes(count, height, width, (height, width), scale, ratio, generator)
    bounded = min(max(width / height, ratio[0]), ratio[1])
    h, w = min(height, round(width / bounded)), min(width, round(height * bounded))
    centre = np.array([(height - h) // 2, (width - w) // 2, h, w])
    return torch.from_numpy(np.where(boxes[:, 2:3] > 0, boxes, centre))


def erased_boxes(count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Boxes (count, 4) as torchvision's RandomErasing draws one: of 2 to 33 % of the picture, shorter on both axes.

    Where none of 10 fits, the box is empty.
    """
    ratio = (1 / 3.3, 1 / 0.3)  # of width over height
    boxes = _boxes(count, height, width, (height - 1, width - 1), (0.02, 0.33), ratio, generator)
    return torch.from_numpy(boxes)


def _boxes(
    count: int,
    height: int,
    width: int,
    largest: tuple[int, int],
    scale: tuple[float, float],
    ratio: tuple[float, float],
    generator: torch.Generator,
) -> np.ndarray:
    """The first of 10 boxes that is at most `largest`; zeros where none is."""
    draws = torch.rand(3, count, ATTEMPTS, generator=generator, dtype=torch.float64).numpy()
    area = height * width * (scale[0] + (scale[1] - scale[0]) * draws[0])
    shape = np.exp(math.log(ratio[0]) + math.log(ratio[1] / ratio[0]) * draws[1])
    h, w = np.sqrt(area / shape).round(), np.sqrt(area * shape).round()
    fits = (h >= 1) & (h <= largest[0]) & (w >= 1) & (w <= largest[1])
    first = fits.argmax(1, keepdims=True)
    h, w = (np.take_along_axis(side, first, 1)[:, 0] for side in (h, w))
    top, left = np.floor(draws[2, :, 0] * (height - h + 1)), np.floor(draws[2, :, 1] * (width - w + 1))
    return (np.stack([top, left, h, w], 1) * fits.any(1, keepdims=True)).astype(np.int64)


def resample_weights(
    start: Tensor, extent: Tensor, length: int, size: int, interpolation: Interpolation, dtype: torch.dtype
) -> Tensor:
    """Weights (b, size, length) that resize the pixels start … start + extent − 1 of `length` to `size`.

    w_ij ∝ k((j + ½ − start − (i + ½) f) / max(f, 1)), f = extent/size, over the pixels j of the box.
    """
    start, extent = (t.to(torch.float32).view(-1, 1, 1) for t in (start, extent))  # (b, 1, 1)
    pixels = torch.arange(length, device=start.device) - start  # (b, 1, length), counted from the box's first
    factor = extent / size
    centres = (torch.arange(size, device=start.device).view(-1, 1) + 0.5) * factor  # (b, size, 1)
    weights = _kernel((pixels + 0.5 - centres) / factor.clamp(min=1), interpolation)
    return _normalised(weights.masked_fill_((pixels < 0) | (pixels >= extent), 0)).to(dtype)


@torch.compiler.disable
def _normalised(weights: Tensor) -> Tensor:
    """Scaled to sum to 1, and never compiled.

    torch 2.11's compiler, with triton 3.6, makes one kernel of this and of what comes before it, which on an H200 gets
    some entries wrong, others in every call (docs/LOG.md).
    """
    return weights / weights.sum(-1, keepdim=True)


def _kernel(x: Tensor, interpolation: Interpolation) -> Tensor:
    """The triangle 1 − |x|, or Keys' cubic with a = −½: of 1 … 2 pixels on each side."""
    x = x.abs()
    if interpolation == "bilinear":
        return (1 - x).clamp_(min=0)
    inner = (1.5 * x - 2.5) * x * x + 1
    x = x.clamp(max=2)  # where the outer part is zero
    return torch.where(x < 1, inner, ((2.5 - 0.5 * x) * x - 4) * x + 2)


def centre_weights(
    length: int, size: int, resized: int, interpolation: Interpolation, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Weights (size, length) of the centre `size` of `length` pixels that were resized to `resized` first.

    Unlike those of a box, its filters see what lies beyond the centre.
    """
    start, extent = torch.zeros(1, device=device), torch.full((1,), length, device=device)
    first = round((resized - size) / 2)
    return resample_weights(start, extent, length, resized, interpolation, dtype)[0, first : first + size]


def shifted_weights(weights: Tensor, shifts: Tensor) -> Tensor:
    """Weights (b, s, length) of `weights` (s, length) moved by `shifts` (b,): output i is i + shift, black outside."""
    size = len(weights)
    outputs = torch.arange(size, device=weights.device) + shifts.view(-1, 1)  # (b, s)
    inside = ((outputs >= 0) & (outputs < size)).to(weights.dtype)
    return weights[outputs.clamp(0, size - 1)] * inside.unsqueeze(-1)


def resample(images: Tensor, rows: Tensor, columns: Tensor, flips: Tensor | None = None) -> Tensor:
    """R X Cᵀ of images (b, c, H, W), R (b, s, H) and C (b, t, W) → (b, c, s, t), flipped where `flips` (b,)."""
    if flips is not None:
        columns = torch.where(flips.view(-1, 1, 1), columns.flip(1), columns)
    b, c, _, w = images.shape
    lines = images.transpose(1, 2).to(rows.dtype, memory_format=torch.contiguous_format)  # (b, H, c, W)
    with torch.autocast(images.device.type, enabled=False):
        lines = torch.bmm(rows.expand(b, -1, -1), lines.flatten(2))  # (b, s, c·W)
        out = torch.bmm(lines.view(b, -1, w), columns.expand(b, -1, -1).mT)  # (b, s·c, t)
    return out.view(b, -1, c, out.shape[-1]).transpose(1, 2)


def crop_and_resize(
    images: Tensor, boxes: Tensor, flips: Tensor | None, size: int, interpolation: Interpolation = "bicubic"
) -> Tensor:
    """The boxes (b, 4) of uint8 images (b, c, H, W), resized to `size` and flipped where `flips` (b,), as 0…255.

    On CUDA the products are of half precision (and accumulate in single), elsewhere of single.
    """
    dtype = product_dtype(images.device)
    top, left, h, w = boxes.unbind(1)
    rows = resample_weights(top, h, images.shape[2], size, interpolation, dtype)
    columns = resample_weights(left, w, images.shape[3], size, interpolation, dtype)
    return resample(images, rows, columns, flips)


def product_dtype(device: torch.device) -> torch.dtype:
    return torch.float16 if device.type == "cuda" else torch.float32
