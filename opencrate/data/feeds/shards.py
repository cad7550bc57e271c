"""WebDataset shards, local or remote: tar files of KEY.jpg (jpeg, png, webp) with KEY.cls, or with KEY.json's "label".

An epoch is a sequence of all samples: the shards in an order drawn from (seed, epoch), the samples of each in an order
drawn from (seed, epoch, shard). It is cut into G equal lanes that are read side by side; global batch t holds samples
[t B/G, (t + 1) B/G) of every lane, lane after lane. G depends on the batch B and the number of shards alone, so the
batches are the same on any number of processes, and a process reads whole lanes: no other's samples, and of the tars
only those that its lanes touch. Where a batch begins follows from the shards' sizes, so a run can begin anywhere.

A remote shard is copied to the temporary folder while a lane is at it.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from ..augment.transforms import Transform, evaluation_transform, training_transform
from ..datasets.pictures import Broken, decode
from ..datasets.sidecars import find_shards, with_sizes
from ..datasets.tars import Index, Opened, Reader, Sample, read_sample, remembered_index
from ..settings import Augmentation, Dataset
from .feed import Batches, Feed, Split, generator
from .loading import ignore_signals, seeded, started

__all__ = ["Shards", "lane_count"]

LANES = 64  # at most: a remote lane occupies the disk with a shard


class Shards(Feed):
    """A split in shards. `transform` replaces what the settings say becomes of a picture: PIL → uint8 (c, size, size).

    In training, a picture that does not decode is replaced by the next of its shard that does, which keeps its own
    place as well; in evaluation its class is −1.
    """

    def __init__(
        self,
        data: Dataset,
        augment: Augmentation,
        training: bool,
        seed: int = 0,
        device: torch.device | str = "cpu",
        workers: int = 0,
        transform: Transform | None = None,
    ) -> None:
        self.data, self.seed, self.device, self.workers = data, seed, torch.device(device), workers
        addresses, sidecar = find_shards(data.root, data.train if training else data.validation)
        self.indexes: dict[int, Index] = {}
        self.shards = with_sizes(addresses, sidecar, data, self.indexes)
        self.classes = sidecar.classes or tuple(map(str, range(data.num_classes)))
        if len(self.classes) > data.num_classes:
            raise ValueError(
                f"{data.root} has {len(self.classes)} classes and the recipe {data.num_classes}:"
                f" give --data.num-classes {len(self.classes)}"
            )
        self.sizes = [shard.samples for shard in self.shards]
        if not len(self):
            raise ValueError(f"no pictures were found in the shards of {data.root}")
        self.broken = Broken(data.broken, len(self))
        self.transform = transform or (
            training_transform(data, augment) if training else evaluation_transform(data, augment.interpolation)
        )
        self.mean, self.std = (torch.tensor(v, device=device).view(1, -1, 1, 1) * 255 for v in (data.mean, data.std))

    def __len__(self) -> int:
        return sum(self.sizes)

    def train(self, epoch: int, start: int, split: Split) -> Batches:
        lanes, steps = lane_count(split.batch, len(self.shards)), self.steps(split.batch)
        length, share = len(self) // lanes, split.batch // lanes  # samples of a lane in an epoch, in a global batch
        parts = [part.tolist() for part in split.micro_batches(torch.arange(split.batch))]
        own = sorted({position // share for part in parts for position in part})
        if len(own) * share > sum(map(len, parts)):
            raise ValueError(_cannot_share(lanes, len(self.shards), split))
        order = torch.randperm(len(self.shards), generator=generator(self.seed, epoch)).tolist()
        visits = [self._visits(order, lane * length + start * share, lane * length + steps * share) for lane in own]

        def steps_of(reader: Reader) -> Iterator[list[list[Sample]]]:
            streams = dict(zip(own, self._streams(reader, visits, epoch), strict=True))
            for _ in range(start, steps):
                taken = {lane: list(islice(stream, share)) for lane, stream in streams.items()}
                yield [[taken[position // share][position % share] for position in part] for part in parts]

        return self._load(steps_of, epoch)

    def evaluate(self, batch: int, rank: int = 0, world: int = 1) -> Batches:
        begin, end = (len(self) * r // world for r in (rank, rank + 1))
        visits = self._visits(range(len(self.shards)), begin, end)

        def steps_of(reader: Reader) -> Iterator[list[list[Sample]]]:
            (stream,) = self._streams(reader, [visits], None)
            while samples := list(islice(stream, batch)):
                yield [samples]

        return self._load(steps_of, None)

    def _visits(self, order: Sequence[int], begin: int, end: int) -> list["Visit"]:
        """The parts of shards that samples [begin, end) of the sequence are."""
        visits, before = [], 0
        for shard in order:
            first, last = max(begin - before, 0), min(end - before, self.sizes[shard])
            if first < last:
                visits.append(Visit(shard, first, last))
            before += self.sizes[shard]
        return visits

    def _streams(self, reader: Reader, lanes: list[list["Visit"]], epoch: int | None) -> list[Iterator[Sample]]:
        """The samples of each lane, in order; the shards that they need first are requested at once."""
        requests = [reader.request(visits[0].shard) if visits else None for visits in lanes]
        return [
            self._stream(reader, visits, request, epoch) if request else iter(())
            for visits, request in zip(lanes, requests, strict=True)
        ]

    def _stream(
        self, reader: Reader, visits: list["Visit"], request: Future[Opened], epoch: int | None
    ) -> Iterator[Sample]:
        for visit, following in zip(visits, [*visits[1:], None], strict=True):
            path, index = request.result()
            numbers = _sample_order(len(index), self.seed, epoch, visit.shard)
            late = visit.first + (visit.last - visit.first) * 3 // 4  # so the next copy does not lie there for long
            for place in range(visit.first, visit.last):
                if place == late and following is not None:
                    request = reader.request(following.shard)
                yield index.sample(int(numbers[place]), visit.shard, path)
            reader.retire(path)

    def _load(self, steps_of: Callable[[Reader], Iterator[list[list[Sample]]]], epoch: int | None) -> Batches:
        reader = Reader(self.shards, self.indexes, self.data.num_classes)
        loader: DataLoader[Decoded] = DataLoader(
            _Decoding(self.transform, self.data, self.seed, epoch),
            batch_size=None,  # a sampler's entry is a whole micro-batch
            sampler=reader.batches(steps_of(reader)),
            num_workers=self.workers,
            collate_fn=_unchanged,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=ignore_signals,
            generator=torch.Generator(),  # its own: drawing from the global one would change a resumed run
        )
        with reader:
            for received, (images, targets, broken, failure) in enumerate(started(loader)):
                if failure is not None:
                    raise OSError(f"{self.shards[failure[0]].address} {failure[1]}")
                reader.discard(received)
                for shard, number, reason in broken:
                    self.broken.add(f"{self.shards[shard].name}: {self.indexes[shard].key(number)}", reason)
                images, targets = (t.to(self.device, non_blocking=True) for t in (images, targets))
                yield (images.float() - self.mean) / self.std, targets
            if reader.error is not None:
                raise reader.error


def lane_count(batch: int, shards: int) -> int:
    """The divisor of the batch, at most the shards and LANES, that has most divisors: it can be shared in most ways."""
    divisors = [n for n in range(1, min(shards, LANES, batch) + 1) if batch % n == 0]
    return max(divisors, key=lambda n: (sum(n % k == 0 for k in range(1, n + 1)), -(n % 2), n))


def _cannot_share(lanes: int, shards: int, split: Split) -> str:
    pieces = split.world * split.parts * (2 if split.mirrored else 1)
    doubled = " × 2 for mixup" if split.mirrored else ""
    remedy = f"processes × micro-batches{doubled}, here {pieces}, must divide the number of lanes"
    more = next((n for n in range(shards + 1, LANES + 1) if lane_count(split.batch, n) % pieces == 0), None)
    return (
        f"a batch of {split.batch} from {shards} shards is read in {lanes} lanes, which {split.world} processes cannot"
        f" share: {remedy}" + (f", as with {more} shards" if more else "")
    )


class Visit(NamedTuple):
    """Places [first, last) of a shard's order."""

    shard: int
    first: int
    last: int


