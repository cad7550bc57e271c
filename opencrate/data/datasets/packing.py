"""Packing: every picture of a split is decoded once and written as a square of uint8.

A split becomes a folder of images-00000.npy, … of (n, side, side, c), targets.npy and index.json, which is written
last: a folder without it is incomplete. unfinished.json records the shards written so far, and packing again continues
after the last complete one.
"""

import hashlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image
from pydantic import TypeAdapter

from ...errors import one_line, printable, shown
from ...files import PICTURE_PIXELS, read_json, reason_not_written, replacing, write_json
from .decoding import DecodeFailures, error_text, with_channels
from .pictures import Pictures

A = TypeVar("A")
B = TypeVar("B")

INDEX, UNFINISHED, TARGETS = "index.json", "unfinished.json", "targets.npy"
VERSION = b"\x93NUMPY\x01\0"  # a header of a later version may have 4 GB
HEADER = 128  # bytes before the pictures of a shard: NumPy pads its header so that the first axis may change


@dataclass
class Shard:
    """A file of the folder: its name, pictures and bytes."""

    file: str
    count: int
    size: int

    def damage(self, folder: Path) -> str:
        """What is wrong with the file, or an empty text."""
        file = folder / self.file
        if not file.is_file():
            return f"{file} is missing"
        size = file.stat().st_size
        return "" if size == self.size else f"{file} has {size} bytes and should have {self.size}"


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
        write_json(file, {"count": self.count, **asdict(self)}, indent=1)

    @classmethod
    def read(cls, file: Path) -> "Index":
        content = read_json(file)
        try:
            index = TypeAdapter(cls).validate_python(content)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{file} is not an index of packed pictures, or damaged") from error
        if index.count != content.get("count"):
            raise ValueError(
                f"{file} says {shown(content.get('count'))} pictures, but its shards have {shown(index.count)}"
            )
        pixels = index.side**2 * index.channels
        fits = index.side > 0 and index.channels in (1, 3) and pixels <= PICTURE_PIXELS
        for shard in index.shards:
            agrees = shard.count >= 0 and shard.size == HEADER + shard.count * pixels
            if not fits or not agrees or not re.fullmatch(r"[\w.-]{1,100}", shard.file):
                raise ValueError(f"{file} is damaged: its shard {shown(shard.file)} does not agree with its pictures")
        return index


def pack(
    pictures: Pictures,
    directory: str | Path,
    side: int = 256,
    in_chans: int = 3,
    shard: int = 16384,
    max_decode_failures: float = 0.01,
    workers: int | None = None,
) -> Index:
    """Write the pictures' central squares, `side` pixels wide, to `directory`; continue if it was interrupted.

    Args:
        shard: pictures in a file; 16,384 of 256 × 256 are 3.2 GB.
        max_decode_failures: the fraction of pictures that may fail to decode.
        workers: threads, by default one per core; PIL decodes and resizes without holding Python's lock.
    """
    folder, threads, total = Path(directory).expanduser(), workers or os.cpu_count() or 1, len(pictures)
    index, complete = _resume(folder, _fresh(pictures, side, in_chans, shard))
    if complete:
        return index
    failures = DecodeFailures(max_decode_failures, total)
    for _, name, reason in index.skipped:
        failures.add(name, reason)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        index.write(folder / UNFINISHED)
        (folder / INDEX).unlink(missing_ok=True)
        with ThreadPoolExecutor(threads, "pack") as pool:
            for first in range(len(index.shards) * shard, total, shard):
                numbers = range(first, min(first + shard, total))
                squares = _squares(pool, 2 * threads, pictures, numbers, index, failures)
                index.shards.append(_write_shard(folder / f"images-{len(index.shards):05d}.npy", index, squares))
                index.write(folder / UNFINISHED)
        with replacing(folder / TARGETS) as file:
            np.save(file, np.delete(pictures.targets.astype(np.int64), [i for i, _, _ in index.skipped]))
        index.write(folder / INDEX)
        (folder / UNFINISHED).unlink(missing_ok=True)
    except OSError as error:
        done = min(len(index.shards) * shard, total)
        raise OSError(
            f"{folder} could not be written: {reason_not_written(error)}; {done} of {total} pictures are packed,"
            " and packing again continues from there"
        ) from error
    return index


def _fresh(pictures: Pictures, side: int, in_chans: int, shard: int) -> Index:
    if side < 1 or shard < 1:
        name, value = ("side", side) if side < 1 else ("shard", shard)
        raise ValueError(f"{name} must be at least 1, got {value}")
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
    if replace(existing, shards=[], skipped=[]) != fresh:
        raise ValueError(
            f"{folder} holds other pictures, or these with other settings: remove it or give another folder"
        )
    kept = list(takewhile(lambda shard: not shard.damage(folder), existing.shards))
    complete = file.name == INDEX and len(kept) == len(existing.shards) and (folder / TARGETS).is_file()
    skipped = [entry for entry in existing.skipped if entry[0] < len(kept) * fresh.shard]
    return replace(fresh, shards=kept, skipped=skipped), complete


