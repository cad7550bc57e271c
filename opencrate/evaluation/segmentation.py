"""Segmentation that nobody trained for: which patches belong to the object, compared with masks drawn by hand.

    attention   how much the token that is classified attends to a patch, by a head of one of the last layers
    code        an entry of the sparse code of a patch; of a network without codes, of its token, with either sign
    cut         the normalised cut of a picture's tokens: y of the second smallest λ in (D − W) y = λ D y, where W says
                which tokens are alike and D has its row sums; the side that lies less along the border is the object
    centre      nothing of the picture: how near a patch is to the middle
    grid        how much of a patch is object, by the mask itself: the best that patches can do

A score of the patches is interpolated to pixels. A rule makes a mask of it: the highest share q of the picture's
pixels, or those above its mean by t standard deviations. Layer, head or entry, and rule are chosen on training
pictures, for each method alike; nothing else is learned. IoU is measured on validation pictures; pixels of a mask's
border are not counted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision import transforms as T

from ..data.augment.transforms import evaluation_transform
from ..data.datasets.decoding import decode, with_channels
from ..data.datasets.pictures import Folder
from ..data.feeds.feed import spread
from ..data.opening import split_folder
from ..data.settings import Dataset
from ..errors import one_line
from ..files import PICTURE_BYTES, read_bytes
from ..inspection.classified import classified_attention, on_grid
from ..stack import is_stack, trajectory

LAYERS = 3  # the last ones, which are asked
RULES = (*(("share", q) for q in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)), *(("level", t) for t in (-0.5, 0.0, 0.5, 1.0)))
TOGETHER = 2**24  # pixels of masks that are compared at once
OBJECT, BORDER = 1, 3  # in a trimap; 2 is background

Scores = Callable[[Any, Tensor], Tensor]
"""A network and pictures (b, c, H, W) → scores of patches by every candidate (b, candidates, h, w)."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Pictures as a network takes them (n, c, S, S), and for every pixel (n, S, S) whether it is object, and counts."""

    images: Tensor
    shown: Tensor  # uint8 (n, S, S, 3)
    objects: Tensor
    counted: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device) -> "Examples":
        return Examples(self.images.to(device), self.shown, self.objects.to(device), self.counted.to(device))


@dataclass(frozen=True, eq=False)
class Segmented:
    """What a method reaches: IoU of every validation picture (n,), its masks (n, S, S), and what was chosen for it."""

    method: str
    choice: str
    iou: Tensor
    masks: Tensor


def read_examples(folder: Path, split: str, data: Dataset, count: int) -> Examples:
    """`count` pictures from all classes of a split, 0 for all; trimaps/CLASS/NAME.png has a mask for CLASS/NAME.jpg."""
    pictures = Folder(split_folder(folder, split), data.in_chans)
    whole, mean, std = evaluation_transform(data), torch.tensor(data.mean), torch.tensor(data.std)
    nearest = T.Compose(
        [T.Resize(data.eval_resize, T.InterpolationMode.NEAREST), T.CenterCrop(data.size), T.PILToTensor()]
    )
    images, trimaps = [], []
    for i in spread(torch.from_numpy(pictures.targets), count or len(pictures)).tolist():
        file, picture = Path(pictures.files[i]), pictures.picture(i)
        mask = folder / "trimaps" / pictures.classes[pictures.targets[i]] / f"{file.stem}.png"
        if not mask.is_file():
            raise ValueError(f"{one_line(str(mask), 200)} is missing: a mask is needed for every picture")
        trimap = decode(read_bytes(mask, PICTURE_BYTES), 1)
        if trimap.size != picture.size:
            raise ValueError(f"{one_line(str(mask), 200)} is not of its picture's size")
        images.append(whole(with_channels(picture, data.in_chans)))
        trimaps.append(nearest(trimap)[0])
    pixels, marks = torch.stack(images), torch.stack(trimaps)
    normalised = (pixels / 255 - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)
    return Examples(normalised, pixels.expand(-1, 3, -1, -1).permute(0, 2, 3, 1), marks == OBJECT, marks != BORDER)


def attention(network: Any, images: Tensor) -> Tensor:
    """Of what is classified, by every head of the last layers."""
    return classified_attention(network, images, LAYERS)


def code(network: Any, images: Tensor) -> Tensor:
    """Every entry of the codes of the last layers, or of the tokens."""
    if not is_stack(network):
        tokens = torch.cat(_tokens(network, images), -1)
        return on_grid(network, torch.cat([tokens, -tokens], -1).mT)
    steps = list(trajectory(network, images))[-LAYERS:]
    codes = [step.code for step in steps if step.code is not None]
    if not codes:
        raise ValueError("the network's sparsification hands out no code")
    return on_grid(network, torch.cat(codes, -1)[:, _prefix(network) :].mT)


