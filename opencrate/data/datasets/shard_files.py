"""The shards of a split: their names from a pattern, a folder or timm's _info.json, and local copies of remote ones."""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock

from ...errors import one_line, shown
from ...files import parse_json, parse_yaml, read_bytes, replacing
from ..settings import VALIDATION_NAMES
from .decoding import error_text

T = TypeVar("T")

log = logging.getLogger("opencrate")

INFO_FILES = ("_info.json", "info.json", "info.yaml")  # as timm writes them
MAX_SHARDS, PATTERN = 100_000, 1000  # shards of a pattern, its characters
ATTEMPTS, PATIENCE = 3, 1.0  # of a download; seconds before the second, doubled before each that follows


def is_remote(address: str) -> bool:
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", address) is not None


def find_shards(root: str, split: str) -> tuple[list[str], tuple[str, ...]]:
    """The addresses of a split's shards, and the names of the classes where an _info.json has them.

    A split with .tar in its name is a pattern; any other is the name of a split in _info.json or of a local folder.
    """
    root = root.rstrip("/") if is_remote(root) else str(Path(root).expanduser())
    if not is_remote(root) and not Path(root).is_dir():
        raise ValueError(f"{root} is not a folder: give the one with the shards, --data.root FOLDER")
    if len(split) > PATTERN:
        raise ValueError(f"{shown(split)} is longer than {PATTERN} characters")
    splits, classes = _read_info(root)
    if ".tar" in split:
        return _matching(root, split), classes
    for name in (split, *(VALIDATION_NAMES if split in VALIDATION_NAMES else ())):
        if splits.get(name):
            return [f"{root}/{file}" for file in splits[name]], classes
        for pattern in (f"{name}/*.tar", f"{name}-*.tar", f"*-{name}-*.tar"):
            if not is_remote(root) and (files := _glob(root, pattern)):
                return files, classes
    raise ValueError(
        f"no shards of {shown(split)} in {root}: give a pattern such as {one_line(split, 60)}-{{0000..0146}}.tar"
    )


def _matching(root: str, pattern: str) -> list[str]:
    names = list(islice(expand(pattern), MAX_SHARDS + 1))
    if len(names) > MAX_SHARDS:
        raise _too_many(pattern)
    addresses = []
    for name in names:
        if is_remote(name) and not is_remote(root):  # a local set stays on this machine
            raise ValueError(f"{one_line(name)} is an address, and {root} a folder: give both addresses or both local")
        if not any(wildcard in name for wildcard in "*?["):
            addresses.append(name if is_remote(name) or name.startswith("/") else f"{root}/{name}")
        elif is_remote(root) or is_remote(name):
            raise ValueError(f"{name} has a wildcard, which only a local folder allows: give a range, {{0000..0146}}")
        elif files := _glob(root, name):
            addresses += files
        else:
            raise ValueError(f"{root} has no shards {one_line(name)}")
    return addresses


def _glob(root: str, pattern: str) -> list[str]:
    try:
        if pattern.count("**") > 1:  # a search takes as many times longer as there are folders, for each
            raise ValueError
        files = sorted(map(str, islice(Path(root).glob(pattern), MAX_SHARDS + 1)))
    except (ValueError, NotImplementedError) as error:  # .., an absolute path
        raise ValueError(f"{shown(pattern)} is not a pattern of files in {root}") from error
    if len(files) > MAX_SHARDS:
        raise _too_many(pattern)
    return files


def _too_many(pattern: str) -> ValueError:
    return ValueError(f"{shown(pattern)} names more than {MAX_SHARDS:,} shards")


