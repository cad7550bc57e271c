import gc
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from opencrate.data.datasets.pictures import Arrays
from opencrate.data.feeds.feed import Split
from opencrate.data.feeds.loading import Loaded
from opencrate.data.feeds.resident import Resident
from opencrate.data.opening import open_pictures
from opencrate.data.settings import Augmentation, Dataset
from opencrate.randomness import seeded

# from Python 3.12 on, of DataLoader's workers where another test has left a thread
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

COUNT = 26
AUGMENT = Augmentation(randaugment="rand-m9-mstd0.5")  # draws from Python's, NumPy's and torch's generators


def settings(**changes) -> Dataset:
    half = (0.5,) * changes.get("in_chans", 3)
    return Dataset(**{"num_classes": COUNT, "size": 8, "mean": half, "std": half, **changes})


def made_up() -> Arrays:
    """Picture i is of class i."""
    images = np.random.default_rng(0).integers(0, 256, (COUNT, 12, 16, 3), np.uint8)
    return Arrays(images, np.arange(COUNT), map(str, range(COUNT)), "made-up")


def loaded(augmented: bool = True, augment: Augmentation = AUGMENT, **more) -> Loaded:
    return Loaded(made_up(), settings(), augment, augmented, **more)


Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]


def union(batches: Batches) -> dict[int, torch.Tensor]:
    """Class, which tells the picture, → what became of it; each at most once."""
    seen: dict[int, torch.Tensor] = {}
    for images, targets in batches:
        for image, target in zip(images, targets.tolist(), strict=True):
            assert target not in seen
            seen[target] = image
    return seen


def same(a: Batches, b: Batches) -> bool:
    pairs = zip(a, b, strict=True)
    return all(torch.equal(x, y) for one, other in pairs for x, y in zip(one, other, strict=True))


def same_union(a: dict[int, torch.Tensor], b: dict[int, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[i], b[i]) for i in a)


class TestTrain:
    @pytest.mark.parametrize("world", [1, 2, 4])
    @pytest.mark.parametrize("parts", [1, 2])
    def test_is_the_same_on_any_number_of_processes(self, world, parts):
        feed = loaded()
        whole = union(feed.train(3, 0, Split(8)))
        splits = [Split(8, parts, rank, world) for rank in range(world)]
        assert len(whole) == 24
        assert same_union(union(batch for split in splits for batch in feed.train(3, 0, split)), whole)

    def test_is_the_same_with_any_number_of_workers(self):
        split = Split(8, 2, 1, 2)
        here, there = (list(loaded(workers=workers).train(3, 0, split)) for workers in (0, 2))
        assert len(here) == 6
        assert same(here, there)

    def test_begins_anywhere(self):
        feed, split = loaded(), Split(8, 2, 1, 2)
        assert same(list(feed.train(3, 0, split))[4:], feed.train(3, 2, split))
        assert list(feed.train(3, 3, split)) == []

    def test_differs_between_epochs_and_seeds(self):
        variants = [union(loaded(seed=s).train(e, 0, Split(8))) for s in (0, 1) for e in (0, 1)]
        for i, one in enumerate(variants):
            for other in variants[:i]:
                assert not any(torch.equal(one[target], other[target]) for target in one.keys() & other.keys())

    def test_the_order_is_residents(self):
        """A set that has grown too large for the device is trained on in the same order."""
        still = Augmentation("none", flip=0.0)
        feeds = (kind(made_up(), settings(crop_pct=0.5), still, True, seed=5) for kind in (Loaded, Resident))
        for (a, b), (c, d) in zip(*(feed.train(2, 0, Split(8, 2)) for feed in feeds), strict=True):
            torch.testing.assert_close(a, c, rtol=0, atol=1e-6)
            assert torch.equal(b, d)


