"""WebDataset shards, local or remote: tar files of KEY.jpg (jpeg, png, webp) with KEY.cls, or with KEY.json's "label".

An epoch is a sequence of all samples: the shards in an order drawn from (seed, epoch), the samples of each in an order
drawn from (seed, epoch, shard). It is cut into G equal lanes that are read side by side; global batch t holds samples
[t B/G, (t + 1) B/G) of every lane, lane after lane. G depends on the batch B and the number of shards alone, so the
batches are the same on any number of processes, and a process reads whole lanes: no other's samples, and of the tars
only those that its lanes touch. Where a batch begins follows from the shards' sizes, so a run can begin anywhere.

Sizes come from a file beside the shards (timm's _info.json, info.json or info.yaml, open_clip's sizes.json, the
index.json of webdataset); without one, every shard is read through once, and its size is kept in the user's cache,
~/.cache/opencrate/shards. A remote shard is copied to the temporary folder while a lane is at it.
"""

import io
import json
import logging
import os
import re
import shutil
import tarfile
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
import yaml
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from .feed import Batches, Feed, Split, generator
from .loading import ignore_signals, seeded, started
from .pictures import VALIDATION_NAMES, Broken, decode
from .settings import Augmentation, Dataset
from .transforms import Transform, evaluation_transform, training_transform

__all__ = ["Shards", "expand", "lane_count"]

log = logging.getLogger("opencrate")

