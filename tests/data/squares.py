"""Pictures for packing, and what a packed folder holds."""

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from opencrate.data import Split
from opencrate.data.feeds.packed import Packed
from opencrate.data.settings import Dataset

SIDE, COUNT = 24, 30
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


def settings(root: Path, **changes) -> Dataset:
    kind = {"name": "packed", "root": str(root), "num_classes": 3, "size": 16, "mean": MEAN, "std": STD}
    return Dataset(**{**kind, **changes})


def write_pictures(root: Path) -> None:
    """Three classes of ten: PNG that are SIDE pixels wide, larger JPEG, and one with an alpha channel."""
    rng = np.random.default_rng(0)
    for i in range(COUNT):
        file = root / "train" / f"class{i % 3}" / f"{i:03d}.{'png' if i % 2 else 'jpg'}"
        file.parent.mkdir(parents=True, exist_ok=True)
        shape = (SIDE, SIDE, 4 if i == 1 else 3) if i % 2 else (40, 60, 3)
        Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(file)


def values(directory: Path) -> np.ndarray:
    files = json.loads((directory / "index.json").read_text())["shards"]
    return np.concatenate([np.load(directory / shard["file"], mmap_mode="r") for shard in files])


def train(feed: Packed, split: Split, epoch: int = 3, start: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(feed.train(epoch, start, split))