class TestEvaluate:
    @pytest.mark.parametrize(("batch", "world"), [(5, 1), (5, 3), (100, 1), (1, 40)])
    @pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
    def test_is_residents(self, batch, world, interpolation):
        augment = Augmentation(interpolation=interpolation)
        feeds = [kind(made_up(), settings(), augment, False) for kind in (Loaded, Resident)]
        seen = set()
        for rank in range(world):
            for (a, b), (c, d) in zip(*(feed.evaluate(batch, rank, world) for feed in feeds), strict=True):
                torch.testing.assert_close(a, c, rtol=0, atol=1e-6)
                assert torch.equal(b, d)
                seen |= set(b.tolist())
        assert seen == set(range(COUNT))

    def test_is_the_same_with_any_number_of_workers(self):
        assert same(*(loaded(False, workers=workers).evaluate(5) for workers in (0, 2)))

    def test_grey(self):
        feed = Loaded(made_up(), settings(in_chans=1), AUGMENT, False)
        assert next(feed.evaluate(4))[0].shape == (4, 1, 8, 8)


def states() -> tuple[object, ...]:
    key = np.random.get_state()
    return random.getstate(), key[1].tobytes(), key[2:], torch.get_rng_state().numpy().tobytes()


class TestRandomNumbers:
    @pytest.mark.parametrize("workers", [0, 1])
    def test_those_of_others_are_untouched(self, workers):
        before = states()
        feed = loaded(workers=workers)
        assert len(list(feed.train(0, 0, Split(8)))) == 3
        assert states() == before
        next(feed.evaluate(8))
        assert states() == before

    @pytest.mark.parametrize(
        "disturb", [lambda: random.seed(3), lambda: np.random.seed(3), lambda: torch.manual_seed(3)]
    )
    def test_those_of_others_do_not_matter(self, disturb):
        before = list(loaded().train(0, 0, Split(8)))
        disturb()
        assert same(before, loaded().train(0, 0, Split(8)))

    def test_seeded_restores_after_an_error(self):
        def fail() -> None:
            random.random(), np.random.rand(), torch.rand(1)
            raise RuntimeError

        before = states()
        with pytest.raises(RuntimeError), seeded(1, 2):
            fail()
        assert states() == before

    def test_seeded_follows_from_the_key(self):
        def draw(*key: int) -> tuple[float, float, float]:
            with seeded(*key):
                return random.random(), np.random.rand(), torch.rand(1).item()

        assert draw(1, 2, 3) == draw(1, 2, 3)
        keys = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
        assert all(len(set(values)) == len(keys) for values in zip(*(draw(*key) for key in keys), strict=True))


