"""Lanes, batches and epochs of a set in shards."""

import random
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from opencrate.data.datasets import tars
from opencrate.data.datasets.pictures import open_pictures
from opencrate.data.feeds.feed import Split
from opencrate.data.feeds.loading import Loaded
from opencrate.data.feeds.shards import Shards, lane_count
from opencrate.data.settings import Augmentation, Dataset

from .written import CLASSES, SIZES, add, global_batches, micro_batches, shards, told, write

# from Python 3.12 on, of DataLoader's workers beside a thread, here the readers'
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    pytest.mark.usefixtures("cache"),
]


def test_lanes_are_those_that_most_numbers_of_processes_can_share():
    assert lane_count(1024, 147) == 64
    assert lane_count(768, 1024) == 48  # 3 processes too
    assert lane_count(96, 40) == 24
    assert lane_count(1024, 5) == 4
    assert lane_count(24, 3) == 2
    assert lane_count(7, 5) == 1


@pytest.mark.parametrize(("world", "parts"), [(2, 1), (4, 1), (1, 2), (2, 2), (1, 8), (8, 1)])
def test_global_batches_are_the_same_on_any_number_of_processes(root, world, parts):
    expected = global_batches(root, 1)
    assert len(expected) == sum(SIZES) // 16
    assert global_batches(root, world, parts) == expected


@pytest.mark.parametrize(("world", "parts"), [(2, 1), (4, 1), (1, 2), (2, 2)])
def test_mixup_mixes_the_same_pairs(root, world, parts):
    assert global_batches(root, world, parts, mirrored=True) == global_batches(root, 1, mirrored=True)


def test_workers_change_nothing(root):
    split = Split(16, 2)
    assert micro_batches(shards(root, workers=2), split) == micro_batches(shards(root), split)


def test_an_epoch_holds_a_sample_once_and_others_are_ordered_and_varied_otherwise(root):
    feed = shards(root)
    first, second = ([s for batch in micro_batches(feed, Split(16), epoch) for s in batch] for epoch in (0, 1))
    for samples in (first, second):
        assert len({number for number, *_ in samples}) == len(samples) == feed.steps(16) * 16 == len(feed) // 16 * 16
        assert all(target == number % CLASSES for number, target, *_ in samples)
    assert [s[0] for s in first] != [s[0] for s in second]
    assert not set(first) & set(second)
    assert first == [s for batch in micro_batches(feed, Split(16), 0) for s in batch]
    draws = np.array([s[2:] for s in first])
    assert [len(set(column)) > 50 for column in draws.T] == [True] * 3
    neighbours = np.diff([s[0] for s in first])
    assert (neighbours == 1).mean() < 0.1  # shuffled within the shards


@pytest.mark.parametrize("world", [1, 2])
def test_a_run_begins_at_any_step(root, world):
    feed = shards(root)
    for rank in range(world):
        split = Split(16, 2, rank, world)
        whole = micro_batches(feed, split, epoch=4)
        for start in range(feed.steps(16) + 1):
            assert micro_batches(feed, split, 4, start) == whole[2 * start :]


def test_a_process_opens_no_more_than_its_share(tmp_path, monkeypatch):
    write(tmp_path / "shards", (12,) * 16)
    feeds = [shards(tmp_path / "shards") for _ in range(4)]
    opened: list[list[int]] = []
    original = tars.Reader.open
    monkeypatch.setattr(tars.Reader, "open", lambda self, shard: opened[-1].append(shard) or original(self, shard))
    for rank, feed in enumerate(feeds):
        opened.append([])
        micro_batches(feed, Split(16, 1, rank, 4))
    assert [len(own) for own in opened] == [4] * 4
    assert sorted(shard for own in opened for shard in own) == list(range(16))


