"""Feeds: where the training loop gets its batches, the same on any number of processes.

A global batch is a list of positions in the epoch's order. It depends on the seed, the epoch and the step alone; a
`Split` says which of its parts a process works on, and in how many micro-batches. Everything that is random about a
sample (crop, flip) is drawn from the seed, the epoch and its position too, so that one process and eight see the same
pictures, and so that a run can start anywhere in an epoch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..datasets.decoding import DecodeFailures
from ..datasets.pictures import Pictures
from ..settings import Dataset

Batch = tuple[Tensor, Tensor]
"""Pictures (b, c, H, W), normalised, on the training device, and classes (b,); −1 is a picture that does not count."""

Batches = Generator[Batch, None, None]
"""Call `close()` to end the processes and threads behind it at once; the garbage collector may do so late."""


@dataclass(frozen=True)
class Split:
    """How a global batch is divided: into `parts` micro-batches on each of `world` processes."""

    batch: int
    parts: int = 1
    rank: int = 0
    world: int = 1
    mirrored: bool = False  # micro-batches hold position i with position −1 − i, which mixup pairs

    def __post_init__(self) -> None:
        pieces = self.parts * self.world * (2 if self.mirrored else 1)
        if self.batch % pieces:
            raise ValueError(f"a batch of {self.batch} is not divisible into {pieces} equal parts")

    @property
    def micro_batch(self) -> int:
        return self.batch // (self.parts * self.world)

    def micro_batches(self, positions: Tensor) -> list[Tensor]:
        """This process's micro-batches of one global batch, positions (batch,)."""
        pieces = self.parts * self.world
        if self.mirrored:
            front, back = (half.chunk(pieces) for half in positions.chunk(2))
            shares = [torch.cat([a, b]) for a, b in zip(front, reversed(back), strict=True)]
        else:
            shares = list(positions.chunk(pieces))
        return shares[self.rank :: self.world]


class Feed(ABC):
    """One split of a dataset, ready for the loop."""

    classes: tuple[str, ...] = ()
    targets: Tensor  # the class of every sample (n,)

    def __len__(self) -> int:
        """Samples in an epoch."""
        return len(self.targets)

    @abstractmethod
    def train(self, epoch: int, start: int, split: Split) -> Batches:
        """Micro-batches of the epoch from step `start` on; an incomplete last batch is left out."""

    @abstractmethod
    def read(self, numbers: Tensor, batch: int) -> Batches:
        """The samples with these numbers, in this order, without augmentation if the feed was opened without."""

    def evaluate(self, batch: int, rank: int = 0, world: int = 1) -> Batches:
        """Every sample once, this process's share of them."""
        return self.read(torch.arange(len(self))[rank::world], batch)

    def sample(self, count: int, batch: int) -> Batches:
        """`count` pictures from all over the set and from all of its classes, as `spread` chooses them.

        Those that do not decode are left out.
        """
        for images, targets in self.read(spread(self.targets, count), max(1, min(batch, count, len(self)))):
            decoded = targets >= 0
            if decoded.any():
                yield images[decoded], targets[decoded]

    def steps(self, batch: int) -> int:
        """Complete global batches in an epoch."""
        return len(self) // batch


class PictureFeed(Feed):
    """What every feed of pictures has."""

    def __init__(self, pictures: Pictures, data: Dataset, seed: int, device: torch.device | str) -> None:
        self.classes, self.targets = pictures.classes, torch.from_numpy(pictures.targets.astype(np.int64))
        self.seed, self.device = seed, torch.device(device)
        self.decode_failures = DecodeFailures(data.max_decode_failures, len(pictures))
        self.mean, self.std = (torch.tensor(values, device=device).view(-1, 1, 1) for values in (data.mean, data.std))


class Around(Feed):
    """Another feed, of whose batches `around` makes others."""

    feed: Feed

    def train(self, epoch: int, start: int, split: Split) -> Batches:
        return self.around(self.feed.train(epoch, start, split))

    def read(self, numbers: Tensor, batch: int) -> Batches:
        return self.around(self.feed.read(numbers, batch))

    @abstractmethod
    def around(self, batches: Batches) -> Batches: ...


class Renumbered(Around):
    """Another feed, whose class i is number `numbers[i]` here."""

    def __init__(self, feed: Feed, numbers: Sequence[int]) -> None:
        self.feed, self.numbers = feed, torch.tensor(numbers, device=feed.targets.device)
        self.targets = self.numbers[feed.targets]

    def around(self, batches: Batches) -> Batches:
        with closing(batches):
            for images, targets in batches:
                numbers = self.numbers.to(targets.device)[targets]  # of −1, the last one's
                yield images, numbers.where(targets >= 0, targets)


class Watched(Around):
    """Another feed, which says how many samples it has given since it last did: `report(count)`."""

    def __init__(self, feed: Feed, report: Callable[[int], None]) -> None:
        self.feed, self.report = feed, report
        self.classes, self.targets = feed.classes, feed.targets

    def around(self, batches: Batches) -> Batches:
        with closing(batches):
            for images, targets in batches:
                yield images, targets
                self.report(len(targets))


def spread(targets: Tensor, count: int) -> Tensor:
    """The numbers of `count` pictures, in ascending order, that represent a set whatever its order.

    Each class gets a share in proportion to its size, but at least one picture if `count` allows one for each. The
    pictures of a class are evenly spaced over its own. The choice depends on the arguments alone.
    """
    by_class = targets.cpu().argsort(stable=True)
    sizes = targets.cpu().bincount()
    sizes = sizes[sizes > 0]
    total, count, sure = len(targets), min(count, len(targets)), int(count >= len(sizes))
    rest = sizes - sure  # beyond the picture that each class is sure of
    ends = rest.cumsum(0) * (count - sure * len(sizes)) // max(1, total - sure * len(sizes))
    quotas = sure + ends.diff(prepend=ends.new_zeros(1))  # sums to count, and none is larger than its class
    firsts = sizes.cumsum(0) - sizes
    classes = zip(firsts.tolist(), sizes.tolist(), quotas.tolist(), strict=True)
    positions = [first + i * size // quota for first, size, quota in classes for i in range(quota)]
    return by_class[positions].sort().values


def generator(*key: int) -> torch.Generator:
    """A random generator that depends on the key alone, for example (seed, epoch, step)."""
    state = np.random.SeedSequence((len(key), *key)).generate_state(1, np.uint64)[0]  # it pads short keys with zeros
    return torch.Generator().manual_seed(int(state))


def order(length: int, seed: int, epoch: int) -> Tensor:
    """The epoch's order of the samples."""
    return torch.randperm(length, generator=generator(seed, epoch))