LANES = 64  # at most: a remote lane occupies the disk with a shard
READERS = 8  # threads that copy and index shards
ATTEMPTS, PATIENCE = 3, 1.0  # of a remote read; seconds before the second, doubled before each that follows
PICTURES = ("jpg", "jpeg", "png", "webp")
SIDECARS = ("_info.json", "info.json", "info.yaml", "sizes.json", "index.json")


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
        self.shards = _with_sizes(addresses, sidecar, data, self.indexes)
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

        def steps_of(reader: "Reader") -> Iterator[list[list[Sample]]]:
            streams = dict(zip(own, self._streams(reader, visits, epoch), strict=True))
            for _ in range(start, steps):
                taken = {lane: list(islice(stream, share)) for lane, stream in streams.items()}
                yield [[taken[position // share][position % share] for position in part] for part in parts]

        return self._load(steps_of, epoch)

    def evaluate(self, batch: int, rank: int = 0, world: int = 1) -> Batches:
        begin, end = (len(self) * r // world for r in (rank, rank + 1))
        visits = self._visits(range(len(self.shards)), begin, end)

        def steps_of(reader: "Reader") -> Iterator[list[list[Sample]]]:
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

    def _streams(self, reader: "Reader", lanes: list[list["Visit"]], epoch: int | None) -> list[Iterator["Sample"]]:
        """The samples of each lane, in order; the shards that they need first are requested at once."""
        requests = [reader.request(visits[0].shard) if visits else None for visits in lanes]
        return [
            self._stream(reader, visits, request, epoch) if request else iter(())
            for visits, request in zip(lanes, requests, strict=True)
        ]

    def _stream(
        self, reader: "Reader", visits: list["Visit"], request: "Future[Opened]", epoch: int | None
    ) -> Iterator["Sample"]:
        for visit, following in zip(visits, [*visits[1:], None], strict=True):
            path, index = request.result()
            numbers = _sample_order(len(index), self.seed, epoch, visit.shard)
            late = visit.first + (visit.last - visit.first) * 3 // 4  # so the next copy does not lie there for long
            for place in range(visit.first, visit.last):
                if place == late and following is not None:
                    request = reader.request(following.shard)
                yield index.sample(int(numbers[place]), visit.shard, path)
            reader.retire(path)

    def _load(self, steps_of: "Callable[[Reader], Iterator[list[list[Sample]]]]", epoch: int | None) -> Batches:
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


class Sample(NamedTuple):
    """Sample `number` of a shard, and where its picture's bytes are."""

    shard: int
    number: int
    path: str
    offset: int
    length: int
    target: int


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
            content = _read(candidate, files)
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
        index = _remembered_index(sample.path, self.num_classes)
        numbers = _sample_order(len(index), self.seed, self.epoch, sample.shard)
        place = int((numbers == sample.number).argmax())
        for number in np.roll(numbers, -place)[1:].tolist():
            yield index.sample(number, sample.shard, sample.path)


def _read(sample: Sample, files: dict[str, BinaryIO]) -> bytes:
    try:
        if sample.path not in files:
            files[sample.path] = Path(sample.path).open("rb")  # noqa: SIM115, the caller closes it
        file = files[sample.path]
        file.seek(sample.offset)
        content = file.read(sample.length)
    except OSError as error:
        raise OSError(f"cannot be read any more: {error.strerror or error}") from error
    if len(content) < sample.length:
        raise OSError(f"is truncated: it ends before byte {sample.offset + sample.length}")
    return content


def _unchanged(decoded: Any) -> Any:
    return decoded


@dataclass(frozen=True)
class Index:
    """Where a shard's pictures are, of which class, and their keys, joined by zero bytes to save memory."""

    size: int  # bytes of the shard
    offsets: np.ndarray
    lengths: np.ndarray
    targets: np.ndarray
    keys: str

    def __len__(self) -> int:
        return len(self.offsets)

    def key(self, number: int) -> str:
        return self.keys.split("\0")[number]

    def sample(self, number: int, shard: int, path: str) -> Sample:
        offset, length, target = (int(v[number]) for v in (self.offsets, self.lengths, self.targets))
        return Sample(shard, number, path, offset, length, target)


def read_index(path: str, name: str, num_classes: int) -> Index:
    """The samples of a tar file: neighbours whose names agree up to the first dot, and of which one is a picture."""
    rows: list[tuple[int, int, int]] = []
    keys: list[str] = []
    try:
        with Path(path).open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for key, members in groupby(_named_members(tar), lambda member: member[0]):
                parts = {extension: member for _, extension, member in members}
                picture = next((parts[extension] for extension in PICTURES if extension in parts), None)
                if picture is not None:
                    target = _target(file, parts, f"{name}: {key}", num_classes)
                    rows.append((picture.offset_data, picture.size, target))
                    keys.append(key)
            file.seek(tar.offset)
            end = file.read(tarfile.BLOCKSIZE)  # tarfile takes a damaged header, and none at all, for the end
            if len(end) < tarfile.BLOCKSIZE or end.strip(b"\0"):
                raise OSError(f"{name} is truncated or damaged after {tar.offset} bytes")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"the shard {name} does not exist") from error
    except tarfile.TarError as error:
        raise OSError(f"{name} is not a whole tar file, without compression: {error}") from error
    offsets, lengths, targets = np.array(rows, np.int64).reshape(-1, 3).T
    size = Path(path).stat().st_size
    return Index(size, offsets, lengths.astype(np.int32), targets.astype(np.int32), "\0".join(keys))


_remembered_index = lru_cache(maxsize=4)(lambda path, num_classes: read_index(path, path, num_classes))


def _named_members(tar: tarfile.TarFile) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
    """(key, extension, member) of each file."""
    for member in tar:
        if member.isreg() and (found := re.fullmatch(r"((?:.*/)?[^./]+)\.([^/]+)", member.name)):
            yield found[1], found[2].lower(), member


def _target(file: BinaryIO, parts: dict[str, tarfile.TarInfo], name: str, num_classes: int) -> int:
    member = parts.get("cls") or parts.get("json")
    if member is None:
        raise ValueError(f"{name} has a picture and no class, which is a member .cls, or .json with a label")
    file.seek(member.offset_data)
    text = file.read(member.size)
    try:
        target = int(text if "cls" in parts else str(json.loads(text)["label"]))
    except (ValueError, KeyError, TypeError) as error:
        told = text[:20].decode(errors="replace") if "cls" in parts else "the .json"
        raise ValueError(f"{name} has no class that is an integer, but {told!r}") from error
    if not 0 <= target < num_classes:
        raise ValueError(f"{name} is of class {target}, which is not one of {num_classes} from 0 on")
    return target


@dataclass(frozen=True)
class Shard:
    """A tar file, the number of its samples, and who says so; −1 and nobody at first."""

    address: str
    samples: int = -1
    source: str = ""

    @property
    def name(self) -> str:
        return self.address.rsplit("/", 1)[-1]


Opened = tuple[str, Index]
"""A shard that can be read: a local file and its index."""


class Reader:
    """Opens shards in threads: a local one where it is, a remote one as a copy that lives until it is discarded.

    Batches are numbered as they are handed out, so that a copy goes when the last batch that needs it has come back.
    """

    def __init__(self, shards: list[Shard], indexes: dict[int, Index], num_classes: int) -> None:
        self.shards, self.indexes, self.num_classes = shards, indexes, num_classes
        self.pool, self.stop = ThreadPoolExecutor(READERS), threading.Event()
        self.folder, self.lock = "", threading.Lock()
        self.handed_out, self.left = 0, list[str]()
        self.retired: deque[tuple[int, str]] = deque()
        self.error: Exception | None = None

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop.set()
        self.pool.shutdown(cancel_futures=True)
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def request(self, shard: int) -> "Future[Opened]":
        return self.pool.submit(self.open, shard)

    def open(self, shard: int) -> Opened:
        told = self.shards[shard]
        path = self._copy(told.address) if _is_remote(told.address) else told.address
        index = self.indexes.get(shard)
        if index is None or index.size != Path(path).stat().st_size:
            index = self.indexes[shard] = read_index(path, told.address, self.num_classes)
        if told.samples not in (-1, len(index)):
            raise ValueError(f"{told.address} holds {len(index)} samples, not the {told.samples} of {told.source}")
        return path, index

    def count(self, shard: int) -> int:
        path, index = self.open(shard)
        if _is_remote(self.shards[shard].address):
            Path(path).unlink()
        return len(index)

    def _copy(self, address: str) -> str:
        with self.lock:
            self.folder = self.folder or tempfile.mkdtemp(prefix="opencrate-")
        number, path = tempfile.mkstemp(dir=self.folder, suffix=".tar")
        with os.fdopen(number, "wb") as file:
            fetch(address, file, self.stop)
        return path

    def batches(self, steps: Iterator[list[list[Sample]]]) -> Iterator[list[Sample]]:
        """The micro-batches of each step; what was left for the last time in a step goes with its last one.

        An error ends them and is kept: raised here, it would leave a half-made DataLoader to the garbage collector.
        """
        try:
            for step in steps:
                self.handed_out += len(step)
                self.retired.extend((self.handed_out - 1, path) for path in self.left)
                self.left.clear()
                yield from step
        except Exception as error:
            self.error = error

    def retire(self, path: str) -> None:
        """No step after the one that is being put together needs this file."""
        if self.folder and path.startswith(self.folder):
            self.left.append(path)

    def discard(self, received: int) -> None:
        while self.retired and self.retired[0][0] <= received:
            Path(self.retired.popleft()[1]).unlink()


def fetch(address: str, file: BinaryIO, stop: threading.Event | None = None) -> None:
    """Copy what is at a remote address, in ATTEMPTS attempts; FileNotFoundError or PermissionError at once."""
    for attempt in range(ATTEMPTS):
        file.seek(0)
        file.truncate()
        try:
            return _copy_once(address, file, stop or threading.Event())
        except (FileNotFoundError, PermissionError) as error:
            kind = FileNotFoundError if isinstance(error, FileNotFoundError) else PermissionError
            raise kind(f"{address} cannot be read: {_reason(error)}") from error
        except (ImportError, ValueError) as error:  # a filesystem that fsspec does not have
            raise ValueError(f"{address} cannot be read: {_reason(error)}") from error
        except Exception as error:  # every filesystem of fsspec has errors of its own
            if attempt == ATTEMPTS - 1 or (stop and stop.is_set()):
                raise OSError(f"{address} cannot be read, in {attempt + 1} attempts: {_reason(error)}") from error
            log.warning("reading %s again: %s", address, _reason(error))
            time.sleep(PATIENCE * 2**attempt)
    return None


def _copy_once(address: str, file: BinaryIO, stop: threading.Event) -> None:
    source, expected = _open_remote(address)
    copied = 0
    with source:
        while content := source.read(2**20):
            if stop.is_set():
                raise OSError("it is no longer wanted")
            copied += file.write(content)
    file.flush()
    if expected is not None and copied != expected:
        raise OSError(f"the connection ended after {copied} of {expected} bytes")


def _open_remote(address: str) -> tuple[Any, int | None]:
    """A stream of bytes, and how many there are, if that is told."""
    if not address.startswith(("http://", "https://")):
        import fsspec

        return fsspec.open(address, "rb").open(), None
    try:
        response = urllib.request.urlopen(address, timeout=60)
    except urllib.error.HTTPError as error:
        error.close()
        kind = {401: PermissionError, 403: PermissionError, 404: FileNotFoundError, 410: FileNotFoundError}
        raise kind.get(error.code, OSError)(f"the server answers {error.code} {error.reason}") from None
    length = response.headers.get("Content-Length")
    return response, int(length) if length else None


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _is_remote(address: str) -> bool:
    return "://" in address


def expand(pattern: str) -> list[str]:
    """The names that a pattern stands for: a-{08..11}.tar, {a,b}.tar, and several patterns joined by ::."""
    if "::" in pattern:
        return [name for part in pattern.split("::") for name in expand(part)]
    found = re.search(r"\{([^{}]*)\}", pattern)
    if not found:
        return [pattern]
    if numbers := re.fullmatch(r"(\d+)\.\.(\d+)", found[1]):
        first, last = numbers.groups()
        width = max(len(first), len(last)) if first[0] == "0" or last[0] == "0" else 0
        inner = [f"{n:0{width}d}" for n in range(int(first), int(last) + 1)]
    else:
        inner = found[1].split(",") if "," in found[1] else []
    if not inner:
        raise ValueError(f"{found[0]} in {pattern!r} is neither a range, as {{0000..0146}}, nor a list, as {{a,b}}")
    return [name for text in inner for name in expand(pattern[: found.start()] + text + pattern[found.end() :])]


@dataclass
class Sidecar:
    """What files beside the shards tell: sizes by address and who says so, splits, classes."""

    sizes: dict[str, tuple[int, str]] = field(default_factory=dict)
    splits: dict[str, list[str]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()

    def add(self, content: Any, folder: str, source: str) -> None:
        """timm's splits with filenames and shard_lengths, webdataset's shardlist, or open_clip's sizes by name."""
        sizes: dict[str, Any] = {}
        if "splits" in content:
            for name, split in content["splits"].items():
                if split.get("alt_label"):
                    log.warning("%s: the labels of the split %s are others, which are not supported", source, name)
                else:
                    self.splits[name] = [_join(folder, shard) for shard in split["filenames"]]
                    sizes.update(zip(split["filenames"], split.get("shard_lengths") or (), strict=False))
        elif "shardlist" in content:
            sizes = {row["url"]: row["nsamples"] for row in content["shardlist"]}
        else:
            sizes = {shard: size for shard, size in content.items() if shard.endswith(".tar")}
        self.sizes.update({_join(folder, shard): (int(size), source) for shard, size in sizes.items()})
        self.classes = self.classes or tuple(map(str, content.get("classes") or content.get("class_names") or ()))


def _join(folder: str, name: str) -> str:
    return name if _is_remote(name) or name.startswith("/") else f"{folder}/{name}"


def find_shards(root: str, split: str) -> tuple[list[str], Sidecar]:
    """By pattern, if the split's name holds .tar; else by the name of a split that a sidecar tells, or of a folder."""
    root = root.rstrip("/") if _is_remote(root) else str(Path(root).expanduser())
    if not _is_remote(root) and not Path(root).is_dir():
        raise ValueError(f"{root} is not a folder: give the one with the shards, --data.root FOLDER")
    sidecar = Sidecar()
    _read_sidecars(root, sidecar)
    names = _matching(root, split) if ".tar" in split else _named(root, split, sidecar)
    addresses = [_join(root, name) for name in names]
    for folder in dict.fromkeys(address.rsplit("/", 1)[0] for address in addresses):
        if folder != root:
            _read_sidecars(folder, sidecar)
    return addresses, sidecar


def _matching(root: str, pattern: str) -> list[str]:
    names = []
    for name in expand(pattern):
        if not any(c in name for c in "*?["):
            names.append(name)
        elif _is_remote(root) or _is_remote(name):
            raise ValueError(f"{name} cannot be searched for at a remote address: give a range such as {{0000..0146}}")
        else:
            found = sorted(str(path) for path in Path(root).glob(name))
            if not found:
                raise ValueError(f"{root} has no shards {name}")
            names += found
    return names


def _named(root: str, split: str, sidecar: Sidecar) -> list[str]:
    for name in (split, *(VALIDATION_NAMES if split in VALIDATION_NAMES else ())):
        if name in sidecar.splits:
            return sidecar.splits[name]
        if not _is_remote(root):
            for pattern in (f"{name}/*.tar", f"{name}-*.tar", f"*-{name}-*.tar"):
                if found := sorted(str(path) for path in Path(root).glob(pattern)):
                    return found
    raise ValueError(f"{root} does not tell the shards of {split!r}: give a pattern such as {split}-{{0000..0146}}.tar")


def _read_sidecars(folder: str, sidecar: Sidecar) -> None:
    for name in SIDECARS:
        source = f"{folder}/{name}"
        content = io.BytesIO()
        try:
            if _is_remote(folder):
                fetch(source, content)
            else:
                content.write(Path(source).read_bytes())
        except (FileNotFoundError, PermissionError):
            continue
        text = content.getvalue().decode(errors="replace")
        try:
            sidecar.add(yaml.safe_load(text) if name.endswith(".yaml") else json.loads(text), folder, source)
        except (ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
            raise ValueError(f"{source} does not tell the sizes of shards in a known form") from error


def _with_sizes(addresses: list[str], sidecar: Sidecar, data: Dataset, indexes: dict[int, Index]) -> list[Shard]:
    """The shards, sizes from what is told of them, then from the cache, at last from reading them."""
    shards = [Shard(address, *sidecar.sizes.get(address, (-1, ""))) for address in addresses]
    for shard in shards:
        if not _is_remote(shard.address) and not Path(shard.address).is_file():
            raise FileNotFoundError(f"the shard {shard.address} does not exist")
    unknown = [i for i, shard in enumerate(shards) if shard.samples < 0]
    if not unknown:
        return shards
    cache = _cache_file(data.root)
    known = _read_cache(cache)
    stamps = {i: _stamp(shards[i].address) for i in unknown}
    entries = {i: known.get(shards[i].address, [None, 0]) for i in unknown}
    missing = [i for i in unknown if entries[i][0] != stamps[i]]
    if missing:
        log.info("counting the samples of %d shards of %s, once", len(missing), data.root)
        with Reader(shards, indexes, data.num_classes) as reader:
            for i, size in zip(missing, reader.pool.map(reader.count, missing), strict=True):
                entries[i] = [stamps[i], size]
        _write_cache(cache, {**known, **{shards[i].address: entries[i] for i in missing}})
    for i, (_, size) in entries.items():
        shards[i] = Shard(shards[i].address, size, str(cache))
    return shards


def _stamp(address: str) -> list[int]:
    """What changes when a local shard does; of a remote one nothing is known but its address."""
    if _is_remote(address):
        return []
    stat = Path(address).stat()
    return [stat.st_size, stat.st_mtime_ns]


def _cache_file(root: str) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    key = root if _is_remote(root) else str(Path(root).expanduser().resolve())
    return base / "opencrate" / "shards" / f"{sha256(key.encode()).hexdigest()[:16]}.json"


def _read_cache(cache: Path) -> dict[str, Any]:
    try:
        content = json.loads(cache.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_cache(cache: Path, content: dict[str, Any]) -> None:
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=cache.parent, delete=False) as file:
            json.dump(content, file)
        Path(file.name).replace(cache)
    except OSError as error:
        log.warning("the sizes of the shards cannot be kept in %s: %s", cache, error.strerror)
