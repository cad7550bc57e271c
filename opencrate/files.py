"""The one atomic writer and the one JSON writer: a file is complete under its name, or it is not there."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from pydantic_core import to_jsonable_python


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


def write_atomically(file: Path, text: str) -> None:
    with replacing(file) as open_file:
        open_file.write(text.encode())


def write_json(file: Path, values: Any, indent: int | None = 2) -> None:
    write_atomically(file, json_text(values, indent) + "\n")


def json_text(values: Any, indent: int | None = None) -> str:
    """JSON of plain values; numbers that it does not have (NaN, infinity) become null, and paths become strings."""
    return json.dumps(to_jsonable_python(values, inf_nan_mode="null"), indent=indent)


def _fsync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a rename survives a power cut, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
