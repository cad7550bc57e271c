"""Small sets: decoded once to uint8, kept on the training device, cropped, flipped and normalised there in batches.

RandAugment is applied to a copy of the whole set at the start of an epoch, which is freed at its end.
"""

import numpy as np
import torch
from torch import Tensor

from ..augment.crops import erased_boxes
from ..augment.randaugment import augment_images
from ..augment.transforms import evaluation_transform, randaugment, whole_transform
from ..datasets.decoding import with_channels
from ..datasets.pictures import Arrays, Pictures
from ..settings import Augmentation, Dataset
from .feed import Batches, PictureFeed, Split, generator, order

LIMIT = 2**31  # bytes of uint8 pictures that may live on the device


def fits(pictures: Pictures, data: Dataset, augment: Augmentation, augmented: bool) -> bool:
    """Whether the split is small enough, and its augmentation, if any, can be done in batches on the device."""
    by_batches = not augmented or (augment.crop != "resized" and not augment.randaugment.startswith("rand"))
    return by_batches and len(pictures) * data.in_chans * data.size**2 <= LIMIT


class Resident(PictureFeed):
    """A split in the device's memory."""

    def __init__(
        self,
        pictures: Pictures,
        data: Dataset,
        augment: Augmentation,
        augmented: bool,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(pictures, data, seed, device)
        self.size = data.size
        self.flip, self.erase = (augment.flip, augment.erase) if augmented else (0.0, 0.0)
        self.padding = round(augment.padding * data.size) if augmented and augment.crop == "padded" else 0
        self.randaugment = randaugment(augment, data.in_chans) if augmented and augment.randaugment else None
        images, decoded = self._decode(pictures, data, augment, augmented)
        border = (self.padding, self.padding)
        self.images = torch.from_numpy(np.pad(images, ((0, 0), (0, 0), border, border))).to(device)  # (n, c, H, W)
        self.targets = self.targets[decoded].to(device)
        self.scale, self.shift = 1 / (255 * self.std), -self.mean / self.std
        self.channels = torch.arange(data.in_chans, device=device).view(1, -1, 1, 1)
        self.pixels = torch.arange(data.size, device=device)

    def _decode(
        self, pictures: Pictures, data: Dataset, augment: Augmentation, augmented: bool
    ) -> tuple[np.ndarray, list[int]]:
        """The pictures (n, c, H, W), without a border, and the numbers of those that decode."""
        if isinstance(pictures, Arrays) and _is_prepared(pictures.images, data, augmented):
            images = pictures.images.reshape(len(pictures), data.size, data.size, data.in_chans)
            return images.transpose(0, 3, 1, 2), list(range(len(pictures)))
        transform = (whole_transform if augmented else evaluation_transform)(data, augment.interpolation)
        images, decoded = np.empty((len(pictures), data.in_chans, data.size, data.size), np.uint8), list[int]()
        for i in range(len(pictures)):
            try:
                images[len(decoded)] = transform(with_channels(pictures.picture(i), data.in_chans)).numpy()
            except (OSError, ValueError) as error:
                self.decode_failures.add(pictures.name(i), str(error))
            else:
                decoded.append(i)
        return images[: len(decoded)], decoded

    def train(self, epoch: int, start: int, split: Split) -> Batches:
        draw, images = generator(self.seed, epoch, 1), self._augmented(epoch)
        samples = order(len(self), self.seed, epoch).to(self.device)
        shifts = torch.randint(2 * self.padding + 1, (len(self), 2), generator=draw).to(self.device)
        flips = (torch.rand(len(self), generator=draw) < self.flip).to(self.device)
        boxes = self._erased(draw).to(self.device) if self.erase else None
        for step in range(start, self.steps(split.batch)):
            positions = torch.arange(step * split.batch, (step + 1) * split.batch, device=self.device)
            for mine in split.micro_batches(positions):
                chosen = samples[mine]
                batch = self.crop(images, chosen, shifts[mine], flips[mine])
                yield batch if boxes is None else self.blank(batch, boxes[mine]), self.targets[chosen]

    def read(self, numbers: Tensor, batch: int) -> Batches:
        for chosen in numbers.to(self.device).split(batch):
            if len(chosen):  # with more processes than pictures some have none
                yield self.normalise(self.images[chosen]), self.targets[chosen]

    def _augmented(self, epoch: int) -> Tensor:
        if self.randaugment is None:
            return self.images
        images, inner = self.images.clone(), slice(self.padding, self.padding + self.size)
        augment_images(images[:, :, inner, inner], self.randaugment, generator(self.seed, epoch, 2))
        return images

    def _erased(self, draw: torch.Generator) -> Tensor:
        """The box (n, 4) that is erased at every position in the epoch's order, empty where none is."""
        boxes = erased_boxes(len(self), self.size, self.size, draw)
        return boxes * (torch.rand(len(self), 1, generator=draw) < self.erase)

    def crop(self, images: Tensor, chosen: Tensor, shifts: Tensor, flips: Tensor) -> Tensor:
        """Pictures `chosen` (b,), moved by `shifts` (b, 2) within their border and flipped where `flips` (b,)."""
        rows = shifts[:, :1] + self.pixels  # (b, H)
        columns = shifts[:, 1:] + torch.where(flips[:, None], self.pixels.flip(0), self.pixels)  # (b, W)
        return self.normalise(
            images[chosen.view(-1, 1, 1, 1), self.channels, rows[:, None, :, None], columns[:, None, None, :]]
        )

    def blank(self, batch: Tensor, boxes: Tensor) -> Tensor:
        """The normalised `batch`, zero in its boxes (b, 4) of top, left, height, width."""
        top, left, h, w = boxes.view(-1, 4, 1).unbind(1)  # (b, 1)
        rows, columns = ((self.pixels >= a) & (self.pixels < a + n) for a, n in ((top, h), (left, w)))
        return batch.masked_fill_((rows[:, :, None] & columns[:, None]).unsqueeze(1), 0)

    def normalise(self, images: Tensor) -> Tensor:
        return torch.addcmul(self.shift, images.float(), self.scale)


def _is_prepared(images: np.ndarray, data: Dataset, augmented: bool) -> bool:
    """Whether the pictures have the network's size and channels already, and evaluation does not resize them."""
    shape = (data.size, data.size, 3) if data.in_chans == 3 else (data.size, data.size)
    return images.shape[1:] == shape and (augmented or data.eval_resize == data.size)
