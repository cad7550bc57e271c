"""Small sets: decoded once to uint8, kept on the training device, cropped, flipped and normalised there in batches."""

import numpy as np
import torch
from torch import Tensor

from .feed import Batches, Feed, Split, generator, order
from .pictures import Broken, Pictures, with_channels
from .settings import Augmentation, Dataset
from .transforms import Transform, evaluation_transform, whole_transform

__all__ = ["Resident", "fits"]

LIMIT = 2**31  # bytes of uint8 pictures that may live on the device


def fits(pictures: Pictures, data: Dataset, augment: Augmentation, varied: bool) -> bool:
    """Whether the split is small enough, and varied only by what can be done in batches on the device, if at all."""
    by_batches = not varied or (augment.crop != "resized" and not augment.randaugment)
    return by_batches and len(pictures) * data.in_chans * data.size**2 <= LIMIT


class Resident(Feed):
    """A split in the device's memory."""

    def __init__(
        self,
        pictures: Pictures,
        data: Dataset,
        augment: Augmentation,
        varied: bool,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.classes, self.seed, self.size = pictures.classes, seed, data.size
        self.flip = augment.flip if varied else 0.0
        self.padding = round(augment.padding * data.size) if varied and augment.crop == "padded" else 0
        self.broken = Broken(data.broken, len(pictures))
        prepared = whole_transform if varied else evaluation_transform
        images, targets = self._decode(pictures, data, prepared(data, augment.interpolation))
        border = self.padding
        images = np.pad(images, ((0, 0), (0, 0), (border, border), (border, border)))
        self.images = torch.from_numpy(images).to(device)  # (n, c, H + 2·border, W + 2·border)
        self.targets = torch.from_numpy(targets).to(device)
        mean, std = (torch.tensor(v, device=device).view(1, -1, 1, 1) for v in (data.mean, data.std))
        self.scale, self.shift = 1 / (255 * std), -mean / std
        self.channels = torch.arange(data.in_chans, device=device).view(1, -1, 1, 1)
        self.pixels = torch.arange(data.size, device=device)

    def _decode(self, pictures: Pictures, data: Dataset, transform: Transform) -> tuple[np.ndarray, np.ndarray]:
        images = np.empty((len(pictures), data.in_chans, data.size, data.size), np.uint8)
        targets = np.empty(len(pictures), np.int64)
        kept = 0
        for i in range(len(pictures)):
            try:
                images[kept] = transform(with_channels(pictures.picture(i), data.in_chans)).numpy()
            except (OSError, ValueError) as error:
                self.broken.add(pictures.name(i), str(error))
                continue
            targets[kept] = pictures.target(i)
            kept += 1
        if kept == 0:
            raise ValueError(f"none of {len(pictures)} pictures decodes")
        return images[:kept], targets[:kept]

    def __len__(self) -> int:
        return len(self.images)

    def train(self, epoch: int, start: int, split: Split) -> Batches:
        device, draw = self.images.device, generator(self.seed, epoch, 1)
        samples = order(len(self), self.seed, epoch).to(device)
        shifts = torch.randint(2 * self.padding + 1, (len(self), 2), generator=draw).to(device)
        flips = (torch.rand(len(self), generator=draw) < self.flip).to(device)
        for step in range(start, self.steps(split.batch)):
            positions = torch.arange(step * split.batch, (step + 1) * split.batch, device=device)
            for mine in split.micro_batches(positions):
                chosen = samples[mine]
                yield self.crop(chosen, shifts[mine], flips[mine]), self.targets[chosen]

    def evaluate(self, batch: int, rank: int = 0, world: int = 1) -> Batches:
        for chosen in torch.arange(len(self), device=self.images.device)[rank::world].split(batch):
            if len(chosen):  # more processes than pictures leave some without
                yield self.normalise(self.images[chosen]), self.targets[chosen]

    def crop(self, chosen: Tensor, shifts: Tensor, flips: Tensor) -> Tensor:
        """Pictures `chosen` (b,), moved by `shifts` (b, 2) within their border and flipped where `flips` (b,)."""
        rows = shifts[:, :1] + self.pixels  # (b, H)
        columns = shifts[:, 1:] + torch.where(flips[:, None], self.pixels.flip(0), self.pixels)  # (b, W)
        return self.normalise(
            self.images[chosen.view(-1, 1, 1, 1), self.channels, rows[:, None, :, None], columns[:, None, None, :]]
        )

    def normalise(self, images: Tensor) -> Tensor:
        return torch.addcmul(self.shift, images.float(), self.scale)