def _sample_order(samples: int, seed: int, epoch: int | None, shard: int) -> np.ndarray:
    if epoch is None:
        return np.arange(samples)
    # counted from 1: to numpy's SeedSequence, a key with a 0 at its end is the key without it
    return torch.randperm(samples, generator=generator(seed, epoch, shard + 1)).numpy()


Decoded = tuple[Tensor, Tensor, list[tuple[int, int, str]], tuple[int, str] | None]
"""uint8 pictures, classes, (shard, sample, reason) of each that did not decode, (shard, reason) of one not readable."""


class _Decoding(TorchDataset[Decoded]):
    """Samples → their uint8 squares. Runs in the workers; an error travels as a value, so that its text stays."""

    def __init__(self, transform: Transform, data: Dataset, seed: int, epoch: int | None) -> None:
        self.transform, self.seed, self.epoch = transform, seed, epoch
        self.num_classes, self.in_chans, self.size = data.num_classes, data.in_chans, data.size

    def __getitem__(self, samples: list[Sample]) -> Decoded:
        images, targets, broken = [], [], list[tuple[int, int, str]]()
        files: dict[str, BinaryIO] = {}
        try:
            for sample in samples:
                try:
                    image, target = self._picture(sample, files, broken)
                except OSError as error:
                    return torch.empty(0), torch.empty(0), broken, (sample.shard, str(error))
                images.append(image)
                targets.append(target)
        finally:
            for file in files.values():
                file.close()
        return torch.stack(images), torch.tensor(targets), broken, None

    def _picture(
        self, sample: Sample, files: dict[str, BinaryIO], broken: list[tuple[int, int, str]]
    ) -> tuple[Tensor, int]:
        for candidate in self._candidates(sample):
            content = read_sample(candidate, files)
            try:
                image = decode(content, self.in_chans)
            except ValueError as error:
                broken.append((candidate.shard, candidate.number, str(error)))
                continue
            with seeded(self.seed, self.epoch or 0, sample.shard + 1, sample.number + 1):
                return self.transform(image), candidate.target
        if self.epoch is None:
            return torch.zeros(self.in_chans, self.size, self.size, dtype=torch.uint8), -1
        raise OSError("holds no picture that decodes")

    def _candidates(self, sample: Sample) -> Iterator[Sample]:
        """The sample; in training then those after it in its shard's order, around to itself."""
        yield sample
        if self.epoch is None:
            return
        index = remembered_index(sample.path, self.num_classes)
        numbers = _sample_order(len(index), self.seed, self.epoch, sample.shard)
        place = int((numbers == sample.number).argmax())
        for number in np.roll(numbers, -place)[1:].tolist():
            yield index.sample(number, sample.shard, sample.path)


def _unchanged(decoded: Any) -> Any:
    return decoded
