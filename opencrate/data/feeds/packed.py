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
from .feed import Batch, Batches, Feed, Split, generator, order

AHEAD = 4  # batches that are read ahead, each by its own thread
NUMBERS = 6  # for a sample: class, flip, and the box as top, left, height, width
CROPS = 1  # keeps the random numbers of crops apart from other draws of the same step


class Packed(Feed):
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
        # Without compilation, making the resampling weights takes four times as long as the products with them.
        compiles = compiled and self.device.type == "cuda"
        self.augment_batch = torch.compile(self._augment, dynamic=False) if compiles else self._augment

    def train(self, epoch: int, start: int, split: Split) -> Batches:
        return self._batches(self._draws(epoch, start, split), split.micro_batch, self.augment_batch)

    def read(self, numbers: Tensor, batch: int) -> Batches:
        rows = torch.nn.functional.pad(self.targets[:, None], (0, NUMBERS - 1))
        parts = ((part, rows[part]) for part in numbers.split(batch) if len(part))
        return self._batches(parts, batch, self._centre)

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
        images, boxes, flips = images[numbers[:, -1]], numbers[:, 2:-1], numbers[:, 1] == 1
        if self.augment.crop == "resized":
            crops = crop_and_resize(images, boxes, flips, self.size, self.augment.interpolation)
        else:
            rows, columns = (shifted_weights(self.whole, boxes[:, axis]) for axis in (0, 1))
            crops = resample(images, rows, columns, flips)
        return self._normalise(crops), numbers[:, 0].clone()

    def _centre(self, images: Tensor, numbers: Tensor) -> Batch:
        crops = resample(images[numbers[:, -1]], self.centre[None], self.centre[None])
        return self._normalise(crops), numbers[:, 0].clone()

    def _normalise(self, crops: Tensor) -> Tensor:
        """(x/255 − mean)/std; a bicubic filter may have overshot 0…255, so the values are clamped first."""
        crops = crops.to(torch.float32, memory_format=torch.contiguous_format).clamp_(0, 255)
        return crops.mul_(self.scale).add_(self.shift)

    def _batches(
        self, batches: Iterable[tuple[Tensor, Tensor]], size: int, prepare: Callable[[Tensor, Tensor], Batch]
    ) -> Batches:
        """Reads ahead in threads, which end with this generator even if it is closed early."""
        self.pictures.require_unchanged()
        stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        shape = (size, *self.pictures.shape)
        with torch.inference_mode(False):  # the caller may be in inference mode, the threads that fill them are not
            slots = [_Slot(shape, self.device, stream) for _ in range(AHEAD)]
        turns = ((slots[k % AHEAD], *batch) for k, batch in enumerate(batches))
        pool = ThreadPoolExecutor(AHEAD, "packed")
        try:
            for slot in ahead(pool, self._read, turns, AHEAD):
                images, numbers = slot.take()
                batch = prepare(images.permute(0, 3, 1, 2), numbers)
                slot.release()
                yield batch
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            if stream:
                stream.synchronize()  # before the memory of the slots is reused

    def _read(self, turn: "tuple[_Slot, Tensor, Tensor]") -> "_Slot":
        """In a thread: copy the pictures into the slot's memory, shard by shard, and on to the device.

        One call per shard copies its pictures without holding Python's lock, which the loop that launches kernels
        needs; one call per picture would take the lock 10,000 times a second. NumPy's `take`, because torch's would
        split each copy over as many threads as there are cores, in every thread that reads ahead.
        """
        pictures, (slot, samples, numbers) = self.pictures, turn
        samples, sequence = samples.sort()
        slot.fill(numbers, sequence)
        sorted_samples = samples.numpy()
        ends = np.searchsorted(sorted_samples, pictures.first)
        for shard in np.flatnonzero(np.diff(ends)).tolist():
            part, pixels = slice(ends[shard], ends[shard + 1]), pictures.shards[shard]
            rows = sorted_samples[part] - pictures.first[shard]
            if rows[-1] >= len(pixels):  # checked here, because `take` would copy everything twice to check it
                file = pictures.index.shards[shard].file
                raise IndexError(f"picture {rows[-1]} is out of range: {file} has {len(pixels)}")
            np.take(pixels, rows, axis=0, out=slot.rows[part], mode="clip")
        slot.send()
        return slot


class _Slot:
    """Memory for one batch, used in turns: page-locked on the host, and on the device, copied on its own stream.

    The event `sent` says that the host's memory may be filled again, `taken` that the device's may be.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device, stream: "torch.cuda.Stream | None") -> None:
        self.device, self.stream, self.count = device, stream, 0
        self.host = (
            torch.empty(shape, dtype=torch.uint8, pin_memory=stream is not None),
            torch.empty(shape[0], NUMBERS + 1, dtype=torch.int64, pin_memory=stream is not None),
        )
        self.rows = self.host[0].flatten(1).numpy()
        self.on_device = self.host
        if stream:
            self.on_device = tuple(torch.empty_like(t, device=device) for t in self.host)  # type: ignore[assignment]
            self.sent, self.taken = torch.cuda.Event(), torch.cuda.Event()
            self.release()

    def fill(self, numbers: Tensor, sequence: Tensor) -> None:
        """Store the batch's numbers; picture sequence[i] of the batch will be row i of this memory."""
        if self.stream:
            self.sent.synchronize()
        self.count = len(numbers)
        self.host[1][: self.count, :-1] = numbers
        self.host[1][: self.count, -1] = sequence.argsort()

    def send(self) -> None:
        if self.stream:
            with torch.cuda.stream(self.stream):
                self.stream.wait_event(self.taken)
                for source, copy in zip(self.host, self.on_device, strict=True):
                    copy[: self.count].copy_(source[: self.count], non_blocking=True)
                self.sent.record(self.stream)

    def take(self) -> tuple[Tensor, Tensor]:
        """Pictures in the order of the files, and numbers in the batch's order, the last of them the picture's row."""
        if self.stream:
            torch.cuda.current_stream(self.device).wait_event(self.sent)
        return self.on_device[0][: self.count], self.on_device[1][: self.count]

    def release(self) -> None:
        if self.stream:
            self.taken.record(torch.cuda.current_stream(self.device))
