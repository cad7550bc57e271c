"""Open what is analysed: a network by run, checkpoint or name, and its own pictures or those that are named."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from .data import Augmentation, Dataset, PictureFeed, open_feed
from .data.augment.transforms import evaluation_transform
from .data.datasets.decoding import with_channels
from .data.datasets.pictures import Files
from .data.feeds.feed import spread
from .data.feeds.loading import Loaded
from .data.settings import ANY
from .models.registry import network_suggestion
from .run_folder import run_of
from .run_recipe import data_of, load_network
from .settings import Studying
from .stack import is_stack

log = logging.getLogger("opencrate")

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"}


@dataclass(frozen=True, eq=False)
class Gallery:
    """A few pictures: normalised for the network (b, c, H, W), and to be shown, uint8 (b, H, W, 3)."""

    images: Tensor
    shown: np.ndarray
    targets: tuple[int | None, ...]


@dataclass(frozen=True, eq=False)
class Source:
    """A set of pictures from which samples are read."""

    name: str
    feed: PictureFeed = field(repr=False)
    data: Dataset
    labelled: bool = True

    def batches(self, samples: int, batch: int = 32) -> Iterator[Tensor]:
        """A stratified sample of the pictures; those that do not decode are left out."""
        return (images for images, _ in self.feed.sample(samples, batch))

    def gallery(self, count: int, chosen: Sequence[int] = (), prefixes: Sequence[int] = ()) -> Gallery:
        """The pictures of these numbers first, then a sample of the others, stratified by class: `count` in all.

        `prefixes` are smaller counts; so many pictures from the start are then a stratified sample of the gallery.
        """
        total = len(self.feed)
        for number in chosen:
            if not 0 <= number < total:
                raise ValueError(f"there is no picture {number}: the {self.name} are numbered from 0 to {total - 1}")
        targets, is_other = self.feed.targets.cpu(), torch.ones(total, dtype=torch.bool)
        is_other[list(chosen)] = False
        others = is_other.nonzero().flatten()
        sizes = [size - len(chosen) for size in sorted({*prefixes, count}) if len(chosen) < size <= count]
        numbers = torch.cat([torch.tensor(chosen, dtype=torch.long), _nested_samples(targets, others, sizes)])
        images, targets = (torch.cat(parts) for parts in zip(*self.feed.read(numbers, 32), strict=True))
        decoded = (targets >= 0).cpu()
        for number, is_decoded in zip(chosen, decoded.tolist(), strict=False):
            if not is_decoded:
                raise ValueError(f"picture {number} of the {self.name} does not decode")
        if not decoded.any():
            raise ValueError(f"none of {count} pictures of the {self.name} decodes")
        images, targets = images[decoded.to(images.device)], targets[decoded.to(targets.device)]
        return Gallery(images, self.pixels(images), tuple(targets.tolist() if self.labelled else [None] * len(images)))

    def pixels(self, images: Tensor) -> np.ndarray:
        """Normalised pictures (b, c, H, W) as they look, uint8 (b, H, W, 3)."""
        shown = ((images.float() * self.feed.std + self.feed.mean).clamp(0, 1) * 255).round().byte()
        return shown.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).cpu().numpy()


def gallery_of(image: Image.Image, data: Dataset) -> Gallery:
    """One picture, turned upright, as evaluation prepares it."""
    pixels = evaluation_transform(data)(with_channels(ImageOps.exif_transpose(image), data.in_chans))
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (data.mean, data.std))
    shown = pixels.expand(3, -1, -1).permute(1, 2, 0).numpy()
    return Gallery(((pixels.float() - mean * 255) / (std * 255))[None], shown[None], (None,))


def _nested_samples(targets: Tensor, numbers: Tensor, sizes: Sequence[int]) -> Tensor:
    """The largest size of these pictures, so ordered that for every size the first so many are a stratified sample."""
    if not sizes:
        return numbers[:0]
    sample = numbers[spread(targets[numbers], sizes[-1])]
    inner = _nested_samples(targets, sample, sizes[:-1])
    return torch.cat([inner, sample[~torch.isin(sample, inner)]])


def pictures_in(folder: Path) -> list[Path]:
    """All pictures in a folder and its subfolders, sorted by name."""
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    if not files:
        raise ValueError(f"there is no picture in {folder}")
    return files


def _unlabelled(folder: Path, in_chans: int) -> Files:
    """The pictures in a folder, whose classes are unknown."""
    if not folder.is_dir():
        raise ValueError(f"--images {folder} is not a folder")
    files = pictures_in(folder)
    return Files(list(map(str, files)), np.zeros(len(files), int), ("unknown",), in_chans)


def open_network(source: str) -> tuple[nn.Module, str | None]:
    """The network of a run, a checkpoint or, with fresh weights, a registered name; and a note on it, if any."""
    if source in timm.list_models():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = timm.create_model(source).eval()
        return model, f"{source} has fresh weights: a name was given, not a checkpoint"
    path = Path(source).expanduser()
    if not path.exists() and not any(mark in source for mark in "/.:"):
        raise ValueError(f"{source} is not a run, a checkpoint or the name of a network{network_suggestion(source)}")
    return load_network(source), None


def open_sources(source: str, model: Any, chosen: Studying, device: str = "cpu", training: bool = True) -> list[Source]:
    """The pictures in a folder, or the validation and training pictures of a set, of a recipe or of the run."""
    taken = data_for(model)
    if chosen.images is not None:
        folder = Path(chosen.images).expanduser()
        feed = Loaded(_unlabelled(folder, taken.in_chans), taken, Augmentation(), augmented=False, device=device)
        return [Source(f"folder {folder.name}", feed, taken, labelled=False)]
    if chosen.data is not None:
        data = replace(taken, name=chosen.data, max_decode_failures=0.01, num_classes=ANY)
    elif chosen.recipe is None and run_of(source) is None:
        raise ValueError(
            f"no run folder found for {source}, so its dataset is unknown; pass --images FOLDER, --recipe NAME"
            " or --data NAME"
        )
    else:
        data = replace(data_of(source, chosen.recipe), size=taken.size)
    data = data if chosen.root is None else replace(data, root=chosen.root)
    if data.in_chans != taken.in_chans:
        raise ValueError(f"the network takes pictures of {taken.in_chans} channels, but these have {data.in_chans}")
    sources = [Source("validation pictures", _still(data, False, device), data)]
    if training:
        try:
            sources.append(Source("training pictures", _still(data, True, device), data))
        except ValueError as error:  # they are only a comparison
            log.warning("the training pictures are left out: %s", error)
    return sources


def require_comparable(name: str, other: Any, model: Any) -> Any:
    """The other network, if it has layers to compare and takes the same pictures."""
    if not is_stack(other):
        raise ValueError(f"{name} has no CRATE layers, so it has no R^c to compare")
    for what in ("in_chans", "img_size"):
        theirs, ours = getattr(other.patch_embed, what), getattr(model.patch_embed, what)
        if theirs != ours:
            raise ValueError(f"{name} takes other pictures: its {what} is {theirs}, but here it is {ours}")
    return other


def _still(data: Dataset, training: bool, device: str) -> PictureFeed:
    """A split, where an error names the options of the tools instead of those of a recipe."""
    try:
        return open_feed(data, None, training, device=device)
    except ValueError as error:
        raise ValueError(str(error).replace("--data.", "--").replace("--num-classes", "a recipe with")) from error


def data_for(model: Any) -> Dataset:
    """How a network takes pictures, by its timm record."""
    record = model.pretrained_cfg or {}
    channels, height, width = record.get("input_size", (3, 224, 224))
    patch_embed = getattr(model, "patch_embed", None)
    channels = getattr(patch_embed, "in_chans", channels)
    height, width = getattr(patch_embed, "img_size", None) or (height, width)  # it may be built for another size
    if height != width:
        raise ValueError(f"the network takes pictures of {height} × {width} pixels; only squares are supported")
    mean, std = (tuple(record.get(name, (0.5,) * channels)) for name in ("mean", "std"))
    if len(mean) != channels:
        mean, std = (0.5,) * channels, (0.5,) * channels
    return Dataset(
        "folder",
        num_classes=max(1, model.num_classes),
        size=height,
        in_chans=channels,
        mean=mean,
        std=std,
        crop_pct=record.get("crop_pct", 0.875),
        max_decode_failures=1.0,
    )
