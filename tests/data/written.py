"""Shards, written with tarfile. Picture n has one colour, which encodes n, and the transform adds random values."""

import io
import random
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from opencrate.data.datasets.tars import Tars
from opencrate.data.feeds.feed import Split
from opencrate.data.feeds.loading import Loaded
from opencrate.data.settings import Augmentation, Dataset

SIZES = (5, 30, 17, 8, 21, 12, 9, 26, 14, 3, 19)  # 164 samples
CLASSES = 7
TIMM = {
    "name": "set",
    "classes": list("abcdefg"),
    "splits": {
        "train": {
            "name": "train",
            "num_samples": sum(SIZES),
            "filenames": [f"train-{i:04d}.tar" for i in range(len(SIZES))],
            "shard_lengths": list(SIZES),
        }
    },
}


def png(n: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 4), (n % 256, n // 256, 77)).save(file, "png")
    return file.getvalue()


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def write(folder: Path, sizes: tuple[int, ...] = SIZES, broken: tuple[int, ...] = (), name: str = "train") -> None:
    n = 0
    folder.mkdir(exist_ok=True)
    for i, size in enumerate(sizes):
        with tarfile.open(folder / f"{name}-{i:04d}.tar", "w") as tar:
            for _ in range(size):
                add(tar, f"{n:06d}.cls", str(n % CLASSES).encode())
                add(tar, f"{n:06d}.png", png(n)[:40] if n in broken else png(n))
                n += 1


def with_draws(image: Image.Image) -> Tensor:
    """(3, 4, 4): the picture, but for one row of the last channel, which is random."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
    draws = (random.randrange(256), np.random.randint(256), int(torch.randint(256, ())))
    pixels[2, 0, :3] = torch.tensor(draws, dtype=torch.uint8)
    return pixels


def shards(root: Path | str, training: bool = True, workers: int = 0, **changes) -> Loaded:
    settings = {"train": "train", "validation": "train", "num_classes": CLASSES, "max_decode_failures": 0.5, **changes}
    data = Dataset(name="wds", root=str(root), size=4, mean=(0, 0, 0), std=(1 / 255,) * 3, **settings)
    feed = Loaded(
        Tars(data, data.train if training else data.validation), data, Augmentation(), training, 3, "cpu", workers
    )
    feed.dataset.transform = with_draws
    return feed


def rows(images: Tensor, targets: Tensor) -> list[tuple[int, ...]]:
    """(number, class, draws) of every picture of a batch."""
    values = images.round().int()
    numbers = values[:, 0, 1, 1] + 256 * values[:, 1, 1, 1]
    columns = [numbers[:, None], targets[:, None], values[:, 2, 0, :3]]
    return [tuple(row) for row in torch.cat(columns, dim=1).tolist()]


def micro_batches(feed: Loaded, split: Split, epoch: int = 0, start: int = 0) -> list[list[tuple[int, ...]]]:
    return [rows(*batch) for batch in feed.train(epoch, start, split)]


def global_batches(root: Path | str, world: int, parts: int = 1, mirrored: bool = False, **options) -> list[Counter]:
    """What each global batch holds: samples, or for mixup the pairs that it mixes."""
    batches: list[Counter] = []
    for rank in range(world):
        micro = micro_batches(shards(root, **options), Split(16, parts, rank, world, mirrored))
        for i, samples in enumerate(micro):
            if i // parts == len(batches):
                batches.append(Counter())
            batches[i // parts].update(zip(samples, reversed(samples), strict=True) if mirrored else samples)
    return batches
