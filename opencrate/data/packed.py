"""Packed sets: every picture is decoded once to a square of uint8, and a run reads, moves and crops whole batches.

A split is a folder of images-00000.npy, … of (n, side, side, c), targets.npy and index.json, which is written last: a
folder without it is not whole. What `pack` has done so far is in unfinished.json, and packing again continues after the
last whole shard.

The shards are mapped into memory. A crop is of the central square, which is what they hold; a resized crop of a whole
picture may see its ends too.
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
import torch
from PIL import Image
from torch import Tensor

from .crops import centre_weights, crop_and_resize, crop_boxes, product_dtype, resample, shifted_weights
from .feed import Batch, Batches, Feed, Split, generator, order
from .pictures import Broken, Pictures, require_classes, split_folder, with_channels
from .settings import Augmentation, Dataset

__all__ = ["Index", "Packed", "Shard", "pack"]

A = TypeVar("A")
B = TypeVar("B")

INDEX, UNFINISHED, TARGETS = "index.json", "unfinished.json", "targets.npy"
AHEAD = 4  # batches that are read ahead, each by a thread of its own
NUMBERS = 6  # of a sample: class, flip, and the box as top, left, height, width
CROPS = 1  # sets the random numbers of crops apart from other draws of the same step


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
        source: a hash of the names of all pictures, by which a folder is known to be of the same set.
        total: pictures of the source, with those that do not decode.
        shard: pictures of the source that one shard is made of.
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
            raise ValueError(f"{file} says {count} pictures, and its shards {index.count}")
        return index


def pack(
    pictures: Pictures,
    directory: str | Path,
    side: int = 256,
    in_chans: int = 3,
    shard: int = 16384,
    broken: float = 0.01,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Index:
    """Writes the pictures' central squares, `side` pixels wide, to `directory`, and continues where it was interrupted.

    Args:
        shard: pictures for a file; 16,384 of 256 × 256 are 3.2 GB.
        broken: the share of pictures that may fail to decode.
        workers: threads; PIL decodes and resizes outside Python's lock. All cores, unless told.
        progress: told after every shard how many of how many pictures are done.
    """
    folder, threads, total = Path(directory).expanduser(), workers or os.cpu_count() or 1, len(pictures)
    index, whole = _resume(folder, _fresh(pictures, side, in_chans, shard))
    if whole:
        return index
    done = min(len(index.shards) * shard, total)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / INDEX).unlink(missing_ok=True)
        for done in _write_shards(folder, index, pictures, Broken(broken, total), threads):
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
            " and packing again continues there"
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
    """The folder's index, up to the first shard that is not whole, and whether nothing is missing."""
    file = next((folder / name for name in (INDEX, UNFINISHED) if (folder / name).is_file()), None)
    if file is None:
        return fresh, False
    found = Index.read(file)
    if any(getattr(found, k) != getattr(fresh, k) for k in ("source", "total", "shard", "side", "channels", "classes")):
        raise ValueError(f"{folder} holds other pictures, or these packed otherwise: remove it or give another folder")
    kept = list(takewhile(lambda shard: not _damage(folder, shard), found.shards))
    whole = file.name == INDEX and len(kept) == len(found.shards) and (folder / TARGETS).is_file()
    skipped = [entry for entry in found.skipped if entry[0] < len(kept) * fresh.shard]
    return replace(fresh, shards=kept, skipped=skipped), whole


