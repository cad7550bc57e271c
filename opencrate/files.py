"""The one atomic writer and the one JSON writer: a file is complete under its name, or it is not there."""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["fsync_folder", "plain_numbers", "replacing", "write_atomically", "write_json"]


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
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    fsync_folder(file.parent)


def write_atomically(file: Path, text: str) -> None:
    with replacing(file) as open_file:
        open_file.write(text.encode())


def write_json(file: Path, values: Any, indent: int | None = 2) -> None:
    """Write plain values; numbers that JSON does not have (NaN, infinity) become null."""
    write_atomically(file, json.dumps(plain_numbers(values), indent=indent, allow_nan=False) + "\n")


def plain_numbers(values: Any) -> Any:
    """The same values with null in place of numbers that are not finite."""
    if isinstance(values, dict):
        return {name: plain_numbers(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [plain_numbers(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def fsync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a rename survives a power cut, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def flush(folder: Path) -> None:
    """Flush every file of a folder to disk, so that a rename of the folder is complete after a power cut."""
    for path in folder.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
