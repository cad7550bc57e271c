"""Whether a saved network is intact: its configuration, and the checksum that safetensors itself does not have."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, uint8

from ..errors import one_line
from ..files import read_json

CHECKSUM = "sha256"  # its name in the file's metadata, which other readers ignore


def seal(file: Path, **metadata: str) -> None:
    """Write the checksum of its weights into a file of weights.

    safetensors writes the entries of its metadata in random order: with the checksum alone the bytes are the same
    every time.
    """
    weights, scratch = load_file(file), file.with_suffix(".sealed")  # what is loaded may be a map of the file
    save_file(weights, scratch, metadata={CHECKSUM: checksum(weights), **metadata})
    scratch.replace(file)


def checksum(weights: Mapping[str, Tensor]) -> str:
    """Of names and values, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].contiguous().flatten().view(uint8).numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Described:
    """A weight in a file, before it is read."""

    name: str
    shape: tuple[int, ...]
    kind: str  # F32, BF16, I64, …

    def is_floating_point(self) -> bool:
        return self.kind.startswith(("F", "BF"))


def described(file: Path) -> dict[str, Described]:
    """The weights in a file, by its header alone."""
    with _opened(file) as content:
        parts = {name: content.get_slice(name) for name in content.keys()}  # noqa: SIM118, it is no mapping
        return {name: Described(name, tuple(part.get_shape()), part.get_dtype()) for name, part in parts.items()}


def read_intact(file: Path, wanted: Mapping[str, Described]) -> dict[str, Tensor]:
    """These weights of a file, all of which must be those that were written."""
    with _opened(file) as content:
        written = (content.metadata() or {}).get(CHECKSUM)
        weights = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    # files of others, and of earlier versions, have no checksum to compare with
    if written is not None and written != checksum(weights):
        raise ValueError("its weights are not those that were written")
    return {name: weights[weight.name].clone() for name, weight in wanted.items()}


def require_intact(folder: Path) -> None:
    """Check that the network in a folder can be read, and that its weights are those that were written."""
    read_config(folder)
    file = folder / "model.safetensors"
    if not file.is_file():
        raise ValueError(f"{file} is missing")
    try:
        read_intact(file, {})
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is damaged: {one_line(str(error))}") from error


def damage(folder: Path) -> str:
    """What is wrong with the network in a folder, as the beginning of a sentence; nothing if it is intact."""
    try:
        require_intact(folder)
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def read_config(directory: Path) -> dict[str, Any]:
    """The configuration of the network in a folder."""
    file = directory / "config.json"
    if not file.is_file():
        raise ValueError(f"{directory} holds no config.json, so it is no checkpoint")
    config = read_json(file)
    if not isinstance(config, dict) or not isinstance(config.get("architecture"), str):
        raise ValueError(f"{file} is not a checkpoint's configuration: it names no architecture")
    return config


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, "pt") as content:
            yield content
    except SafetensorError as error:
        raise ValueError(one_line(str(error))) from error