def _write_shards(folder: Path, index: Index, pictures: Pictures, broken: Broken, threads: int) -> Iterator[int]:
    """Adds the missing shards to the folder and to the index; yields after each how many pictures are done."""
    for _, name, reason in index.skipped:
        broken.add(name, reason)

    def square(i: int) -> np.ndarray | str:
        try:
            return _square(with_channels(pictures.picture(i), index.channels), index.side)
        except (OSError, ValueError) as error:
            return str(error)

    with ThreadPoolExecutor(threads, "pack") as pool:
        for first in range(len(index.shards) * index.shard, len(pictures), index.shard):
            numbers = range(first, min(first + index.shard, len(pictures)))
            squares = _ahead(pool, square, numbers, 2 * threads)
            rows = ((i, pictures.name(i), row) for i, row in zip(numbers, squares, strict=True))
            index.shards.append(_write_shard(folder, index, rows, len(numbers), broken))
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
    broken: Broken,
) -> Shard:
    """One file, row by row; rows that are a reason instead of a picture are left out."""
    file_name, kept = f"images-{len(index.shards):05d}.npy", 0
    skipped: list[tuple[int, str, str]] = []

    def write(file: Any) -> None:
        nonlocal kept
        _write_header(file, expected, index)
        begin = file.tell()
        for i, name, row in rows:
            if isinstance(row, str):
                broken.add(name, row)
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
    """Writes under another name, to the disk, and renames: the file is whole or not there. Returns its bytes."""
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


def _damage(folder: Path, shard: Shard) -> str:
    """What is wrong with a shard's file, or nothing."""
    file = folder / shard.file
    if not file.is_file():
        return f"{file} is missing"
    if (size := file.stat().st_size) != shard.size:
        return f"{file} has {size} bytes and should have {shard.size}"
    return ""


def _ahead(pool: ThreadPoolExecutor, work: Callable[[A], B], items: Iterable[A], depth: int) -> Iterator[B]:
    """work(item) of all items in their order, `depth` of them under way; an error in a thread is raised here."""
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


