"""WebDataset shards as a set of numbered pictures: tar files of KEY.jpg (jpeg, png, webp) with a class beside each.

The class is a number, in KEY.cls or as KEY.json's "label". Every shard is read through once for an index of where its
pictures are, which is kept in the user's cache; afterwards picture i is one seek and one read.
"""

import logging
import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image

from ...errors import one_line
from ...files import PICTURE_BYTES, SIDECAR_BYTES, parse_json
from ..settings import Dataset
from .decoding import decode
from .pictures import Pictures
from .shard_files import cache_folder, find_shards, is_remote, local_copy
from .tar_headers import TarError, read_members

log = logging.getLogger("opencrate")

READERS = 8  # threads that download and index shards
EXTENSIONS, LABELS = ("jpg", "jpeg", "png", "webp"), ("cls", "json")
MAX_CLASSES = 100_000  # for whoever opens a set of unknown classes, with a num_classes without meaning


class Index(NamedTuple):
    """Where the pictures of a shard are, their classes, and their keys as bytes."""

    offsets: np.ndarray
    lengths: np.ndarray
    targets: np.ndarray
    keys: np.ndarray


class Tars(Pictures):
    """The pictures of a split in tar files, local or remote."""

    def __init__(self, data: Dataset, split: str) -> None:
        self.addresses, names = find_shards(data.root, split)
        with ThreadPoolExecutor(READERS, "shards") as pool:
            opened = list(pool.map(_open_shard, self.addresses))
        self.files = [file for file, _ in opened]
        self.index = Index(*(np.concatenate(columns) for columns in zip(*(index for _, index in opened), strict=True)))
        self.starts = np.cumsum([0, *(len(index.targets) for _, index in opened)])  # the first number of every shard
        self.in_chans = data.in_chans
        self.targets = self.index.targets
        highest = int(self.targets.max(initial=0))
        if highest >= (len(names) or data.num_classes):
            name = one_line(self.name(int(self.targets.argmax())))
            raise ValueError(f"{name} is of class {highest}, which is not one of {len(names) or data.num_classes}")
        count = data.num_classes if data.num_classes <= MAX_CLASSES else highest + 1
        self.classes = names or tuple(map(str, range(count)))

    def picture(self, i: int) -> Image.Image:
        offset, length = int(self.index.offsets[i]), int(self.index.lengths[i])
        if length > PICTURE_BYTES:
            raise ValueError(f"it is larger than {PICTURE_BYTES >> 20} MiB")
        with self.files[self._shard(i)].open("rb") as file:
            file.seek(offset)
            content = file.read(length)
        if len(content) < length:
            raise OSError(f"the shard is truncated: it ends before byte {offset + length}")
        return decode(content, self.in_chans)

    def name(self, i: int) -> str:
        shard = self.addresses[self._shard(i)].rpartition("/")[2]
        return f"{shard}: {self.index.keys[i].decode(errors='surrogateescape')}"

    def _shard(self, i: int) -> int:
        return int(np.searchsorted(self.starts, i, "right")) - 1


def _open_shard(address: str) -> tuple[Path, Index]:
    """A shard's local file and its index, from the cache or else by reading it through."""
    file = local_copy(address)
    if not file.is_file():
        raise FileNotFoundError(f"the shard {one_line(address)} does not exist")
    stat = file.stat()
    version = f"{file.resolve()}\n{stat.st_size}\n{stat.st_mtime_ns}"
    cache = cache_folder() / f"{sha256(version.encode(errors='surrogateescape')).hexdigest()[:32]}.npz"
    try:
        with np.load(cache) as arrays:
            return file, Index(**arrays)
    except Exception:  # none is kept, or it is damaged
        pass
    try:
        index = _read_index(file, address)
    except OSError:
        if is_remote(address):
            file.unlink()  # so that it is downloaded again
        raise
    _keep(index, cache)
    return file, index


def _keep(index: Index, cache: Path) -> None:
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cache.parent, delete=False) as file:
            np.savez(file, **index._asdict())
        Path(file.name).replace(cache)
    except OSError as error:
        log.warning("the index of a shard cannot be kept in %s: %s", cache, error.strerror)


def _read_index(path: Path, address: str) -> Index:
    """The samples of a tar file: neighbours whose names agree up to the first dot, and of which one is a picture."""
    rows: list[tuple[int, int, int]] = []
    keys: list[bytes] = []
    with path.open("rb") as file:
        for key, members in groupby(_named_members(file, address), lambda member: member[0]):
            parts = {extension: part for _, extension, *part in members if extension in (*EXTENSIONS, *LABELS)}
            picture = next((parts[extension] for extension in EXTENSIONS if extension in parts), None)
            if picture is not None:
                offset, size = picture
                name = f"{one_line(address)}: {one_line(key.decode(errors='replace'), 60)}"
                rows.append((offset, min(size, PICTURE_BYTES + 1), _target(file, parts, name)))
                keys.append(key)
    offsets, lengths, targets = np.array(rows, np.int64).reshape(-1, 3).T
    return Index(offsets, lengths.astype(np.int32), targets.astype(np.int32), np.array(keys, np.bytes_))


def _named_members(file: BinaryIO, address: str) -> Iterator[tuple[bytes, str, int, int]]:
    """(key, extension, offset, size) of each regular file."""
    members = read_members(file)
    try:
        for path, offset, size in members:
            if name := re.fullmatch(rb"((?:.*/)?[^./]+)\.([^/]+)", path):
                yield name[1], name[2].decode(errors="replace").lower(), offset, size
    except TarError as error:
        raise OSError(f"{one_line(address)} is {error}") from error


def _target(file: BinaryIO, parts: dict[str, list[int]], name: str) -> int:
    if not (label := next((label for label in LABELS if label in parts), None)):
        raise ValueError(f"{name} has a picture but no class: add a .cls with a number, or a .json with a label")
    offset, size = parts[label]
    if size > SIDECAR_BYTES:
        raise ValueError(f"{name} has a .{label} of {size} bytes, and at most {SIDECAR_BYTES} are read")
    file.seek(offset)
    text = file.read(size)
    try:
        target = int(text if label == "cls" else str(parse_json(text, "the .json")["label"]))
        if not 0 <= target < 2**31:
            raise ValueError
    except (ValueError, KeyError, TypeError) as error:
        given = text[:20].decode(errors="replace") if label == "cls" else "the .json"
        raise ValueError(f"{name} has no class that is a number from 0 on, but {given!r}") from error
    return target
