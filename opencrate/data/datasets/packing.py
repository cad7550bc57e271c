"""Packing: every picture of a split is decoded once and written as a square of uint8.

A split becomes a folder of images-00000.npy, … of (n, side, side, c), targets.npy and index.json, which is written
last: a folder without it is incomplete. unfinished.json records the shards written so far, and packing again continues
after the last complete one.
"""

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from .decoding import DecodeFailures, with_channels
from .pictures import Pictures

A = TypeVar("A")
B = TypeVar("B")

INDEX, UNFINISHED, TARGETS = "index.json", "unfinished.json", "targets.npy"


@dataclass
class Shard:
    """A file of the folder: its name, pictures and bytes."""

    file: str
    count: int
    size: int


@dataclass
class Index:
    """What a packed split holds.

    Args:
        source: a hash of the names of all pictures, to recognise a folder of the same set.
        total: number of pictures in the source, including those that do not decode.
        shard: number of pictures in the source from which one shard is made.
        skipped: the pictures that do not decode: number, name and reason.
    """

    source: str
    total: int
    shard: int
    side: int
    channels: int
    classes: list[str]
    shards: list[Shard] = field(default_factory=list)
    skipped: list[tuple[int, str, str]] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(shard.count for shard in self.shards)

    def write(self, file: Path) -> None:
        content = json.dumps({"count": self.count, **asdict(self)}, indent=1)
        _write(file, lambda f: f.write(content.encode()))

    @classmethod
    def read(cls, file: Path) -> "Index":
        try:
            content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            count = content.pop("count")
            content["shards"] = [Shard(**shard) for shard in content["shards"]]
            content["skipped"] = [(int(i), name, reason) for i, name, reason in content["skipped"]]
            index = cls(**content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{file} is not an index of packed pictures: {error}") from error
        if index.count != count:
            raise ValueError(f"{file} says {count} pictures, but its shards have {index.count}")
        return index


def pack(
    pictures: Pictures,
    directory: str | Path,
    side: int = 256,
    in_chans: int = 3,
    shard: int = 16384,
    max_decode_failures: float = 0.01,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Index:
    """Write the pictures' central squares, `side` pixels wide, to `directory`; continue if it was interrupted.

    Args:
        shard: pictures in a file; 16,384 of 256 × 256 are 3.2 GB.
        max_decode_failures: the fraction of pictures that may fail to decode.
        workers: threads, by default one per core; PIL decodes and resizes without holding Python's lock.
        progress: called after every shard with the number of pictures done and the total.
    """
    folder, threads, total = Path(directory).expanduser(), workers or os.cpu_count() or 1, len(pictures)
    index, complete = _resume(folder, _fresh(pictures, side, in_chans, shard))
    if complete:
        return index
    done = min(len(index.shards) * shard, total)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / INDEX).unlink(missing_ok=True)
        for done in _write_shards(folder, index, pictures, DecodeFailures(max_decode_failures, total), threads):
            index.write(folder / UNFINISHED)
            if progress:
                progress(done, total)
        skipped = {i for i, _, _ in index.skipped}
        targets = np.array([pictures.target(i) for i in range(total) if i not in skipped], np.int64)
        _write(folder / TARGETS, lambda f: np.save(f, targets))
        index.write(folder / INDEX)
        (folder / UNFINISHED).unlink(missing_ok=True)
    except OSError as error:
        raise OSError(
            f"{folder} could not be written: {error.strerror or error}; {done} of {total} pictures are packed,"
            " and packing again continues from there"
        ) from error
    return index


def _fresh(pictures: Pictures, side: int, in_chans: int, shard: int) -> Index:
    if side < 1 or shard < 1:
        raise ValueError(f"side and shard must be at least 1, got {side} and {shard}")
    if not len(pictures):
        raise ValueError("there are no pictures to pack")
    names = hashlib.sha256()
    for i in range(len(pictures)):
        names.update(f"{pictures.name(i)}\n".encode(errors="surrogateescape"))
    return Index(names.hexdigest(), len(pictures), shard, side, in_chans, list(pictures.classes))


def _resume(folder: Path, fresh: Index) -> tuple[Index, bool]:
    """The folder's index, up to the first shard that is missing or damaged, and whether nothing is missing."""
    file = next((folder / name for name in (INDEX, UNFINISHED) if (folder / name).is_file()), None)
    if file is None:
        return fresh, False
    existing = Index.read(file)
    if any(
        getattr(existing, k) != getattr(fresh, k) for k in ("source", "total", "shard", "side", "channels", "classes")
    ):
        raise ValueError(
            f"{folder} holds other pictures, or these with other settings: remove it or give another folder"
        )
    kept = list(takewhile(lambda shard: not damage_of(folder, shard), existing.shards))
    complete = file.name == INDEX and len(kept) == len(existing.shards) and (folder / TARGETS).is_file()
    skipped = [entry for entry in existing.skipped if entry[0] < len(kept) * fresh.shard]
    return replace(fresh, shards=kept, skipped=skipped), complete


def _write_shards(
    folder: Path, index: Index, pictures: Pictures, failures: DecodeFailures, threads: int
) -> Iterator[int]:
    """Add the missing shards to the folder and to the index; yield the number of pictures done after each."""
    for _, name, reason in index.skipped:
        failures.add(name, reason)

    def square(i: int) -> np.ndarray | str:
        try:
            return _square(with_channels(pictures.picture(i), index.channels), index.side)
        except (OSError, ValueError) as error:
            return str(error)

    with ThreadPoolExecutor(threads, "pack") as pool:
        for first in range(len(index.shards) * index.shard, len(pictures), index.shard):
            numbers = range(first, min(first + index.shard, len(pictures)))
            squares = ahead(pool, square, numbers, 2 * threads)
            rows = ((i, pictures.name(i), row) for i, row in zip(numbers, squares, strict=True))
            index.shards.append(_write_shard(folder, index, rows, len(numbers), failures))
            yield numbers.stop


def _square(image: Image.Image, side: int) -> np.ndarray:
    """The central square, resized: uint8 (side, side, c)."""
    width, height = image.size
    short = min(width, height)
    left, top = (width - short) / 2, (height - short) / 2
    image = image.resize((side, side), Image.Resampling.BICUBIC, (left, top, left + short, top + short))
    return np.asarray(image).reshape(side, side, -1)


def _write_shard(
    folder: Path,
    index: Index,
    rows: Iterable[tuple[int, str, np.ndarray | str]],
    expected: int,
    failures: DecodeFailures,
) -> Shard:
    """Write one file, row by row; a row that is an error text instead of a picture is left out."""
    file_name, kept = f"images-{len(index.shards):05d}.npy", 0
    skipped: list[tuple[int, str, str]] = []

    def write(file: Any) -> None:
        nonlocal kept
        _write_header(file, expected, index)
        begin = file.tell()
        for i, name, row in rows:
            if isinstance(row, str):
                failures.add(name, row)
                skipped.append((i, name, row))
            else:
                file.write(row.data)
                kept += 1
        if kept != expected:  # numpy pads a header so that the first axis may change
            file.seek(0)
            _write_header(file, kept, index)
            if file.tell() != begin:
                raise ValueError(f"the header of {file_name} changed its length")

    size = _write(folder / file_name, write)
    index.skipped += skipped
    return Shard(file_name, kept, size)


def _write_header(file: Any, count: int, index: Index) -> None:
    shape = (count, index.side, index.side, index.channels)
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})


def _write(file: Path, write: Callable[[Any], Any]) -> int:
    """Write under another name, flush to the disk and rename: the file is complete or absent. Returns its size."""
    unfinished = file.with_name(f"{file.name}.part")
    try:
        with unfinished.open("wb") as f:
            write(f)
            f.flush()
            os.fsync(f.fileno())
        size = unfinished.stat().st_size
        unfinished.replace(file)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    return size


def damage_of(folder: Path, shard: Shard) -> str:
    """What is wrong with a shard's file, or an empty text."""
    file = folder / shard.file
    if not file.is_file():
        return f"{file} is missing"
    if (size := file.stat().st_size) != shard.size:
        return f"{file} has {size} bytes and should have {shard.size}"
    return ""


def ahead(pool: ThreadPoolExecutor, work: Callable[[A], B], items: Iterable[A], depth: int) -> Iterator[B]:
    """work(item) for all items in order, `depth` of them at a time; an error in a thread is raised here."""
    under_way: deque[Future[B]] = deque()
    try:
        for item in items:
            under_way.append(pool.submit(work, item))
            if len(under_way) >= depth:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        for future in under_way:
            future.cancel()