class Packed(Feed):
    """A packed split. What is random about a global batch is drawn for the whole of it, from seed, epoch and step."""

    def __init__(
        self,
        data: Dataset,
        augment: Augmentation,
        training: bool,
        seed: int = 0,
        device: torch.device | str = "cpu",
        compiled: bool = False,
    ) -> None:
        for name in ("randaugment", "erase"):
            if training and getattr(augment, name):
                raise ValueError(f"packed pictures are varied by crops and flips, and not by augment.{name}")
        self.folder = split_folder(Path(data.root).expanduser(), data.train if training else data.validation)
        self.index = _open_index(self.folder)
        self.classes = tuple(self.index.classes)
        require_classes(self.classes, self.index.count, data)
        if self.index.channels != data.in_chans:
            raise ValueError(f"{self.folder} has {self.index.channels} channels and data.in_chans is {data.in_chans}")
        self.data, self.augment, self.seed, self.device = data, augment, seed, torch.device(device)
        self.targets = _read_targets(self.folder, self.index)
        self.first = np.cumsum([0, *(shard.count for shard in self.index.shards)])  # of every shard
        self.pixels = [_open_shard(self.folder, shard, self.index) for shard in self.index.shards]
        mean, std = (torch.tensor(v, device=self.device).view(-1, 1, 1) for v in (data.mean, data.std))
        self.scale, self.shift = 1 / (255 * std), -mean / std
        side, mode, dtype = self.index.side, augment.interpolation, product_dtype(self.device)
        self.whole = centre_weights(side, data.size, data.size, mode, dtype, self.device)
        self.centre = centre_weights(side, data.size, data.shorter, mode, dtype, self.device)
        # One by one, the operations that make the weights take four times as long as the products that they are for.
        self.vary = torch.compile(self._vary, dynamic=False) if compiled else self._vary

    def __len__(self) -> int:
        return self.index.count

    def train(self, epoch: int, start: int, split: Split) -> Batches:
        return self._batches(self._draws(epoch, start, split), split.micro_batch, self.vary)

    def evaluate(self, batch: int, rank: int = 0, world: int = 1) -> Batches:
        shares = torch.arange(rank, len(self), world).split(batch)
        numbers = torch.nn.functional.pad(self.targets[:, None], (0, NUMBERS - 1))
        return self._batches(((share, numbers[share]) for share in shares), batch, self._centre)

    def _draws(self, epoch: int, start: int, split: Split) -> Iterator[tuple[Tensor, Tensor]]:
        """Of every micro-batch the pictures (m,) and their numbers (m, 6)."""
        samples, places = order(len(self), self.seed, epoch), torch.arange(split.batch)
        for step in range(start, self.steps(split.batch)):
            chosen, draw = samples[step * split.batch :][: split.batch], generator(self.seed, epoch, step, CROPS)
            flips = torch.rand(split.batch, generator=draw) < self.augment.flip
            numbers = torch.cat([torch.stack([self.targets[chosen], flips], 1), self._boxes(split.batch, draw)], 1)
            for mine in split.micro_batches(places):
                yield chosen[mine], numbers[mine]

    def _boxes(self, count: int, draw: torch.Generator) -> Tensor:
        side, size = self.index.side, self.data.size
        if self.augment.crop == "resized":
            return crop_boxes(count, side, side, self.augment.scale, self.augment.ratio, draw)
        border = round(self.augment.padding * size) if self.augment.crop == "padded" else 0
        shifts = torch.randint(-border, border + 1, (count, 2), generator=draw)
        return torch.cat([shifts, torch.full((count, 2), size)], 1)

    def _vary(self, images: Tensor, numbers: Tensor) -> Batch:
        images, boxes, flips = images[numbers[:, -1]], numbers[:, 2:-1], numbers[:, 1] == 1
        if self.augment.crop == "resized":
            crops = crop_and_resize(images, boxes, flips, self.data.size, self.augment.interpolation)
        else:
            rows, columns = (shifted_weights(self.whole, boxes[:, axis]) for axis in (0, 1))
            crops = resample(images, rows, columns, flips)
        return self._normalise(crops), numbers[:, 0].clone()

    def _centre(self, images: Tensor, numbers: Tensor) -> Batch:
        crops = resample(images[numbers[:, -1]], self.centre[None], self.centre[None])
        return self._normalise(crops), numbers[:, 0].clone()

    def _normalise(self, crops: Tensor) -> Tensor:
        """(x/255 − mean)/std, of values that a bicubic filter may have taken beyond 0…255."""
        crops = crops.to(torch.float32, memory_format=torch.contiguous_format).clamp_(0, 255)
        return crops.mul_(self.scale).add_(self.shift)

    def _batches(
        self, batches: Iterable[tuple[Tensor, Tensor]], size: int, prepare: Callable[[Tensor, Tensor], Batch]
    ) -> Batches:
        """Reads ahead in threads, which end with this generator, however it ends."""
        for shard in self.index.shards:  # reading a mapped file that has become shorter would end the process
            if damage := _damage(self.folder, shard):
                raise ValueError(f"{damage}: it was changed while it was in use")
        stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        shape = (size, self.index.side, self.index.side, self.index.channels)
        with torch.inference_mode(False):  # whoever asks may be in it, the threads that fill them are not
            slots = [_Slot(shape, self.device, stream) for _ in range(AHEAD)]
        turns = ((slots[k % AHEAD], *batch) for k, batch in enumerate(batches))
        pool = ThreadPoolExecutor(AHEAD, "packed")
        try:
            for slot in _ahead(pool, self._read, turns, AHEAD):
                images, numbers = slot.take()
                batch = prepare(images.permute(0, 3, 1, 2), numbers)
                slot.release()
                yield batch
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            if stream:
                stream.synchronize()  # before the slots' memory is given to others

    def _read(self, turn: "tuple[_Slot, Tensor, Tensor]") -> "_Slot":
        """In a thread: the pictures into the slot's memory, shard by shard, and on to the device.

        One call for each shard, which copies its pictures without Python's lock: the loop that launches kernels needs
        it, and picture by picture the threads would take it from there 10,000 times a second. NumPy's call, because
        torch's would share every picture's copy among as many threads as there are cores, for each batch ahead.
        """
        slot, samples, numbers = turn
        samples, sequence = samples.sort()
        slot.fill(numbers, sequence)
        sorted_samples = samples.numpy()
        ends = np.searchsorted(sorted_samples, self.first)
        for shard in np.flatnonzero(np.diff(ends)).tolist():
            part, pixels = slice(ends[shard], ends[shard + 1]), self.pixels[shard]
            rows = sorted_samples[part] - self.first[shard]
            if rows[-1] >= len(pixels):  # not a matter for `take`, which would copy everything twice to be safe
                file = self.index.shards[shard].file
                raise IndexError(f"picture {rows[-1]} is out of range: {file} has {len(pixels)}")
            np.take(pixels, rows, axis=0, out=slot.rows[part], mode="clip")
        slot.send()
        return slot