def test_what_cannot_be_shared_is_said(root):
    with pytest.raises(
        ValueError, match=r"16 from 11 shards is read in 8 lanes, which 16 .* here 16, .* with 16 shards"
    ):
        shards(root).train(0, 0, Split(16, 1, 0, 16))
    feed = shards(root, train="train-000[0-2].tar")
    with pytest.raises(ValueError, match=r"24 from 3 shards is read in 2 lanes.* × 2 for mixup, here 4.* 4 shards"):
        feed.train(0, 0, Split(24, 1, 0, 2, mirrored=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_global_generators_stay_as_they_are(root, workers):
    feed = shards(root, workers=workers)
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    for _ in zip(range(3), feed.train(0, 0, Split(16)), strict=False):
        now = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        assert now == before
    list(feed.evaluate(50))
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


@pytest.mark.parametrize("world", [1, 3])
def test_evaluation_sees_every_picture_once(root, world):
    feed = shards(root, training=False)
    shares = [[told(*batch) for batch in feed.evaluate(10, rank, world)] for rank in range(world)]
    samples = [sample[:2] for share in shares for batch in share for sample in batch]
    assert samples == [(n, n % CLASSES) for n in range(sum(SIZES))]
    for share in shares:
        assert all(len(batch) == 10 for batch in share[:-1])
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_the_same_as_from_folders(tmp_path):
    """In colour and grey, photographs of any size and mode: bit for bit what the folder's feed gives."""
    rng = np.random.default_rng(0)
    with tarfile.open(tmp_path / "validation.tar", "w") as tar:
        for n in range(12):
            folder = tmp_path / "validation" / f"{n % 3}"
            folder.mkdir(parents=True, exist_ok=True)
            shape = (40 + 3 * n, 60 - 2 * n) if n % 2 else (50, 50 + n, 3)
            file = folder / f"{n:02d}.jpeg"
            Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(file, "jpeg")
        for file in sorted(tmp_path.glob("validation/*/*.jpeg")):
            add(tar, f"{file.stem}.JPEG", file.read_bytes())
            add(tar, f"{file.stem}.cls", file.parent.name.encode())
    data = Dataset(root=str(tmp_path), validation="validation", num_classes=3, size=24)
    ours = Dataset(name="wds", root=str(tmp_path), validation="validation.tar", num_classes=3, size=24)
    folder = Loaded(open_pictures(data, False), data, Augmentation(), False)
    (images, targets), (expected, classes) = (
        next(iter(feed.evaluate(12))) for feed in (Shards(ours, Augmentation(), False), folder)
    )
    assert torch.equal(targets, classes)
    assert torch.equal(images, expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_pictures(tmp_path, workers):
    write(tmp_path / "shards", broken=(40, 41, 42, 100))
    feed = shards(tmp_path / "shards", workers=workers)
    samples = [s for batch in micro_batches(feed, Split(16)) for s in batch]
    assert len(samples) == feed.steps(16) * 16
    assert all(target == number % CLASSES for number, target, *_ in samples)
    assert not {40, 41, 42, 100} & {number for number, *_ in samples}
    names = {f"train-000{2 if n < 100 else 6}.tar: {n:06d}" for n in (40, 41, 42, 100)}
    assert set(feed.broken.names) <= names
    assert len(feed.broken) >= 3
    assert global_batches(tmp_path / "shards", 2) == global_batches(tmp_path / "shards", 1)
    for start in range(feed.steps(16)):
        assert micro_batches(feed, Split(16), start=start) == micro_batches(feed, Split(16))[start:]

    evaluated = shards(tmp_path / "shards", training=False, workers=workers)
    rows = [row for batch in evaluated.evaluate(50) for row in told(*batch)]
    assert [n for n, row in enumerate(rows) if row[1] == -1] == [40, 41, 42, 100]
    assert next(iter(evaluated.broken.names)) == "train-0002.tar: 000040"


def test_the_next_picture_takes_the_place_of_a_broken_one(tmp_path):
    write(tmp_path / "shards", (16,))
    numbers = [s[0] for batch in micro_batches(shards(tmp_path / "shards"), Split(4)) for s in batch]
    write(tmp_path / "shards", (16,), broken=(numbers[5], numbers[6], numbers[15]))
    replaced = [s[0] for batch in micro_batches(shards(tmp_path / "shards"), Split(4)) for s in batch]
    assert replaced == [*numbers[:5], numbers[7], numbers[7], *numbers[7:15], numbers[0]]


def test_too_many_broken_pictures_stop_the_run(tmp_path):
    write(tmp_path / "shards", (8, 8), broken=tuple(range(8)))
    with pytest.raises(ValueError, match=r"2 of 16 pictures do not decode.* train-0000.tar: 00000"):
        list(shards(tmp_path / "shards", training=False, broken=0.1).evaluate(4))
    with pytest.raises(OSError, match=r"train-0000.tar holds no picture that decodes"):
        micro_batches(shards(tmp_path / "shards", broken=1), Split(4))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_shard_that_shrinks_while_it_is_read(root, workers):
    feed = shards(root, training=False, validation="train-0001.tar", workers=workers)
    begun = feed.evaluate(2)
    next(begun)
    file = root / "train-0001.tar"
    file.write_bytes(file.read_bytes()[:600])
    with pytest.raises(OSError, match=r"train-0001.tar is truncated: it ends before byte"):
        list(begun)
    with pytest.raises(OSError, match=r"train-0001.tar is not a whole tar file"):
        list(feed.evaluate(2))
