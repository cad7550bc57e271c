"""Small sets: decoded once to uint8, kept on the training device, cropped, flipped and normalised there in batches.

Pictures lie there at the network's size. So crops that are resized are cut from pictures of that size only: of larger
ones they would lose what can be seen from near. RandAugment is applied to a copy of the whole set at the start of an
epoch, which is freed at its end.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..augment.crops import crop_and_resize, crop_boxes, erased_boxes
from ..augment.randaugment import augment_images
from ..augment.transforms import evaluation_transform, randaugment, whole_transform
from ..datasets.decoding import with_channels
from ..datasets.packing import PackedPictures, ahead
from ..datasets.pictures import Arrays, Pictures
from ..settings import Augmentation, Dataset
from .feed import Batches, PictureFeed, Split, generator, order

LIMIT = 2**31  # bytes of uint8 pictures that may live on the device
THREADS, AHEAD = 16, 8  # that decode, for Pillow works without Python's lock; pictures that wait for each
ASKED = 32  # pictures whose size is looked at before a set is read


def fits(pictures: Pictures, data: Dataset, augment: Augmentation, augmented: bool) -> bool:
    """Whether the split is small enough, and its augmentation, if any, can be done in batches on the device."""
    if len(pictures) * data.in_chans * data.size**2 > LIMIT:
        return False
    if not augmented:
        return True
    return not augment.randaugment.startswith("rand") and (augment.crop != "resized" or _are_of_size(pictures, data))


def _are_of_size(pictures: Pictures, data: Dataset) -> bool:
    """Whether all of a few pictures, from all over the set, have the network's size."""
    sizes = set()
    for i in np.linspace(0, len(pictures) - 1, min(ASKED, len(pictures)), dtype=int):
        with suppress(OSError, ValueError):  # one that does not decode is counted when the set is read
            sizes.add(pictures.picture(int(i)).size)
    return sizes == {(data.size, data.size)}


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
        self.augment, self.resized = augment, augmented and augment.crop == "resized"
        self.flip, self.erase = (augment.flip, augment.erase) if augmented else (0.0, 0.0)
        self.padding = round(augment.padding * data.size) if augmented and augment.crop == "padded" else 0
        self.randaugment = randaugment(augment, data.in_chans) if augmented and augment.randaugment else None
        images, decoded = self._decode(pictures, data, augment, augmented)
        self.images = pad(torch.from_numpy(images).to(device), [self.padding] * 4).contiguous()  # (n, c, H, W)
        self.targets = self.targets[decoded].to(device)
        self.scale, self.shift = 1 / (255 * self.std), -self.mean / self.std
        self.channels = torch.arange(data.in_chans, device=device).view(1, -1, 1, 1)
        self.pixels = torch.arange(data.size, device=device)

    def _decode(
        self, pictures: Pictures, data: Dataset, augment: Augmentation, augmented: bool
    ) -> tuple[np.ndarray, list[int]]:
        """The pictures (n, c, H, W), without a border, and the numbers of those that decode."""
        if isinstance(pictures, Arrays | PackedPictures) and _is_prepared(pictures, data, augmented):
            images = pictures.images.reshape(len(pictures), data.size, data.size, data.in_chans)
            return images.transpose(0, 3, 1, 2), list(range(len(pictures)))
        transform = (whole_transform if augmented else evaluation_transform)(data, augment.interpolation)
        images, decoded = np.empty((len(pictures), data.in_chans, data.size, data.size), np.uint8), list[int]()

        def read(i: int) -> str:
            """Picture i into its place, or why it does not decode."""
            try:
                images[i] = transform(with_channels(pictures.picture(i), data.in_chans)).numpy()
            except (OSError, ValueError) as error:
                return str(error) or type(error).__name__
            return ""

        threads = min(THREADS, torch.get_num_threads())
        with ThreadPoolExecutor(threads, "decoding") as pool:
            for i, failure in enumerate(ahead(pool, read, range(len(pictures)), AHEAD * threads)):
                if failure:
                    self.decode_failures.add(pictures.name(i), failure)
                else:
                    decoded.append(i)
        return images if len(decoded) == len(pictures) else images[decoded], decoded

    def train(self, epoch: int, start: int, split: Split) -> Batches:
        draw, images = generator(self.seed, epoch, 1), self._augmented(epoch)
        samples = order(len(self), self.seed, epoch).to(self.device)
        places = self._places(draw).to(self.device)
        flips = (torch.rand(len(self), generator=draw) < self.flip).to(self.device)
        boxes = self._erased(draw).to(self.device) if self.erase else None
        for step in range(start, self.steps(split.batch)):
            positions = torch.arange(step * split.batch, (step + 1) * split.batch, device=self.device)
            for mine in split.micro_batches(positions):
                chosen = samples[mine]
                batch = self.crop(images, chosen, places[mine], flips[mine])
                yield batch if boxes is None else self.blank(batch, boxes[mine]), self.targets[chosen]

    def read(self, numbers: Tensor, batch: int) -> Batches:
        for chosen in numbers.to(self.device).split(batch):
            if len(chosen):  # with more processes than pictures some have none
                yield self.normalise(self.images[chosen]), self.targets[chosen]

    def _places(self, draw: torch.Generator) -> Tensor:
        """Where every position of the epoch is cropped: boxes (n, 4) that are resized, or shifts (n, 2)."""
        if self.resized:
            return crop_boxes(len(self), self.size, self.size, self.augment.scale, self.augment.ratio, draw)
        return torch.randint(2 * self.padding + 1, (len(self), 2), generator=draw)

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

    def crop(self, images: Tensor, chosen: Tensor, places: Tensor, flips: Tensor) -> Tensor:
        """Pictures `chosen` (b,), cut out or moved as `places` (b, …) say, and flipped where `flips` (b,)."""
        if self.resized:
            crops = crop_and_resize(images[chosen], places, flips, self.size, self.augment.interpolation)
            return self.normalise(crops.clamp(0, 255))  # bicubic filters overshoot
        rows = places[:, :1] + self.pixels  # (b, H)
        columns = places[:, 1:] + torch.where(flips[:, None], self.pixels.flip(0), self.pixels)  # (b, W)
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


def _is_prepared(pictures: Arrays | PackedPictures, data: Dataset, augmented: bool) -> bool:
    """Whether the pictures have the network's size and channels already, and evaluation does not resize them."""
    shapes = [(data.size, data.size, data.in_chans), *([(data.size, data.size)] if data.in_chans == 1 else [])]
    return pictures.shape in shapes and (augmented or data.eval_resize == data.size)
