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
from ..datasets.decoding import DecodeFailures, with_channels
from ..datasets.pictures import Pictures
from ..settings import Augmentation, Dataset
from .feed import Batches, Feed, Split, order

STOPPING = (signal.SIGINT, signal.SIGTERM)

Sample = tuple[int, int]  # number of the picture, epoch; epoch −1 is evaluation
Decoded = tuple[Tensor, int, list[tuple[str, str]]]  # uint8 picture, class, names and errors of what did not decode


class Loaded(Feed):
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
        self.classes, self.pictures, self.seed = pictures.classes, pictures, seed
        self.targets = torch.tensor([pictures.target(i) for i in range(len(pictures))])
        self.device, self.workers = torch.device(device), workers
        self.decode_failures = DecodeFailures(data.max_decode_failures, len(pictures))
        transform = (
            training_transform(data, augment) if augmented else evaluation_transform(data, augment.interpolation)
        )
        self.dataset = _Decoding(pictures, transform, data, seed)
        self.mean, self.std = (torch.tensor(v, device=device).view(1, -1, 1, 1) * 255 for v in (data.mean, data.std))

    def __len__(self) -> int:
        return len(self.pictures)

    def train(self, epoch: int, start: int, split: Split) -> Batches:
        samples, steps = order(len(self), self.seed, epoch), range(start, self.steps(split.batch))
        batches = (samples[step * split.batch :][: split.batch] for step in steps)
        shares = (mine for batch in batches for mine in split.micro_batches(batch))
        return self._batches([(number, epoch) for number in share.tolist()] for share in shares)

    def read(self, numbers: Tensor, batch: int) -> Batches:
        return self._batches([(number, -1) for number in part.tolist()] for part in numbers.split(batch) if len(part))

    def _batches(self, batches: Iterable[list[Sample]]) -> Batches:
        loader = DataLoader(
            self.dataset,
            batch_sampler=batches,
            num_workers=self.workers,
            collate_fn=_collate,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=_ignore_signals,
            generator=torch.Generator(),  # its own: drawing from the global one would change a resumed run
        )
        for images, targets, failures in _in_one_sentence(loader):
            for name, reason in failures:
                self.decode_failures.add(name, reason)
            if len(self.decode_failures) == len(self):
                raise ValueError(f"none of {len(self)} pictures decodes")
            images, targets = (t.to(self.device, non_blocking=True) for t in (images, targets))
            yield (images.float() - self.mean) / self.std, targets


class _Decoding(TorchDataset[Decoded]):
    """Picture number → its uint8 square. Runs in the workers."""

    def __init__(self, pictures: Pictures, transform: Transform, data: Dataset, seed: int) -> None:
        self.pictures, self.transform, self.seed = pictures, transform, seed
        self.in_chans, self.size = data.in_chans, data.size

    def __getitem__(self, sample: Sample) -> Decoded:
        number, epoch = sample
        failures = []
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
                return self.transform(image), self.pictures.target(i), failures
        return torch.zeros(self.in_chans, self.size, self.size, dtype=torch.uint8), -1, failures


def _started(loader: Iterable[Any]) -> Iterator[Any]:
    """The loader's batches, from workers that a signal to the process group cannot kill, not even while they start.

    They inherit a mask that blocks SIGINT and SIGTERM. This process receives its own signals a moment later.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        batches = iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return batches


def _in_one_sentence(loader: Iterable[Any]) -> Iterator[Any]:
    """The loader's batches, where an error in a worker is one sentence: the last line of the worker's traceback."""
    batches = _started(loader)
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


def _collate(samples: list[Decoded]) -> tuple[Tensor, Tensor, list[Any]]:
    images, targets, failures = zip(*samples, strict=True)
    return torch.stack(images), torch.tensor(targets), [entry for entries in failures for entry in entries]
