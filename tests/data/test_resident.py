from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as T
from torchvision.transforms import functional as F

from opencrate.data.feed import Split
from opencrate.data.pictures import Arrays, open_pictures
from opencrate.data.resident import Resident, fits
from opencrate.data.settings import Augmentation, Dataset

SIZE, COUNT = 8, 26
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
PADDED = Augmentation("padded", padding=0.25)


def settings(in_chans: int = 3, **changes) -> Dataset:
    kind = {"num_classes": COUNT, "size": SIZE, "in_chans": in_chans, "mean": MEAN[:in_chans], "std": STD[:in_chans]}
    return Dataset(**{"crop_pct": 1.0, **kind, **changes})


def made_up(in_chans: int = 3, shape: tuple[int, int] = (SIZE, SIZE)) -> Arrays:
    """Picture i is of class i."""
    values = np.random.default_rng(0).integers(0, 256, (COUNT, *shape, 3), np.uint8)
    images = values if in_chans == 3 else values[..., 0]
    return Arrays(images, np.arange(COUNT), map(str, range(COUNT)), "made-up")


def resident(in_chans: int = 3, augment: Augmentation = PADDED, varied: bool = True, **more) -> Resident:
    return Resident(made_up(in_chans), settings(in_chans), augment, varied, **more)


