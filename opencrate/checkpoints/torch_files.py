"""torch's two file formats, from strangers: what is in them is known before a tensor takes memory, and no code runs.

A file is a pickle, in which tensors are parts of storages, and the bytes of the storages, in members of a zip file or
one after another. `torch.load` takes memory for what the pickle claims, reads beyond a member that is too short, and
ignores checksums. Here tensors are `Stored` until they are asked for: then they must lie in their storage, and a
member must have its checksum.
"""

import errno
import io
import math
import pickle
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import torch
from torch import Tensor

from ..errors import one_line
from ..files import DEPTH

PICKLE_BYTES = 16 << 20  # a network of 10,000 weights and its optimiser have 10 MB
_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001  # what the older format begins with
_TYPES = {
    **{"FloatStorage": torch.float32, "DoubleStorage": torch.float64, "HalfStorage": torch.float16},
    **{"BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32},
    **{"ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool},
    **{"ComplexFloatStorage": torch.complex64, "ComplexDoubleStorage": torch.complex128, "UntypedStorage": torch.uint8},
}
# Names that torch writes for plain data which is no weight; they are read as nothing.
_OTHER = re.compile(
    r"torch\.(Size|device|Tensor|nn\.parameter\.Parameter|serialization\._get_layout)"
    r"|torch\._utils\._rebuild_\w+|(builtins|__builtin__)\.(set|frozenset|bytearray|complex)|_codecs\.encode"
    r"|collections\.(Counter|defaultdict)|argparse\.Namespace"
)


class HoldsCode(ValueError):
    """The pickle names something that torch does not write for weights."""


@dataclass(eq=False)
class _Storage:
    """Bytes in a file: how many there should be, and where; a member of the zip file, or a position in the file."""

    size: int
    itemsize: int
    place: str | int


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor in a file: where it is, and what it will be."""

    storage: _Storage
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def require_inside(self) -> None:
        """Check that it lies in its storage, and has no more values than that."""
        last = self.offset + sum((length - 1) * step for length, step in zip(self.shape, self.stride, strict=True))
        if self.nbytes and (self.nbytes > self.storage.size or (last + 1) * self.dtype.itemsize > self.storage.size):
            raise ValueError(f"a tensor of shape {tuple(self.shape)} has only {self.storage.size:,} bytes")


def read_content(file: Path) -> Any:
    """What is in a file, with `Stored` in place of tensors; a ValueError says what is wrong with it, in short."""
    try:
        with file.open("rb") as open_file:
            return _content(open_file)
    except (HoldsCode, MemoryError):
        raise
    except Exception as error:  # a damaged file fails anywhere in the readers
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise ValueError(one_line(f"{kind}{error}".removesuffix(": "), 120)) from error


def read_tensors(file: Path, stored: Mapping[str, Stored]) -> dict[str, Tensor]:
    """The tensors themselves, each with its own memory."""
    size = file.stat().st_size
    if sum(tensor.nbytes for tensor in stored.values()) > 4 * size + (1 << 20):
        raise ValueError(f"its weights are much larger than its {size:,} bytes")
    try:
        with file.open("rb") as open_file:
            archive = zipfile.ZipFile(open_file) if zipfile.is_zipfile(open_file) else None
            return {name: _tensor(tensor, archive or open_file) for name, tensor in stored.items()}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(one_line(str(error))) from error


def read_all(file: Path) -> Any:
    """What is in a file of plain lists, tuples, mappings and tensors, the tensors read."""
    content = read_content(file)
    stored: dict[str, Stored] = {}
    _map_stored(content, lambda tensor: stored.setdefault(str(len(stored)), tensor))
    tensors = iter(read_tensors(file, stored).values())
    return _map_stored(content, lambda tensor: next(tensors))


def _map_stored(value: Any, change: Callable[[Stored], Any], depth: int = 0) -> Any:
    if depth > DEPTH:
        raise ValueError(f"it is more than {DEPTH} levels deep")
    if isinstance(value, Stored):
        return change(value)
    if isinstance(value, dict):
        return {key: _map_stored(part, change, depth + 1) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_map_stored(part, change, depth + 1) for part in value)
    return value


def _tensor(stored: Stored, source: zipfile.ZipFile | BinaryIO) -> Tensor:
    stored.require_inside()
    if not stored.nbytes:
        return torch.empty(stored.shape, dtype=stored.dtype)
    place = stored.storage.place
    if isinstance(source, zipfile.ZipFile):
        content = bytearray(source.read(str(place)))  # it compares the checksum
    else:
        source.seek(int(place))
        content = bytearray(source.read(stored.storage.size))
    values = torch.frombuffer(content, dtype=stored.dtype)
    return values.as_strided(stored.shape, stored.stride, stored.offset).clone(memory_format=torch.contiguous_format)


def _content(file: BinaryIO) -> Any:
    if not zipfile.is_zipfile(file):
        file.seek(0)
        return _older_content(file)
    with zipfile.ZipFile(file) as archive:
        members = {info.filename: info for info in archive.infolist()}
        unpacked, size = sum(info.file_size for info in archive.infolist()), file.seek(0, io.SEEK_END)
        if unpacked > 4 * size + (1 << 20):
            raise ValueError(f"its members unpack to {unpacked:,} bytes, from {size:,}")
        if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in members.values()):
            raise ValueError("its members are compressed in a way that torch does not know")
        folder = next(
            (name.removesuffix("data.pkl") for name in members if re.fullmatch(r"[^/]+/data\.pkl", name)), None
        )
        if folder is None:
            raise ValueError("it is a zip file without weights")
        if (order := f"{folder}byteorder") in members and archive.read(order) != sys.byteorder.encode():
            raise ValueError("it was written on a machine of another byte order")
        if members[f"{folder}data.pkl"].file_size > PICKLE_BYTES:
            raise ValueError("its pickle is too large")
        reader = _Reader(io.BytesIO(archive.read(f"{folder}data.pkl")))
        content = reader.load()
        for name, storage in reader.storages.items():
            storage.place = f"{folder}data/{name}"
            if members[storage.place].file_size < storage.size:
                raise ValueError(f"{storage.place} is shorter than its tensors say")
        return content


def _older_content(file: BinaryIO) -> Any:
    """Magic number, version and a word on the machine; the content, the storages' names, and their bytes in turn."""
    pickles = io.BytesIO(file.read(PICKLE_BYTES))
    head = [_Reader(pickles).load() for _ in range(3)]
    if head[:2] != [_MAGIC, _VERSION]:
        raise ValueError("it holds no weights")
    reader = _Reader(pickles)
    content, names = reader.load(), _Reader(pickles).load()
    place, end = pickles.tell(), file.seek(0, io.SEEK_END)
    for name in names:
        storage = reader.storages[name]
        file.seek(place)
        if int.from_bytes(file.read(8), "little") * storage.itemsize != storage.size:
            raise ValueError("a storage is not of the size that its tensors say")
        storage.place, place = place + 8, place + 8 + storage.size
    if place > end or len(set(names)) < len(reader.storages):
        raise ValueError("it ends too early")
    return content


class _Reader(pickle._Unpickler):
    """Python's own unpickler, which takes no memory for what a pickle claims; every name in it becomes plain data."""

    # one takes memory as the file claims, the others make sets, whose members are hashed as deep as they are nested
    dispatch: ClassVar[dict[int, Any]] = {
        code: load
        for code, load in pickle._Unpickler.dispatch.items()
        if code not in b"".join((pickle.BYTEARRAY8, pickle.EMPTY_SET, pickle.FROZENSET))
    }
    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, encoding="utf-8")
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        path = f"{module}.{name}"
        if path in _NAMES:
            return _NAMES[path]
        if isinstance(dtype := getattr(torch, name, None), torch.dtype) and module == "torch":
            return dtype
        if _OTHER.fullmatch(path):
            return _Other
        raise HoldsCode(path)

    def persistent_load(self, saved: Any) -> Any:
        """A storage; its name alone says which: ("storage", type, name, device, number of values[, no view])."""
        _, kind, name, _, count, *view = saved
        if not isinstance(name, str) or not isinstance(count, int) or count < 0 or any(view):
            raise ValueError("it describes its storages in an unknown way")
        storage = self.storages.setdefault(name, _Storage(count * kind.itemsize, kind.itemsize, ""))
        if storage.size != count * kind.itemsize:
            raise ValueError(f"storage {name} has two sizes")
        return storage, kind

    def load_build(self) -> None:
        """What else an object remembers of itself is not read."""
        self.stack.pop()

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.stack.append({})
        self._set(items)

    def load_setitem(self) -> None:
        key, value = self.stack[-2:]
        del self.stack[-2:]
        self._set([key, value])

    def load_setitems(self) -> None:
        self._set(self.pop_mark())

    def _set(self, items: list[Any]) -> None:
        if not all(isinstance(key, str | int | float | bytes | None) for key in items[::2]):
            raise ValueError("it has keys that are no names")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    dispatch[pickle.BUILD[0]], dispatch[pickle.DICT[0]] = load_build, load_dict
    dispatch[pickle.SETITEM[0]], dispatch[pickle.SETITEMS[0]] = load_setitem, load_setitems


class _Other(dict[Any, Any]):
    """Data that is no weight."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__()


def _rebuilt(saved: Any, offset: int, shape: Any, stride: Any, *rest: Any) -> Stored:
    """A tensor; of the newer types, the type is beside it."""
    storage, dtype = saved
    dtype = next((part for part in rest if isinstance(part, torch.dtype)), dtype)
    numbers = (offset, *shape, *stride)
    described = isinstance(storage, _Storage) and isinstance(dtype, torch.dtype) and len(shape) == len(stride)
    if not described or not all(isinstance(number, int) and 0 <= number < 2**63 for number in numbers):
        raise ValueError("it describes its tensors in an unknown way")
    return Stored(storage, dtype, torch.Size(shape), tuple(stride), offset)


_NAMES: dict[str, Any] = {
    "collections.OrderedDict": lambda *_: {},
    **dict.fromkeys([f"torch._utils._rebuild_{name}" for name in ("tensor", "tensor_v2", "tensor_v3")], _rebuilt),
    **{f"torch._utils._rebuild_{name}": lambda data, *_: data for name in ("parameter", "parameter_with_state")},
    "torch._tensor._rebuild_from_type_v2": lambda rebuild, kind, arguments, *_: rebuild(*arguments),
    **{f"torch.{name}": dtype for name, dtype in _TYPES.items()},
    **{f"torch.storage.{name}": dtype for name, dtype in _TYPES.items()},
}