def expand(pattern: str) -> Iterator[str]:
    """The names that a pattern stands for: a-{08..11}.tar, {a,b}.tar, and several patterns joined by ::."""
    if "::" in pattern:
        for part in pattern.split("::"):
            yield from expand(part)
        return
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if not braces:
        yield pattern
        return
    before, after = pattern[: braces.start()], pattern[braces.end() :]
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", braces[1])
    if numbers and int(numbers[1]) <= int(numbers[2]):
        padded = any(number[0] == "0" for number in numbers.groups())
        width = max(map(len, numbers.groups())) if padded else 0
        for number in range(int(numbers[1]), int(numbers[2]) + 1):
            yield from expand(f"{before}{number:0{width}d}{after}")
    elif "," in braces[1]:
        for text in braces[1].split(","):
            yield from expand(f"{before}{text}{after}")
    else:
        raise ValueError(
            f"{shown(braces[0])} in a pattern is neither a range, as {{0000..0146}}, nor a list, as {{a,b}}"
        )


def _read_info(root: str) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """The files of every split and the names of the classes, from the first of INFO_FILES that exists."""
    for name in INFO_FILES:
        address = f"{root}/{name}"
        try:
            text = _read_remote(address, _content) if is_remote(address) else read_bytes(Path(address))
        except FileNotFoundError:
            continue
        content: Any = (parse_yaml if name.endswith(".yaml") else parse_json)(text, address)
        try:
            splits = {split: list(map(_require_name, part["filenames"])) for split, part in content["splits"].items()}
            classes = tuple(map(str, content.get("classes") or content.get("class_names") or ()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{address} does not list splits with their filenames, as timm's does") from error
        return splits, classes
    return {}, ()


def _require_name(name: Any) -> str:
    if not isinstance(name, str) or len(name) > PATTERN:
        raise ValueError("not the name of a file")
    return name


def cache_folder() -> Path:
    """Where copies of remote shards and the indexes of all shards are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "opencrate" / "shards"


def local_copy(address: str) -> Path:
    """The shard's file on this machine; a remote shard is downloaded once, by one process.

    fsspec's own filecache:: records a file before it has arrived, and would take an interrupted download for complete.
    """
    if not is_remote(address):
        try:
            Path(address).is_file()
        except OSError as error:  # a name that no file can have
            raise OSError(f"the shard {one_line(address)} cannot be opened: {error.strerror}") from error
        return Path(address)
    copy = cache_folder() / f"{sha256(address.encode()).hexdigest()[:32]}.tar"
    copy.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{copy}.lock"):
        if not copy.is_file():
            with replacing(copy) as file:
                _read_remote(address, lambda file_system, path: file_system.get_file(path, file.name))
    return copy


def _content(file_system: Any, path: str) -> bytes:
    return bytes(file_system.cat_file(path))


def _read_remote(address: str, read: Callable[[Any, str], T]) -> T:
    """`read` of fsspec's file system and path for a remote address; errors that may pass are tried again."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return read(*_file_system(address))
        except (ImportError, ValueError) as error:  # a file system that is not installed
            raise ValueError(f"{address} cannot be read: {error_text(error)}") from error
        except Exception as error:  # every file system has errors of its own
            denied = isinstance(error, PermissionError) or getattr(error, "status", 0) in (401, 403, 410)
            if denied or isinstance(error, FileNotFoundError):
                raise FileNotFoundError(f"{address} does not exist, or access to it is denied") from error
            if attempt == ATTEMPTS:
                raise OSError(f"{address} cannot be read, in {attempt} attempts: {error_text(error)}") from error
            log.warning("reading %s again: %s", address, error_text(error))
            time.sleep(PATIENCE * 2 ** (attempt - 1))
    raise AssertionError


def _file_system(address: str) -> tuple[Any, str]:
    import fsspec

    options: dict[str, Any] = {}
    if address.startswith("http"):
        from aiohttp import ClientTimeout

        # by default a download ends after five minutes, however well it goes
        options = {"client_kwargs": {"timeout": ClientTimeout(total=None, sock_connect=60, sock_read=60)}}
    file_system, path = fsspec.core.url_to_fs(address, **options)
    return file_system, path
