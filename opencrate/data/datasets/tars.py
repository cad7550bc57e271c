"""The samples of tar files: where the bytes of each picture are, and who opens, copies and discards the files."""

import json
import os
import re
import shutil
import tarfile
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from .remote import fetch, is_remote

__all__ = ["Index", "Opened", "Reader", "Sample", "Shard", "read_index", "read_sample", "remembered_index"]

READERS = 8  # threads that copy and index shards
PICTURES = ("jpg", "jpeg", "png", "webp")


@dataclass(frozen=True)
class Shard:
    """A tar file, the number of its samples, and who says so; −1 and nobody at first."""

    address: str
    samples: int = -1
    source: str = ""

    @property
    def name(self) -> str:
        return self.address.rsplit("/", 1)[-1]


class Sample(NamedTuple):
    """Sample `number` of a shard, and where its picture's bytes are."""

    shard: int
    number: int
    path: str
    offset: int
    length: int
    target: int


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


remembered_index = lru_cache(maxsize=4)(lambda path, num_classes: read_index(path, path, num_classes))


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


Opened = tuple[str, Index]
"""A shard that can be read: a local file and its index."""


def read_sample(sample: Sample, files: dict[str, BinaryIO]) -> bytes:
    """The bytes of its picture; `files` are those open already, for the caller to close."""
    try:
        if sample.path not in files:
            files[sample.path] = Path(sample.path).open("rb")  # noqa: SIM115
        file = files[sample.path]
        file.seek(sample.offset)
        content = file.read(sample.length)
    except OSError as error:
        raise OSError(f"cannot be read any more: {error.strerror or error}") from error
    if len(content) < sample.length:
        raise OSError(f"is truncated: it ends before byte {sample.offset + sample.length}")
    return content


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

    def request(self, shard: int) -> Future[Opened]:
        return self.pool.submit(self.open, shard)

    def open(self, shard: int) -> Opened:
        told = self.shards[shard]
        path = self._copy(told.address) if is_remote(told.address) else told.address
        index = self.indexes.get(shard)
        if index is None or index.size != Path(path).stat().st_size:
            index = self.indexes[shard] = read_index(path, told.address, self.num_classes)
        if told.samples not in (-1, len(index)):
            raise ValueError(f"{told.address} holds {len(index)} samples, not the {told.samples} of {told.source}")
        return path, index

    def count(self, shard: int) -> int:
        path, index = self.open(shard)
        if is_remote(self.shards[shard].address):
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
