"""Feeds: what the training loop takes its batches from, the same on any number of processes.

A global batch is a list of positions in the epoch's order. It depends on the seed, the epoch and the step alone; a
`Split` says which of its parts a process works on, and in how many micro-batches. Everything that is random about a
sample (crop, flip) is drawn from the seed, the epoch and its place too, so that one process and eight see the same
pictures, and so that a run can begin anywhere in an epoch.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = ["Batch", "Batches", "Feed", "Split", "generator", "order"]

Batch = tuple[Tensor, Tensor]
"""Pictures (b, c, H, W), normalised, on the training device, and classes (b,); −1 is a picture that does not count."""

Batches = Generator[Batch, None, None]
"""`close()` ends the processes and threads behind it; the garbage collector may do so late."""


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
    """A split of a dataset, ready for the loop."""

    classes: tuple[str, ...]

    @abstractmethod
    def __len__(self) -> int:
        """Pictures in an epoch."""

    @abstractmethod
    def train(self, epoch: int, start: int, split: Split) -> Batches:
        """Micro-batches of the epoch from step `start` on; an incomplete last batch is left out."""

    @abstractmethod
    def evaluate(self, batch: int, rank: int = 0, world: int = 1) -> Batches:
        """Every picture once, this process's share of them."""

    def steps(self, batch: int) -> int:
        """Whole global batches in an epoch."""
        return len(self) // batch


def generator(*key: int) -> torch.Generator:
    """Random numbers that depend on nothing but the key, for example (seed, epoch, step)."""
    state = np.random.SeedSequence((len(key), *key)).generate_state(1, np.uint64)[0]  # it pads short keys with zeros
    return torch.Generator().manual_seed(int(state) & (2**63 - 1))


def order(length: int, seed: int, epoch: int) -> Tensor:
    """The epoch's order of the samples."""
    return torch.randperm(length, generator=generator(seed, epoch))
