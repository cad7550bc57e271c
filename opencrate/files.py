"""The one atomic writer, the one JSON writer, and the limits of what is read.

A file is complete under its name, or it is not there. What is read may come from a stranger: it is bounded in size,
depth and number of values before it is used, and whatever is wrong with it is one sentence, a ValueError.
"""

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import yaml
from pydantic_core import to_jsonable_python

from .errors import one_line, sentence, shown

TEXT_BYTES = 64 << 20  # of a text, JSON or YAML file
YAML_BYTES = 1 << 20  # PyYAML reads about 100 kB a second
DEPTH = 64  # of lists and mappings in one another
VALUES = 2_000_000  # in one JSON file
YAML_VALUES = 20_000  # in one YAML file, anchors written out
PICTURE_BYTES = 256 << 20  # of a picture's file
PICTURE_PIXELS = 62_000_000  # Pillow takes up to 16 bytes for each while it decodes
SIDECAR_BYTES = 1 << 20  # of a picture's label in a tar file
NAMES_BYTES = 4 << 20  # of a list of names
UNZIPPED_BYTES = 768 << 20  # of a .gz that is unpacked into memory
SCANNED_PIXELS = 1 << 32  # in all scans of a progressive JPEG, of which a few bytes can be a whole one


@contextmanager
def replacing(file: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `file`; when the block ends well it is flushed to disk and renamed to `file`."""
    scratch = file.with_name(f".{file.name}.tmp")
    try:
        with scratch.open("wb") as open_file:
            yield open_file
            open_file.flush()
            os.fsync(open_file.fileno())
        scratch.replace(file)
    except BaseException as error:
        scratch.unlink(missing_ok=True)
        if is_disk_full(error):
            raise OSError(f"{file} could not be written: the disk is full") from error
        raise
    _fsync_folder(file.parent)


@contextmanager
def replacing_folder(folder: Path, last: str) -> Iterator[Path]:
    """Make a temporary folder; when the block ends well its files are flushed to disk and appear in `folder`.

    A new folder appears complete. In one that exists files are replaced one by one, `last` after all others.
    """
    is_new = not folder.is_dir()
    beside = folder.parent if is_new else folder  # a folder that exists may be another file system than its parent
    beside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=beside, prefix=f".{folder.name}-") as scratch:
        content = Path(scratch) / "content"
        content.mkdir()
        yield content
        for path in content.iterdir():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        if is_new:
            content.rename(folder)
        else:
            for path in sorted(content.iterdir(), key=lambda path: path.name == last):
                path.replace(folder / path.name)
    _fsync_folder(beside)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether the disk was full; torch and safetensors hide that behind errors of their own."""
    while error is not None:
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        if full or f"os error {errno.ENOSPC}" in str(error) or str(error).endswith("the disk is full"):
            return True
        error = error.__cause__ or error.__context__
    return False


def reason_not_written(error: Exception) -> str:
    """Why a file could not be written, for the end of a sentence."""
    return "the disk is full" if is_disk_full(error) else one_line(sentence(error))


def write_atomically(file: Path, text: str) -> None:
    with replacing(file) as open_file:
        open_file.write(text.encode())


def write_json(file: Path, values: Any, indent: int | None = 2) -> None:
    write_atomically(file, json_text(values, indent) + "\n")


def json_text(values: Any, indent: int | None = None) -> str:
    """JSON of plain values; numbers that it does not have (NaN, infinity) become null, and paths become strings."""
    return json.dumps(to_jsonable_python(values, inf_nan_mode="null"), indent=indent)


def read_bytes(file: Path, limit: int = TEXT_BYTES) -> bytes:
    """The content of a file that is not larger than `limit`."""
    require_file(file)
    with file.open("rb") as open_file:
        size = os.fstat(open_file.fileno()).st_size  # asking for `limit` bytes would reserve them
        content = open_file.read(min(size, limit) + 1)
    if len(content) > limit:
        raise ValueError(f"{file} is larger than {limit >> 20} MiB")
    return content


def require_file(file: Path) -> None:
    """Refuse a folder, a pipe, which whoever opens it waits for, and a device, which may not end."""
    if file.exists() and not file.is_file():
        raise ValueError(f"{file} is not a file")


def read_json(file: Path) -> Any:
    return parse_json(read_bytes(file), str(file))


def parse_json(text: str | bytes, name: str) -> Any:
    """The value of a JSON text; `name` is what an error calls it."""
    try:
        value = json.loads(text)
        _require_bounded(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON that can be read: {one_line(str(error))}") from error
    return value


def read_yaml(file: Path) -> Any:
    return parse_yaml(read_bytes(file, YAML_BYTES), str(file))


def parse_yaml(text: str | bytes, name: str) -> Any:
    """The value of a YAML text of plain values; anchors are read as long as what they write out stays small."""
    try:
        if len(text) > YAML_BYTES:
            raise ValueError(f"it is larger than {YAML_BYTES >> 20} MiB")
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _require_bounded_node(node, {})
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not YAML that can be read: {one_line(str(error))}") from error


class _Loader(yaml.SafeLoader):
    """PyYAML's, which stops where there are too many values instead of reading them first."""

    count = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.count += 1
        _require_few(self.count)
        return super().compose_node(parent, index)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """The value of a node; PyYAML raises what its constructors do: KeyError for `!!bool x`, …"""
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError) as error:
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"{shown(node.value)} is no value of the type {kind}", node.start_mark
            ) from error


def _require_few(count: int) -> None:
    if count > YAML_VALUES:
        raise ValueError(f"it holds more than {YAML_VALUES:,} values")


def _require_bounded(value: Any) -> None:
    level, count = [value], 0
    for _ in range(DEPTH + 1):
        parts = [part for part in level if isinstance(part, dict | list)]
        level = [inner for part in parts for inner in (part.values() if isinstance(part, dict) else part)]
        count += len(level)
        if count > VALUES:
            raise ValueError(f"it holds more than {VALUES:,} values")
        if not level:
            return
    raise ValueError(f"it is more than {DEPTH} levels deep")


def _require_bounded_node(node: yaml.Node, sizes: dict[int, int | None], depth: int = 0) -> int:
    """The number of nodes below this one, with anchors written out; `sizes` remembers it, None while it is counted."""
    if depth > DEPTH:
        raise ValueError(f"it is more than {DEPTH} levels deep")
    if id(node) in sizes:
        size = sizes[id(node)]
        if size is None:
            raise ValueError("it contains itself")
        return size
    sizes[id(node)] = None
    children = (
        [child for pair in node.value for child in pair]
        if isinstance(node, yaml.MappingNode)
        else (node.value if isinstance(node, yaml.SequenceNode) else [])
    )
    size = 1 + sum(_require_bounded_node(child, sizes, depth + 1) for child in children)
    _require_few(size)
    sizes[id(node)] = size
    return size


def _fsync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a rename survives a power cut, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
