"""Shards and packed sets, written once for the tests that read them."""

from pathlib import Path

import pytest

from opencrate.data.datasets import shard_files
from opencrate.data.datasets.packing import pack
from opencrate.data.opening import open_pictures

from .squares import SIDE, settings, write_pictures
from .written import write


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(shard_files, "PATIENCE", 0.0)
    return tmp_path / "cache" / "opencrate" / "shards"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "shards")
    return tmp_path / "shards"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("source")
    write_pictures(root)
    return root


@pytest.fixture(scope="module")
def packed(source, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("packed")
    pictures = open_pictures(settings(source, name="folder"), training=True)
    for split in ("train", "validation"):
        pack(pictures, root / split, SIDE, shard=8, workers=2)
    return root


@pytest.fixture
def pictures(source):
    return open_pictures(settings(source, name="folder"), training=True)
