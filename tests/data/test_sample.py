"""`sample(n)` sees all classes of every kind of set, also if it is sorted by class and its classes differ in size."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision import datasets

from opencrate.data import Augmentation, Dataset, Feed, open_feed, pack_splits
from opencrate.data.datasets.pictures import Arrays
from opencrate.data.feeds.feed import spread
from opencrate.data.feeds.loading import Loaded
from opencrate.data.feeds.resident import Resident
from opencrate.data.opening import open_pictures

from .written import add, png

EVEN, UNEVEN = (40,) * 10, (2, 300, 1, 5, 40, 3, 1, 20, 7, 21)
STILL = Augmentation(crop="none", flip=0.0)


def write_folder(root: Path, targets: list[int]) -> Dataset:
    for i, target in enumerate(targets):
        file = root / "validation" / f"class{target}" / f"{i:04d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(i))
    return Dataset("folder", str(root))


def write_idx(root: Path, targets: list[int]) -> Dataset:
    images = np.zeros((len(targets), 4, 4), np.uint8)
    for name, array in (("images-idx3", images), ("labels-idx1", np.array(targets, np.uint8))):
        header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        (root / f"t10k-{name}-ubyte").write_bytes(header + array.tobytes())
    return Dataset("idx", str(root))


def write_torchvision(root: Path, targets: list[int]) -> Dataset:
    (root / "MNIST" / "raw").mkdir(parents=True)
    write_idx(root / "MNIST" / "raw", targets)
    for file in list(root.glob("MNIST/raw/t10k-*")):  # torchvision looks for the training files too
        file.with_name(file.name.replace("t10k", "train")).write_bytes(file.read_bytes())
    assert len(datasets.MNIST(str(root), train=False)) == len(targets)
    return Dataset("torch/mnist", str(root))


def write_tars(root: Path, targets: list[int]) -> Dataset:
    for shard in range(3):
        with tarfile.open(root / f"validation-{shard}.tar", "w") as tar:
            for i in range(len(targets) * shard // 3, len(targets) * (shard + 1) // 3):
                add(tar, f"{i}.cls", str(targets[i]).encode())
                add(tar, f"{i}.png", png(i))
    return Dataset("wds", str(root), validation="validation-{0..2}.tar")


def write_packed(root: Path, targets: list[int]) -> Dataset:
    write_folder(root / "folder", targets)
    pack_splits(root / "folder", root / "packed", side=4)
    return Dataset("packed", str(root / "packed"))


def opened(data: Dataset, kind: str) -> Feed:
    data = Dataset(data.name, data.root, "train", data.validation, 10, 4, 3, (0.5,) * 3, (0.5,) * 3, 1.0)
    if kind == "packed":
        return open_feed(data, STILL, training=False)
    return {"loaded": Loaded, "resident": Resident}[kind](open_pictures(data, False), data, STILL, False)


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        *(
            (write, kind)
            for write in (write_folder, write_idx, write_torchvision, write_tars)
            for kind in ("loaded", "resident")
        ),
        (write_packed, "packed"),
    ],
)
@pytest.mark.parametrize("sizes", [EVEN, UNEVEN])
@pytest.mark.usefixtures("cache")
def test_every_kind_of_set_sorted_by_class(tmp_path, write, kind, sizes):
    targets = np.repeat(np.arange(10), sizes).tolist()
    feed = opened(write(tmp_path, targets), kind)
    assert feed.targets.tolist() == targets
    for count in (10, 11, 100, 101, 250, 399, 400, 1000):
        batches = list(feed.sample(count, 32))
        seen = torch.cat([labels for _, labels in batches])
        assert (len(seen), len(torch.cat([images for images, _ in batches]))) == (min(count, 400),) * 2
        assert set(seen.tolist()) == set(range(10))
        share = torch.tensor(sizes) * min(count, 400) / 400
        assert (seen.bincount() - share).abs().max() <= 10  # in proportion, but for the one that each class is given
        assert torch.equal(torch.cat([labels for _, labels in feed.sample(count, 7)]), seen)


@given(
    targets=st.lists(st.integers(0, 12), min_size=1, max_size=200).map(torch.tensor),
    count=st.integers(1, 220),
)
def test_any_order_of_any_classes(targets, count):
    chosen = spread(targets, count)
    assert len(chosen) == min(count, len(targets))
    assert (chosen.diff() > 0).all()
    if count >= len(targets.unique()):
        assert set(targets[chosen].tolist()) == set(targets.tolist())
    assert torch.equal(spread(targets, count), chosen)


def test_the_pictures_of_a_class_come_from_all_over_it():
    assert spread(torch.zeros(100, dtype=torch.int64), 4).tolist() == [0, 25, 50, 75]
    assert spread(torch.tensor([0, 1] * 50), 4).tolist() == [0, 1, 50, 51]


def test_those_that_do_not_decode_are_left_out(tmp_path):
    images = np.zeros((20, 4, 4, 3), np.uint8)
    pictures = Arrays(images, np.repeat([0, 1], 10), "ab", "made-up")

    def picture(i: int) -> Image.Image:
        if i in (0, 13):
            raise ValueError("damaged")
        return Image.fromarray(images[i])

    pictures.picture = picture
    data = Dataset(num_classes=2, size=4, crop_pct=1.0, max_decode_failures=0.1)
    targets = torch.cat([targets for _, targets in Loaded(pictures, data, STILL, False).sample(20, 8)])
    assert targets.tolist() == [0] * 9 + [1] * 9


@pytest.mark.parametrize(("count", "batch", "sizes"), [(5, 1, [1] * 5), (5, 2, [2, 2, 1]), (5, 9, [5]), (9, 99, [8])])
def test_batches_are_as_large_as_asked_for(count, batch, sizes):
    pictures = Arrays(np.zeros((8, 4, 4, 3), np.uint8), np.repeat([0, 1], 4), "ab", "made-up")
    feed = Loaded(pictures, Dataset(num_classes=2, size=4, crop_pct=1.0), STILL, False)
    assert [len(images) for images, _ in feed.sample(count, batch)] == sizes