def union(batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> dict[int, torch.Tensor]:
    """Class, which tells the picture, → what became of it; each at most once."""
    seen: dict[int, torch.Tensor] = {}
    for images, targets in batches:
        for image, target in zip(images, targets.tolist(), strict=True):
            assert target not in seen
            seen[target] = image
    return seen


def same(a: dict[int, torch.Tensor], b: dict[int, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[i], b[i]) for i in a)


def trained(feed: Resident, world: int = 1, parts: int = 1, epoch: int = 3, start: int = 0, mirrored: bool = False):
    splits = [Split(8, parts, rank, world, mirrored) for rank in range(world)]
    return union(batch for split in splits for batch in feed.train(epoch, start, split))


class TestCrop:
    @pytest.mark.parametrize("in_chans", [1, 3])
    def test_is_torchvisions(self, in_chans):
        """Every shift within a border of two pixels, flipped and not, picture by picture."""
        feed, pictures = resident(in_chans), made_up(in_chans)
        moves = [(top, left, flip) for top in range(5) for left in range(5) for flip in (False, True)]
        chosen = torch.arange(len(moves)) % COUNT
        mine = feed.crop(chosen, torch.tensor([m[:2] for m in moves]), torch.tensor([m[2] for m in moves]))
        for k, (top, left, flip) in enumerate(moves):
            image = F.crop(F.pad(pictures.picture(int(chosen[k])), [2]), top, left, SIZE, SIZE)
            image = F.pil_to_tensor(F.hflip(image) if flip else image)
            assert torch.equal(mine[k], feed.normalise(image[None])[0])  # to the bit
            expected = F.normalize(image.double() / 255, MEAN[:in_chans], STD[:in_chans])
            torch.testing.assert_close(mine[k].double(), expected, rtol=0, atol=1e-6)

    def test_without_a_border_nothing_moves(self):
        feed = resident(augment=Augmentation("none", flip=0.0))
        for target, image in trained(feed).items():
            assert torch.equal(image, feed.normalise(feed.images[target, None])[0])


class TestTrain:
    def test_covers_each_picture_at_most_once(self):
        feed = resident()
        assert (len(feed), feed.steps(8)) == (COUNT, 3)
        assert len(trained(feed)) == 24

    @pytest.mark.parametrize("world", [1, 2, 4])
    @pytest.mark.parametrize("parts", [1, 2])
    @pytest.mark.parametrize("mirrored", [False, True])
    def test_is_the_same_on_any_number_of_processes(self, world, parts, mirrored):
        if mirrored and world * parts == 8:
            parts = 1
        assert same(trained(resident(), world, parts, mirrored=mirrored), trained(resident()))

    def test_steps_hold_the_same_pictures_on_any_number_of_processes(self):
        feed = resident()
        whole = [set(targets.tolist()) for _, targets in feed.train(0, 0, Split(8))]
        halves = [[set(t.tolist()) for _, t in feed.train(0, 0, Split(8, 1, rank, 2))] for rank in range(2)]
        assert whole == [a | b for a, b in zip(*halves, strict=True)]

    def test_begins_anywhere(self):
        feed, split = resident(), Split(8, 2, 1, 2)
        whole, tail = list(feed.train(3, 0, split)), list(resident().train(3, 2, split))
        assert len(whole) == 6
        assert len(tail) == 2
        for (a, b), (c, d) in zip(whole[4:], tail, strict=True):
            assert torch.equal(a, c)
            assert torch.equal(b, d)
        assert list(feed.train(3, 3, split)) == []

    def test_differs_between_epochs_and_seeds(self):
        variants = [trained(resident(seed=seed), epoch=epoch) for seed in (0, 1) for epoch in (0, 1)]
        for i, one in enumerate(variants):
            for other in variants[:i]:
                both = one.keys() & other.keys()
                assert sum(torch.equal(one[target], other[target]) for target in both) < len(both) / 4

    def test_shifts_and_flips_are_evenly_drawn(self):
        """One bright pixel per picture tells where it went: all 25 shifts occur, and half are flipped."""
        count = 4000
        images = np.zeros((count, SIZE, SIZE), np.uint8)
        images[:, 4, 2] = 255
        pictures = Arrays(images, np.zeros(count, int), "ab", "made-up")
        feed = Resident(pictures, settings(1, mean=(0.0,), std=(1.0,)), PADDED, True)
        ((moved, _),) = feed.train(0, 0, Split(count))
        places = moved.flatten(1).argmax(1)
        rows, columns = places // SIZE, places % SIZE  # rows 2 … 6; columns 0 … 4, or flipped 3 … 7
        assert rows.bincount()[2:].tolist() == pytest.approx([count / 5] * 5, abs=130)  # five standard deviations
        weights = [1, 1, 1, 2, 2, 1, 1, 1]
        assert columns.bincount().tolist() == pytest.approx([count * w / 10 for w in weights], abs=130)

    def test_a_feed_that_is_not_varied_is_not(self):
        feed = resident(augment=Augmentation("padded", flip=1.0), varied=False)
        for target, image in trained(feed).items():
            assert torch.equal(image, feed.normalise(feed.images[target, None])[0])

    def test_sees_the_whole_picture(self):
        """As the worker processes' training does; evaluation sees the centre."""
        pictures, data = made_up(shape=(20, 12)), settings(crop_pct=0.5)
        feed = Resident(pictures, data, Augmentation("none", flip=0.0, interpolation="bilinear"), True)
        whole = F.pil_to_tensor(F.resize(pictures.picture(4), [SIZE, SIZE], T.InterpolationMode.BILINEAR))
        assert torch.equal(feed.images[4], whole)


class TestEvaluate:
    @pytest.mark.parametrize("world", [1, 2, 3, 8, 26, 40])
    @pytest.mark.parametrize("batch", [1, 5, 100])
    def test_covers_each_picture_once(self, world, batch):
        feed = resident(varied=False)
        batches = [b for rank in range(world) for b in feed.evaluate(batch, rank, world)]
        assert all(0 < len(targets) <= batch for _, targets in batches)
        assert union(iter(batches)).keys() == set(range(COUNT))

    @pytest.mark.parametrize("mode", [T.InterpolationMode.BICUBIC, T.InterpolationMode.BILINEAR])
    def test_sees_the_centre(self, mode):
        pictures, augment = made_up(shape=(20, 12)), Augmentation(interpolation=mode.value)
        feed = Resident(pictures, settings(crop_pct=0.5), augment, False)
        images, targets = next(feed.evaluate(COUNT))
        assert targets.tolist() == list(range(COUNT))
        for i in range(COUNT):
            centre = F.center_crop(F.resize(pictures.picture(i), [16], mode), [SIZE])
            expected = F.normalize(F.pil_to_tensor(centre).double() / 255, MEAN, STD)
            torch.testing.assert_close(images[i].double(), expected, rtol=0, atol=1e-6)

    def test_colour_for_a_grey_network_and_grey_for_a_colour_one(self):
        grey = Resident(made_up(3), settings(1), PADDED, False)
        assert np.array_equal(grey.images[3, 0], np.asarray(made_up(3).picture(3).convert("L")))
        colour = Resident(made_up(1), settings(3), PADDED, False)
        assert np.array_equal(colour.images[3], np.stack([made_up(1).images[3]] * 3))


class TestBroken:
    def folder(self, root: Path, broken: int) -> Path:
        for i in range(20):
            file = root / "train" / str(i % 2) / f"{i:02d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (SIZE, SIZE), (10 * i, 0, 0)).save(file)
            if i < broken:
                file.write_bytes(file.read_bytes()[:40])
        return root

    def test_are_left_out_and_counted(self, tmp_path, caplog):
        pictures = open_pictures(settings(root=str(self.folder(tmp_path, 2))), True)
        feed = Resident(pictures, settings(broken=0.1), PADDED, False)
        assert (len(feed), len(feed.broken)) == (18, 2)
        assert [record.args[0] for record in caplog.records] == [f"{tmp_path}/train/{i}/0{i}.png" for i in range(2)]
        images, targets = next(feed.evaluate(100))
        reds = (images[:, 0, 0, 0] * STD[0] + MEAN[0]) * 255
        pairs = sorted(zip(reds.round().int().tolist(), targets.tolist(), strict=True))
        assert pairs == [(10 * i, i % 2) for i in range(2, 20)]
        assert len(torch.cat([t for _, t in feed.train(0, 0, Split(6))])) == 18

    def test_too_many_stop(self, tmp_path):
        pictures = open_pictures(settings(root=str(self.folder(tmp_path, 3))), True)
        with pytest.raises(
            ValueError, match=r"^3 of 20 pictures do not decode, more than the share of 0.1 that [^\n]*$"
        ):
            Resident(pictures, settings(broken=0.1), PADDED, False)

    def test_all(self, tmp_path):
        pictures = open_pictures(settings(root=str(self.folder(tmp_path, 20))), True)
        with pytest.raises(ValueError, match=r"^none of 20 pictures decodes$"):
            Resident(pictures, settings(broken=1.0), PADDED, False)


class TestFits:
    @pytest.mark.parametrize(
        ("augment", "varied", "expected"),
        [
            (Augmentation("padded"), True, True),
            (Augmentation("none"), True, True),
            (Augmentation("resized"), True, False),
            (Augmentation("resized"), False, True),
            (Augmentation("padded", randaugment="rand-m9"), True, False),
            (Augmentation("padded", randaugment="rand-m9"), False, True),
        ],
    )
    def test_by_augmentation(self, augment, varied, expected):
        assert fits(made_up(), settings(), augment, varied) is expected

    def test_by_size(self, monkeypatch):
        needed = COUNT * 3 * SIZE**2
        for limit, expected in ((needed, True), (needed - 1, False)):
            monkeypatch.setattr("opencrate.data.resident.LIMIT", limit)
            assert fits(made_up(), settings(), PADDED, True) is expected
        assert fits(made_up(), settings(1), PADDED, True)
