"""torchvision's transforms from one picture to a uint8 square of the network's size, for evaluation and training."""

import re
from collections.abc import Callable

from PIL import Image
from torch import Tensor
from torchvision import transforms as T

from ..settings import Augmentation, Dataset

Transform = Callable[[Image.Image], Tensor]
"""A picture → uint8 (c, size, size)."""


def evaluation_transform(data: Dataset, interpolation: str = "bicubic") -> Transform:
    """The shorter side to size/crop_pct, then the centre."""
    resize = T.Resize(data.eval_resize, T.InterpolationMode(interpolation))
    return T.Compose([resize, T.CenterCrop(data.size), T.PILToTensor()])


def whole_transform(data: Dataset, interpolation: str = "bicubic") -> Transform:
    """The whole picture, whatever its shape: for training without resized crops."""
    return T.Compose([T.Resize((data.size, data.size), T.InterpolationMode(interpolation)), T.PILToTensor()])


def training_transform(data: Dataset, augment: Augmentation) -> Transform:
    """RandAugment, crop, flip, erasing, in this order, drawn from the global random generators of torch and Python."""
    mode = T.InterpolationMode(augment.interpolation)
    whole = T.Resize((data.size, data.size), mode)
    crops: dict[str, list[Callable[..., object]]] = {
        "resized": [T.RandomResizedCrop(data.size, augment.scale, augment.ratio, mode)],
        "padded": [whole, T.RandomCrop(data.size, round(augment.padding * data.size))],
        "none": [whole],
    }
    return T.Compose(
        [
            *([randaugment(augment, data.in_chans)] if augment.randaugment else []),
            *crops[augment.crop],
            T.RandomHorizontalFlip(augment.flip),
            T.PILToTensor(),
            *([T.RandomErasing(augment.erase, value=[round(255 * m) for m in data.mean])] if augment.erase else []),
        ]
    )


def randaugment(augment: Augmentation, in_chans: int) -> Callable[[Image.Image], Image.Image]:
    """torchvision-n2-m14 is torchvision's RandAugment(2, 14); anything that begins with rand is timm's.

    timm clips magnitudes at 10 unless its string lifts the clip (rand-m14-mmax30-n2): two names, two meanings.
    """
    text, mode = augment.randaugment, T.InterpolationMode(augment.interpolation)
    if found := re.fullmatch(r"torchvision-n(\d+)-m(\d+)", text):
        chosen: T.RandAugment = T.RandAugment(int(found[1]), int(found[2]), interpolation=mode)
        if chosen.magnitude >= chosen.num_magnitude_bins:
            raise ValueError(
                f"augment.randaugment {text!r}: torchvision's magnitudes end at {chosen.num_magnitude_bins - 1}"
            )
        return chosen
    if text.startswith("rand"):
        from timm.data.auto_augment import rand_augment_transform

        fill = {"img_mean": (128,) * in_chans}  # timm's own, for as many channels as there are
        try:
            timms: Callable[[Image.Image], Image.Image] = rand_augment_transform(text, fill)
        except (AssertionError, ValueError) as error:
            raise ValueError(f"augment.randaugment {text!r} is not one of timm's strings") from error
        return timms
    raise ValueError(f"augment.randaugment {text!r} is neither torchvision-nN-mM nor one of timm's strings (rand-…)")
