"""The checksum in `model.safetensors`, by which a damaged file is noticed: the format itself has none."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, uint8

from ..errors import one_line

CHECKSUM = "sha256"  # its name in the file's metadata, which other readers ignore


def seal(file: Path) -> None:
    """Write the checksum of its weights into a file of weights."""
    weights, scratch = load_file(file), file.with_suffix(".sealed")  # what is loaded may be a map of the file
    save_file(weights, scratch, metadata={CHECKSUM: checksum(weights)})
    scratch.replace(file)


def checksum(weights: Mapping[str, Tensor]) -> str:
    """Of names and values, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].contiguous().flatten().view(uint8).numpy().data)
    return digest.hexdigest()


def require_intact(folder: Path) -> None:
    """Check that the weights in a folder can be read, and are those that were written."""
    file = folder / "model.safetensors"
    try:
        with safe_open(file, "pt") as content:
            written = (content.metadata() or {}).get(CHECKSUM)
            weights = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118, it is no mapping
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file} cannot be read: {one_line(str(error))}") from error
    require_checksum(weights, written, file)


def require_checksum(weights: Mapping[str, Tensor], written: str | None, file: Path) -> None:
    """Files of others, and of earlier versions, have no checksum to compare with."""
    if written is not None and written != checksum(weights):
        raise ValueError(f"{file} is damaged: its weights are not those that were written")
