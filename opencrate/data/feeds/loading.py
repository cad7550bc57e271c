"""Large sets: pictures are decoded and augmented one by one in worker processes, and normalised on the device.

Before a picture is augmented, the random generators are seeded with the seed, the epoch and its number, so that the
result does not depend on the process or worker. In training, a picture that does not decode is replaced by the next
one that does; in evaluation it is not counted.
"""

import signal
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from ...randomness import seeded
from ..augment.transforms import Transform, evaluation_transform, training_transform
from ..datasets.decoding import with_channels
from ..datasets.pictures import Pictures
from ..settings import Augmentation, Dataset
from .feed import Batches, PictureFeed, Split, order

STOPPING = (signal.SIGINT, signal.SIGTERM)

Numbers = tuple[list[int], int]  # of the pictures of a batch; the epoch, where −1 is evaluation
Failures = list[tuple[str, str]]  # names and errors of pictures that did not decode


class Loaded(PictureFeed):
    """A split behind worker processes."""

    def __init__(
        self,
        pictures: Pictures,
        data: Dataset,
        augment: Augmentation,
        augmented: bool,
        seed: int = 0,
        device: torch.device | str = "cpu",
        workers: int = 0,
    ) -> None:
        super().__init__(pictures, data, seed, device)
        self.pictures, self.workers = pictures, workers
        transform = (
            training_transform(data, augment) if augmented else evaluation_transform(data, augment.interpolation)
        )
        self.dataset = _Decoding(pictures, transform, data, seed)

    def train(self, epoch: int, start: int, split: Split) -> Batches:
        samples, steps = order(len(self), self.seed, epoch), range(start, self.steps(split.batch))
        batches = (samples[step * split.batch :][: split.batch] for step in steps)
        return self._batches((mine.tolist(), epoch) for batch in batches for mine in split.micro_batches(batch))

    def read(self, numbers: Tensor, batch: int) -> Batches:
        return self._batches((part.tolist(), -1) for part in numbers.split(batch) if len(part))

    def _batches(self, batches: Iterable[Numbers]) -> Batches:
        loader = DataLoader(
            self.dataset,
            batch_size=None,  # the dataset's items are batches
            sampler=batches,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=_ignore_signals,
            generator=torch.Generator(),  # its own: drawing from the global one would change a resumed run
        )
        for images, targets, failures in _safely(loader):
            for name, reason in failures:
                self.decode_failures.add(name, reason)
            images, targets = (t.to(self.device, non_blocking=True) for t in (images, targets))
            yield (images.float() - self.mean * 255) / (self.std * 255), targets


class _Decoding(TorchDataset[tuple[Tensor, Tensor, Failures]]):
    """The numbers of a batch → its uint8 pictures, and classes. Runs in the workers."""

    def __init__(self, pictures: Pictures, transform: Transform, data: Dataset, seed: int) -> None:
        self.pictures, self.transform, self.seed = pictures, transform, seed
        self.in_chans, self.size = data.in_chans, data.size

    def __getitem__(self, batch: Numbers) -> tuple[Tensor, Tensor, Failures]:
        failures: Failures = []
        images, targets = zip(*(self._decode(number, batch[1], failures) for number in batch[0]), strict=True)
        return torch.stack(images), torch.tensor(targets), failures

    def _decode(self, number: int, epoch: int, failures: Failures) -> tuple[Tensor, int]:
        for candidate in range(number, number + len(self.pictures)):
            i = candidate % len(self.pictures)
            try:
                image = with_channels(self.pictures.picture(i), self.in_chans)
            except (OSError, ValueError) as error:
                failures.append((self.pictures.name(i), str(error)))
                if epoch < 0:
                    break
                continue
            with seeded(self.seed, max(epoch, 0), number):
                return self.transform(image), int(self.pictures.targets[i])
        return torch.zeros(self.in_chans, self.size, self.size, dtype=torch.uint8), -1


def _safely(loader: Iterable[Any]) -> Iterator[Any]:
    """The loader's batches; an error in a worker becomes one sentence, the last line of the worker's traceback.

    A signal to the process group cannot kill the workers, not even while they start: they inherit a mask that blocks
    SIGINT and SIGTERM. This process receives its own signals a moment later.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        batches = iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        yield from batches
    except ValueError as error:
        raise ValueError(str(error).strip().rpartition("\n")[2].removeprefix("ValueError: ")) from error
    finally:
        # an error's traceback may keep the workers, and as they ignore SIGTERM, Python could not exit
        if shut_down := getattr(batches, "_shutdown_workers", None):
            shut_down()


def _ignore_signals(worker: int) -> None:
    """In a worker: Ctrl-C and torchrun signal the whole group, but the run needs its workers until its checkpoint."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
