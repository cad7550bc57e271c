"""Packed sets: pictures that `pack` has decoded are read, copied to the device and cropped in whole batches.

They are the central squares of the originals, so a resized crop never sees the ends of an oblong picture, as it would
without packing.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from ..augment.crops import centre_weights, crop_and_resize, crop_boxes, product_dtype, resample, shifted_weights
from ..datasets.packing import PackedPictures, ahead
from ..settings import Augmentation, Dataset
from .feed import Batch, Batches, PictureFeed, Split, generator, order

AHEAD = 4  # batches that are read ahead, each by its own thread
CROPS = 1  # keeps the random numbers of crops apart from other draws of the same step


class Packed(PictureFeed):
    """A packed split. The random numbers of a global batch are drawn together, from seed, epoch and step."""

    def __init__(
        self,
        pictures: PackedPictures,
        data: Dataset,
        augment: Augmentation,
        augmented: bool,
        seed: int = 0,
        device: torch.device | str = "cpu",
        compiled: bool = False,
    ) -> None:
        for name in ("randaugment", "erase"):
            if augmented and getattr(augment, name):
                raise ValueError(f"packed pictures can be cropped and flipped, but augment.{name} is not supported")
        super().__init__(pictures, data, seed, device)
        self.pictures, self.augment, self.size, self.side = pictures, augment, data.size, pictures.index.side
        self.scale, self.shift = 1 / (255 * self.std), -self.mean / self.std
        mode, dtype = augment.interpolation, product_dtype(self.device)
        self.whole = centre_weights(self.side, data.size, data.size, mode, dtype, self.device)
        self.centre = centre_weights(self.side, data.size, data.eval_resize, mode, dtype, self.device)
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        # Without compilation, making the resampling weights takes four times as long as the products with them.
        compiles = compiled and self.device.type == "cuda"
        self.augment_batch = torch.compile(self._augment, dynamic=False) if compiles else self._augment

    def train(self, epoch: int, start: int, split: Split) -> Batches:
        return self._batches(self._draws(epoch, start, split), self.augment_batch)

    def read(self, numbers: Tensor, batch: int) -> Batches:
        parts = ((part, self.targets[part][:, None]) for part in numbers.split(batch) if len(part))
        return self._batches(parts, self._centre)

    def _draws(self, epoch: int, start: int, split: Split) -> Iterator[tuple[Tensor, Tensor]]:
        """The pictures (m,) of every micro-batch, and for each its class, flip and box (m, 6)."""
        samples, places = order(len(self), self.seed, epoch), torch.arange(split.batch)
        for step in range(start, self.steps(split.batch)):
            chosen, draw = samples[step * split.batch :][: split.batch], generator(self.seed, epoch, step, CROPS)
            flips = torch.rand(split.batch, generator=draw) < self.augment.flip
            numbers = torch.cat([torch.stack([self.targets[chosen], flips], 1), self._boxes(split.batch, draw)], 1)
            for mine in split.micro_batches(places):
                yield chosen[mine], numbers[mine]

    def _boxes(self, count: int, draw: torch.Generator) -> Tensor:
        if self.augment.crop == "resized":
            return crop_boxes(count, self.side, self.side, self.augment.scale, self.augment.ratio, draw)
        border = round(self.augment.padding * self.size) if self.augment.crop == "padded" else 0
        shifts = torch.randint(-border, border + 1, (count, 2), generator=draw)
        return torch.cat([shifts, torch.full((count, 2), self.size)], 1)

    def _augment(self, images: Tensor, numbers: Tensor) -> Batch:
        """The crops of images (m, side, side, c), and the classes; the numbers are those of `_draws` and the rows."""
        images, boxes, flips = self._in_order(images, numbers), numbers[:, 2:-1], numbers[:, 1] == 1
        if self.augment.crop == "resized":
            crops = crop_and_resize(images, boxes, flips, self.size, self.augment.interpolation)
        else:
            rows, columns = (shifted_weights(self.whole, boxes[:, axis]) for axis in (0, 1))
            crops = resample(images, rows, columns, flips)
        return self._normalise(crops), numbers[:, 0].clone()

    def _centre(self, images: Tensor, numbers: Tensor) -> Batch:
        crops = resample(self._in_order(images, numbers), self.centre[None], self.centre[None])
        return self._normalise(crops), numbers[:, 0].clone()

    def _in_order(self, images: Tensor, numbers: Tensor) -> Tensor:
        """The images (m, c, side, side), of which the last of the numbers says the row in `images`."""
        return images.permute(0, 3, 1, 2)[numbers[:, -1]]

    def _normalise(self, crops: Tensor) -> Tensor:
        """(x/255 − mean)/std; a bicubic filter may have overshot 0…255, so the values are clamped first."""
        crops = crops.to(torch.float32, memory_format=torch.contiguous_format).clamp_(0, 255)
        return crops.mul_(self.scale).add_(self.shift)

    def _batches(self, batches: Iterable[tuple[Tensor, Tensor]], prepare: Callable[[Tensor, Tensor], Batch]) -> Batches:
        """Reads ahead in threads, which end with this generator even if it is closed early."""
        self.pictures.require_unchanged()
        pool = ThreadPoolExecutor(AHEAD, "packed")
        try:
            for images, numbers, copied in ahead(pool, self._read, batches, AHEAD):
                if copied:
                    current = torch.cuda.current_stream(self.device)
                    current.wait_event(copied)
                    for tensor in (images, numbers):  # their memory is reused after the work of this stream
                        tensor.record_stream(current)
                yield prepare(images, numbers)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _read(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, "torch.cuda.Event | None"]:
        """In a thread: the pictures in the order of the files, the numbers with each picture's row, and on CUDA when
        both have been copied to the device.

        One call per shard copies its pictures without holding Python's lock, which the loop that launches kernels
        needs; one call per picture would take the lock 10,000 times a second. NumPy's `take`, because torch's would
        split each copy over as many threads as there are cores, in every thread that reads ahead.
        """
        pictures, (samples, sequence) = self.pictures, batch[0].sort()
        numbers = torch.cat([batch[1], sequence.argsort()[:, None]], 1)
        images = torch.empty(len(samples), *pictures.shape, dtype=torch.uint8, pin_memory=self.stream is not None)
        rows, sorted_samples = images.flatten(1).numpy(), samples.numpy()
        ends = np.searchsorted(sorted_samples, pictures.first)
        for shard in np.flatnonzero(np.diff(ends)).tolist():
            part, pixels = slice(ends[shard], ends[shard + 1]), pictures.shards[shard]
            inner = sorted_samples[part] - pictures.first[shard]
            if inner[-1] >= len(pixels):  # checked here, because `take` would copy everything twice to check it
                file = pictures.index.shards[shard].file
                raise IndexError(f"picture {inner[-1]} is out of range: {file} has {len(pixels)}")
            np.take(pixels, inner, axis=0, out=rows[part], mode="clip")
        if self.stream is None:
            return images, numbers, None
        with torch.cuda.stream(self.stream):
            images, numbers = (t.to(self.device, non_blocking=True) for t in (images, numbers.pin_memory()))
            return images, numbers, self.stream.record_event()