def cut(network: Any, images: Tensor) -> Tensor:
    """The cut of each of the last layers; tokens are alike if their cosine is above 0.2, or above the mean cosine."""
    height, width = network.patch_embed.grid_size
    border = torch.ones(height, width, dtype=torch.bool, device=images.device)
    border[1:-1, 1:-1] = False
    scores = []
    for tokens in _tokens(network, images):
        unit = F.normalize(tokens.float(), dim=-1)
        cosines = unit @ unit.mT  # (b, n, n)
        for least in (torch.tensor(0.2, device=images.device), cosines.mean((1, 2), keepdim=True)):
            W = torch.where(cosines > least, 1.0, 1e-5)
            scale = W.sum(-1).rsqrt()
            vectors = torch.linalg.eigh(-scale[:, :, None] * W * scale[:, None])[1]  # those of I − D^{-½}WD^{-½}
            second = scale * vectors[..., 1]
            outside, inside = (second[:, where.flatten()].mean(-1, keepdim=True) for where in (border, ~border))
            scores.append(torch.where(outside > inside, -second, second))
    return on_grid(network, torch.stack(scores, 1))


def centre(network: Any, images: Tensor) -> Tensor:
    axes = (torch.linspace(-1, 1, size, device=images.device) for size in network.patch_embed.grid_size)
    y, x = torch.meshgrid(*axes, indexing="ij")
    return -(y.square() + x.square()).expand(len(images), 1, -1, -1)


METHODS: dict[str, Scores] = {"attention": attention, "code": code, "cut": cut, "centre": centre}


def _prefix(network: Any) -> int:
    return int(getattr(network, "num_prefix_tokens", 1))


def _tokens(network: Any, images: Tensor) -> list[Tensor]:
    """Of the patches, after each of the last layers, by timm's interface for all networks."""
    last = list(range(len(network.blocks)))[-LAYERS:]
    return list(network.forward_intermediates(images, last, output_fmt="NLC", intermediates_only=True))


@torch.inference_mode()
def segment(network: Any, choosing: Examples, validation: Examples, batch: int = 32) -> list[Segmented]:
    """Every method's IoU on validation pictures, with what is best on those for choosing; and what patches can do."""
    results, device = [], next(network.parameters()).device
    choosing, validation = choosing.to(device), validation.to(device)
    for name, scores in METHODS.items():
        tables = [
            _compared(scores(network, images), objects, counted) for images, objects, counted in _parts(choosing, batch)
        ]
        means = torch.cat(tables, -1).mean(-1)  # (candidates, rules)
        candidate, rule = divmod(int(means.argmax()), len(RULES))
        masks = [
            _masked(_upsampled(scores(network, images)[:, [candidate]], images.shape[-1]), RULES[rule])[:, 0]
            for images, *_ in _parts(validation, batch)
        ]
        choice = f"{name} {candidate + 1} of {len(means)}, " if len(means) > 1 else ""
        results.append(_segmented(name, choice + _in_words(RULES[rule]), torch.cat(masks), validation))
    patches = F.adaptive_avg_pool2d(validation.objects.float()[:, None], network.patch_embed.grid_size)
    best = _upsampled(patches, validation.images.shape[-1])[:, 0] > 0.5
    return [*results, _segmented("grid", "the mask itself, seen in patches", best, validation)]


def _parts(examples: Examples, batch: int) -> Iterator[tuple[Tensor, ...]]:
    parts = (part.split(batch) for part in (examples.images, examples.objects, examples.counted))
    return zip(*parts, strict=True)


def _segmented(method: str, choice: str, masks: Tensor, examples: Examples) -> Segmented:
    return Segmented(method, choice, intersection_over_union(masks, examples.objects, examples.counted), masks)


def _compared(scores: Tensor, objects: Tensor, counted: Tensor) -> Tensor:
    """IoU (candidates, rules, b) of every candidate's scores (b, candidates, h, w) by every rule."""
    size = objects.shape[-1]
    together = max(1, TOGETHER // objects.numel())
    parts = []
    for part in scores.split(together, 1):
        pixels = _upsampled(part, size)
        masks = (_masked(pixels, rule) for rule in RULES)
        rows = [intersection_over_union(mask, objects[:, None], counted[:, None]) for mask in masks]
        parts.append(torch.stack(rows, -1))  # (b, candidates, rules)
    return torch.cat(parts, 1).permute(1, 2, 0)


def _upsampled(scores: Tensor, size: int) -> Tensor:
    return F.interpolate(scores.float(), size=(size, size), mode="bilinear")


def _masked(pixels: Tensor, rule: tuple[str, float]) -> Tensor:
    """Scores of pixels (…, S, S) → masks."""
    kind, value = rule
    flat = pixels.flatten(-2)
    if kind == "share":
        least = flat.kthvalue(round((1 - value) * flat.shape[-1]), -1, keepdim=True).values
    else:
        least = flat.mean(-1, keepdim=True) + value * flat.std(-1, keepdim=True)
    return pixels > least[..., None]


def _in_words(rule: tuple[str, float]) -> str:
    kind, value = rule
    return f"the highest {value:.0%} of the pixels" if kind == "share" else f"above the mean by {value:g} deviations"


def intersection_over_union(masks: Tensor, objects: Tensor, counted: Tensor) -> Tensor:
    """|mask ∩ object| / |mask ∪ object| over pixels that count, (…,) of masks (…, S, S); 1 where both are empty."""
    both, either = (masks & objects & counted).sum((-2, -1)), ((masks | objects) & counted).sum((-2, -1))
    return torch.where(either > 0, both / either.clamp_min(1), 1.0)
