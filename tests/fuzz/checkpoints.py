"""Checkpoints: our folders, files in the authors' layout and ours, a Hub repository's files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from opencrate import load, save_pretrained
from opencrate.checkpoints import read, save_authors

from ..networks import small
from .harness import Make, Target


def folder(change: Callable[[Path], None] = lambda folder: None) -> Make:
    """Our layout, changed."""

    def make(place: Path) -> Path:
        path = save_pretrained(_network(), place / "network")
        change(path)
        return path

    return make


def file(name: str = "model.pth.tar", **arguments: Any) -> Make:
    return lambda place: save_authors(_network(**arguments), place / name)


def _network(**arguments: Any) -> Any:
    return small(**{"depth": 1, "embed_dim": 8, "num_heads": 2, "img_size": 8, **arguments})


def _read(path: Path) -> str:
    load(path)
    return "\n".join(read(path).describe().values())


def _read_hub(path: Path) -> str:
    """As from the Hub, with files that a stranger put there."""
    with mock.patch("huggingface_hub.hf_hub_download", lambda repo, name, revision: str(path / name)):
        return _read("somebody/something")


TARGETS = (
    Target("checkpoint folder", _read, {"network": folder()}, {}),
    Target("checkpoint file", _read, {"authors": file(), "pooled": file("model.pt", global_pool="avg")}, {}),
    Target("Hub repository", _read_hub, {"network": folder()}, {}),
)