def folder(root: Path, broken: tuple[int, ...]) -> Dataset:
    """Twenty pictures of one colour, which tells their number, in two classes; some are cut off."""
    for i in range(20):
        file = root / "train" / "ab"[i // 10] / f"{i:02d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (10 * i, 10 * i, 10 * i)).save(file, quality=95)
        if i in broken:
            file.write_bytes(file.read_bytes()[:-20])
    return settings(root=str(root), max_decode_failures=0.1, crop_pct=1.0)


def numbers(batches: Batches) -> list[tuple[int, int]]:
    """(number, class) of every picture."""
    found = []
    for images, targets in batches:
        greys = (images[:, 0, 4, 4] * 0.5 + 0.5) * 255
        found += zip((greys / 10).round().int().tolist(), targets.tolist(), strict=True)
    return found


class TestBroken:
    still = Augmentation("none", flip=0.0)

    def feed(self, data: Dataset, augmented: bool = True, workers: int = 0) -> Loaded:
        return Loaded(open_pictures(data, True), data, self.still, augmented, workers=workers)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_gives_its_place_to_the_next_in_training(self, tmp_path, caplog, workers):
        feed = self.feed(folder(tmp_path, (9, 19)), workers=workers)
        for epoch in range(2):
            whole = numbers(self.feed(folder(tmp_path / "whole", ())).train(epoch, 0, Split(4)))
            replaced = [{9: (10, 1), 19: (0, 0)}.get(i, (i, target)) for i, target in whole]
            assert numbers(feed.train(epoch, 0, Split(4))) == replaced
        names = [str(tmp_path / "train" / name) for name in ("a/09.jpg", "b/19.jpg")]
        assert sorted(record.args[0] for record in caplog.records) == names
        assert len(feed.decode_failures) == 2

    def test_several_in_a_row(self, tmp_path):
        feed = self.feed(folder(tmp_path, (18, 19)))
        found = numbers(feed.train(0, 0, Split(20)))
        assert sorted(found) == sorted([(0, 0)] * 3 + [(i, i // 10) for i in range(1, 18)])

    @pytest.mark.parametrize("workers", [0, 2])
    def test_is_not_counted_in_evaluation(self, tmp_path, caplog, workers):
        feed = self.feed(folder(tmp_path, (9, 19)), augmented=False, workers=workers)
        for _ in range(2):
            found = numbers(feed.evaluate(6))
            assert [target for _, target in found] == [-1 if i in (9, 19) else i // 10 for i in range(20)]
            assert all(i == number for i, (number, target) in enumerate(found) if target >= 0)
        assert len(caplog.records) == 2

    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("training", [True, False])
    def test_too_many_stop(self, tmp_path, workers, training):
        feed = self.feed(folder(tmp_path, (3, 4, 5)), augmented=training, workers=workers)
        with pytest.raises(ValueError, match=r"^3 of 20 pictures do not decode, more than the fraction 0.1 [^\n]*$"):
            list(feed.train(0, 0, Split(4)) if training else feed.evaluate(4))

    @pytest.mark.parametrize("workers", [0, 1])
    @pytest.mark.parametrize("training", [True, False])
    def test_all(self, tmp_path, workers, training):
        folder(tmp_path, tuple(range(20)))
        feed = self.feed(settings(root=str(tmp_path), max_decode_failures=1.0), augmented=training, workers=workers)
        with pytest.raises(ValueError, match=r"^none of 20 pictures decodes$"):
            list(feed.train(0, 0, Split(4)) if training else feed.evaluate(4))


class TestErrors:
    """What else goes wrong in a worker says so, in one sentence."""

    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch) -> Iterator[None]:
        """torch gives the workers of a failed loader five seconds to end, whenever it is collected."""
        monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)
        yield
        gc.collect()

    def failing(self, error: Exception, workers: int) -> Loaded:
        def fail(image: Image.Image) -> torch.Tensor:
            raise error

        feed = loaded(workers=workers)
        feed.dataset.transform = fail
        return feed

    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_value_error_is_one_sentence(self, workers):
        feed = self.failing(ValueError("size 8 is too small"), workers)
        with pytest.raises(ValueError, match=r"^size 8 is too small$"):
            next(feed.train(0, 0, Split(4)))

    @pytest.mark.parametrize("workers", [0, 1])
    def test_another_error_keeps_its_kind_and_its_text(self, workers):
        feed = self.failing(TypeError("color must be int"), workers)
        with pytest.raises(TypeError, match=re.escape("color must be int")):
            next(feed.train(0, 0, Split(4)))


def test_a_signal_cannot_kill_a_worker_not_even_while_it_starts():
    """The workers of an epoch get SIGTERM a thousand times a second from their first moment on."""
    storm = subprocess.Popen([sys.executable, "-c", STORM, str(os.getpid()), str(threading.get_native_id())])
    try:
        for epoch in range(3):
            assert len(list(loaded(workers=2).train(epoch, 0, Split(batch=2)))) == 13
    finally:
        storm.kill()
        storm.wait()


def test_workers_ignore_signals_by_themselves_too():
    """As they must where processes are forked from a server, which has no mask to inherit: from Python 3.14 on."""

    def check(image: Image.Image) -> torch.Tensor:
        if any(signal.getsignal(number) != signal.SIG_IGN for number in (signal.SIGINT, signal.SIGTERM)):
            raise ValueError("a signal is not ignored")
        return torch.zeros(3, 8, 8, dtype=torch.uint8)

    feed = loaded(workers=1)
    feed.dataset.transform = check
    assert len(list(feed.evaluate(COUNT))) == 1


STORM = """
import contextlib, os, pathlib, signal, sys, time
children = pathlib.Path("/proc", sys.argv[1], "task", sys.argv[2], "children")
while True:
    for child in map(int, children.read_text().split()):
        if child != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
    time.sleep(0.001)
"""