def _squares(
    pool: ThreadPoolExecutor,
    depth: int,
    pictures: Pictures,
    numbers: range,
    index: Index,
    failures: DecodeFailures,
) -> Iterator[np.ndarray]:
    """The squares of these pictures; those that do not decode are left out, and recorded in the index."""

    def square(i: int) -> np.ndarray | str:
        try:
            return _square(with_channels(pictures.picture(i), index.channels), index.side)
        except (OSError, ValueError) as error:
            return str(error)

    for i, row in zip(numbers, ahead(pool, square, numbers, depth), strict=True):
        if isinstance(row, str):
            failures.add(pictures.name(i), row)
            index.skipped.append((i, printable(pictures.name(i)), one_line(row)))
        else:
            yield row


def _square(image: Image.Image, side: int) -> np.ndarray:
    """The central square, resized: uint8 (side, side, c)."""
    width, height = image.size
    short = min(width, height)
    left, top = (width - short) / 2, (height - short) / 2
    image = image.resize((side, side), Image.Resampling.BICUBIC, (left, top, left + short, top + short))
    return np.asarray(image).reshape(side, side, -1)


def _write_shard(path: Path, index: Index, squares: Iterable[np.ndarray]) -> Shard:
    """Write one file, picture by picture; its header comes last, because it says how many there are."""
    count = 0
    with replacing(path) as file:
        file.seek(HEADER)
        for square in squares:
            file.write(square.data)
            count += 1
        file.seek(0)
        shape = (count, index.side, index.side, index.channels)
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return Shard(path.name, count, path.stat().st_size)


class PackedPictures(Pictures):
    """A packed split. Its shards are mapped into memory: `shards` are arrays of (n, bytes of a picture)."""

    def __init__(self, folder: Path, in_chans: int) -> None:
        self.folder, self.label = folder, f"{folder},"
        if not (folder / INDEX).is_file():
            if (folder / UNFINISHED).is_file():
                raise ValueError(f"packing into {folder} was interrupted: run `opencrate pack` again to complete it")
            raise ValueError(f"{folder} contains no packed pictures: write them with `opencrate pack`")
        self.index = Index.read(folder / INDEX)
        if self.index.channels != in_chans:
            raise ValueError(f"{folder} has {self.index.channels} channels but data.in_chans is {in_chans}")
        self.classes = tuple(self.index.classes)
        self.shape = (self.index.side, self.index.side, self.index.channels)
        self.targets = self._read_targets()
        self.first = np.cumsum([0, *(shard.count for shard in self.index.shards)])  # the first number of every shard
        self.shards = [self._open_shard(shard) for shard in self.index.shards]

    def picture(self, i: int) -> Image.Image:
        shard = int(np.searchsorted(self.first, i, "right")) - 1
        shape = self.shape if self.index.channels == 3 else self.shape[:2]
        return Image.fromarray(self.shards[shard][i - self.first[shard]].reshape(shape))

    @property
    def images(self) -> np.ndarray:
        """All pictures in memory, uint8 (n, side, side, c)."""
        self.require_unchanged()
        return np.concatenate(self.shards).reshape(-1, *self.shape)

    def require_unchanged(self) -> None:
        """Reading a mapped file that has been truncated would kill the process."""
        for shard in self.index.shards:
            if damage := shard.damage(self.folder):
                raise ValueError(f"{damage}: it was changed while in use")

    def _open_shard(self, shard: Shard) -> np.ndarray:
        if damage := shard.damage(self.folder):
            raise ValueError(f"{damage}: run `opencrate pack` again to repair it")
        return _mapped(self.folder / shard.file, (shard.count, *self.shape), np.uint8).reshape(shard.count, -1)

    def _read_targets(self) -> np.ndarray:
        file = self.folder / TARGETS
        if not file.is_file():
            raise ValueError(f"{file} is missing: pack the pictures again")
        return np.array(_mapped(file, (self.index.count,), np.int64))


def _mapped(file: Path, shape: tuple[int, ...], kind: type[np.generic]) -> np.ndarray:
    """An array in a file, which has to be of this shape and type."""
    try:
        with file.open("rb") as opened:
            if opened.read(len(VERSION)) != VERSION:
                raise ValueError("it is not NumPy's format of version 1.0")
        values = np.asarray(np.lib.format.open_memmap(file, mode="r"))
    except Exception as error:  # NumPy raises many kinds for what a header may say
        raise ValueError(f"{file} is damaged: {error_text(error)}") from error
    if values.shape != shape or values.dtype != kind or not values.flags.c_contiguous:
        given = one_line(f"{values.dtype} of {values.shape}", 60)
        raise ValueError(f"{file} contains {given}, which does not agree with {INDEX}")
    return values


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