class _Slot:
    """Room for a batch, used in turns: page-locked on the host, and on the device, which copies beside its other work.

    `sent` says that the host's memory may be filled again, `taken` that the device's may be.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device, stream: "torch.cuda.Stream | None") -> None:
        self.device, self.stream, self.count = device, stream, 0
        self.host = (
            torch.empty(shape, dtype=torch.uint8, pin_memory=stream is not None),
            torch.empty(shape[0], NUMBERS + 1, dtype=torch.int64, pin_memory=stream is not None),
        )
        self.rows = self.host[0].flatten(1).numpy()
        self.there = self.host
        if stream:
            self.there = tuple(torch.empty_like(t, device=device) for t in self.host)  # type: ignore[assignment]
            self.sent, self.taken = torch.cuda.Event(), torch.cuda.Event()
            self.release()

    def fill(self, numbers: Tensor, sequence: Tensor) -> None:
        """The batch's numbers; its picture sequence[i] will be the i-th here."""
        if self.stream:
            self.sent.synchronize()
        self.count = len(numbers)
        self.host[1][: self.count, :-1] = numbers
        self.host[1][: self.count, -1] = sequence.argsort()

    def send(self) -> None:
        if self.stream:
            with torch.cuda.stream(self.stream):
                self.stream.wait_event(self.taken)
                for here, there in zip(self.host, self.there, strict=True):
                    there[: self.count].copy_(here[: self.count], non_blocking=True)
                self.sent.record(self.stream)

    def take(self) -> tuple[Tensor, Tensor]:
        """Pictures in the order of the files, and numbers in the batch's, the last of which is the picture's place."""
        if self.stream:
            torch.cuda.current_stream(self.device).wait_event(self.sent)
        return self.there[0][: self.count], self.there[1][: self.count]

    def release(self) -> None:
        if self.stream:
            self.taken.record(torch.cuda.current_stream(self.device))


def _open_index(folder: Path) -> Index:
    if (folder / INDEX).is_file():
        return Index.read(folder / INDEX)
    if (folder / UNFINISHED).is_file() or any(folder.glob("images-*.npy*")):
        raise ValueError(f"packing into {folder} was interrupted: run `opencrate pack` again to complete it")
    raise ValueError(f"{folder} holds no packed pictures: write them with `opencrate pack`")


def _open_shard(folder: Path, shard: Shard, index: Index) -> np.ndarray:
    """A shard's pictures (n, bytes), mapped into memory."""
    if damage := _damage(folder, shard):
        raise ValueError(f"{damage}: run `opencrate pack` again to repair it")
    with (folder / shard.file).open("rb") as file:
        shape, dtype = _read_header(file)
        if shape != (shard.count, index.side, index.side, index.channels) or dtype != np.uint8:
            raise ValueError(f"{file.name} holds {dtype} of {shape}, which is not what {INDEX} says")
        content = torch.from_file(file.name, shared=False, size=shard.size, dtype=torch.uint8)
        return content[file.tell() :].view(shard.count, -1).numpy()


def _read_header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    try:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    except ValueError as error:
        raise ValueError(f"{file.name} is damaged: {' '.join(str(error).split())}") from error
    return shape, dtype


def _read_targets(folder: Path, index: Index) -> Tensor:
    try:
        targets = np.load(folder / TARGETS)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{folder / TARGETS} is missing or damaged: pack the pictures again") from error
    if targets.shape != (index.count,) or targets.dtype != np.int64:
        raise ValueError(f"{folder / TARGETS} holds {len(targets)} classes for {index.count} pictures")
    return torch.from_numpy(targets)
