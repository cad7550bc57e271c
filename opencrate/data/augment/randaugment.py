"""RandAugment of a whole set at once, on the device where it lies.

Every picture draws its operations as in torchvision's RandAugment; pictures with the same operation and sign are
processed together. Colours are changed by torchvision's functions for tensors, whose results are within 1 of 255 of
Pillow's, which `transforms` uses for one picture at a time. Shearing, shifting and rotating are Pillow's to the bit:
torchvision's functions for tensors have no bicubic filter and blend the border with black. Pictures have the network's
input size here, and their own size in `transforms`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torchvision import transforms as T
from torchvision.transforms.v2 import functional as F

VALUES = 2**24  # pixel values that are processed together: 5,461 colour pictures of 32 × 32

Matrix = tuple[float, float, float, float, float, float]
"""a, b, c, d, e, f: the pixel at (x, y) comes from (a x + b y + c, d x + e y + f)."""

COLOURS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "Identity": lambda images, _: images,
    "Brightness": lambda images, magnitude: F.adjust_brightness(images, 1 + magnitude),
    "Color": lambda images, magnitude: F.adjust_saturation(images, 1 + magnitude),
    "Contrast": lambda images, magnitude: F.adjust_contrast(images, 1 + magnitude),
    "Sharpness": lambda images, magnitude: F.adjust_sharpness(images, 1 + magnitude),
    "Posterize": lambda images, magnitude: F.posterize(images, int(magnitude)),
    "Solarize": lambda images, magnitude: F.solarize(images, magnitude),
    "AutoContrast": lambda images, _: F.autocontrast(images),
    "Equalize": lambda images, _: F.equalize(images),
}


def augment_images(images: Tensor, augment: T.RandAugment, generator: torch.Generator) -> None:
    """Apply RandAugment to uint8 images (n, c, H, W) in place: `augment.num_ops` rounds of one operation each."""
    together = max(1, VALUES // images[0].numel())
    choices = variants(augment, *images.shape[2:])
    for _ in range(augment.num_ops):
        drawn = torch.randint(len(choices), (len(images),), generator=generator)
        groups = drawn.argsort().to(images.device).split(drawn.bincount(minlength=len(choices)).tolist())
        for (name, magnitude), group in zip(choices, groups, strict=True):
            for part in group.split(together):
                images[part] = operate(images[part], name, magnitude, augment.interpolation)


def variants(augment: T.RandAugment, height: int, width: int) -> list[tuple[str, float]]:
    """torchvision's operations, each twice: with its magnitude, and with the opposite one if it has a sign."""
    table = augment._augmentation_space(augment.num_magnitude_bins, (height, width))
    chosen = {name: float(m[augment.magnitude] if m.ndim else m) for name, (m, _) in table.items()}
    return [(name, sign * chosen[name] if table[name][1] else chosen[name]) for name in table for sign in (1, -1)]


def operate(images: Tensor, name: str, magnitude: float, mode: T.InterpolationMode) -> Tensor:
    if name in COLOURS:
        with torch.autocast(images.device.type, enabled=False):  # the caller may be under autocast
            changed: Tensor = COLOURS[name](images, magnitude)
        return changed
    return _transform(images, _source(name, magnitude, *images.shape[2:]), mode)


def _source(name: str, magnitude: float, height: int, width: int) -> Matrix:
    """Shears keep the upper left corner, rotations the centre; shifts are by whole pixels."""
    angle = math.radians(magnitude % 360)
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)  # as Pillow rounds them
    x, y = width / 2, height / 2
    matrices: dict[str, Matrix] = {
        "ShearX": (1, magnitude, 0, 0, 1, 0),
        "ShearY": (1, 0, 0, magnitude, 1, 0),
        "TranslateX": (1, 0, -int(magnitude), 0, 1, 0),
        "TranslateY": (1, 0, 0, 0, 1, -int(magnitude)),
        "Rotate": (cos, -sin, (sin * y - cos * x) + x, sin, cos, (-sin * x - cos * y) + y),
    }
    return matrices[name]


def _transform(images: Tensor, source: Matrix, mode: T.InterpolationMode) -> Tensor:
    """Images (n, c, H, W) as Pillow's Image.transform gives them: edges are continued, and black lies beyond them.

    In double precision, because Pillow rounds down: a whole number must not become a little less.
    """
    a, b, c, d, e, f = source
    (height, width), device = images.shape[2:], images.device
    x = torch.arange(width, device=device, dtype=torch.float64) + 0.5
    y = torch.arange(height, device=device, dtype=torch.float64)[:, None] + 0.5
    x, y = a * x + b * y + c, d * x + e * y + f  # (H, W): where each pixel comes from
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    left, top = (x - 0.5).floor(), (y - 0.5).floor()
    mix: Callable[..., Tensor] = _cubic if mode == T.InterpolationMode.BICUBIC else _linear
    taps = range(-1, 3) if mix is _cubic else range(2)

    def pixels(row: int, column: int) -> Tensor:
        rows, columns = (top + row).clamp(0, height - 1).long(), (left + column).clamp(0, width - 1).long()
        return images[:, :, rows, columns].short()

    lines = (mix(*(pixels(row, column) for column in taps), x - 0.5 - left) for row in taps)
    return (mix(*lines, y - 0.5 - top).clamp_(0, 255) * inside).to(torch.uint8)


def _linear(v0: Tensor, v1: Tensor, t: Tensor) -> Tensor:
    return v0 + (v1 - v0) * t


def _cubic(v0: Tensor, v1: Tensor, v2: Tensor, v3: Tensor, t: Tensor) -> Tensor:
    """Keys' cubic with a = −1 between v1 and v2."""
    return v1 + t * (v2 - v0 + t * (2 * (v0 - v1) + v2 - v3 + t * (v1 - v0 + v3 - v2)))
