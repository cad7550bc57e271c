"""The feed of packed sets."""

import os
import shutil
import threading
from contextlib import nullcontext

import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from opencrate.data import Split, open_feed
from opencrate.data.augment.crops import crop_and_resize, crop_boxes
from opencrate.data.datasets.packing import PackedPictures
from opencrate.data.feeds import resident
from opencrate.data.feeds.packed import Packed
from opencrate.data.feeds.resident import Resident
from opencrate.data.opening import open_pictures
from opencrate.data.settings import Augmentation

from .squares import COUNT, MEAN, SIDE, STD, settings, train, values


def reading() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith(("packed", "pack_"))]


def of_their_size(packed, augment: Augmentation) -> Packed:
    """A packed feed where `open_feed` takes a resident one, because the pictures have the network's size."""
    data = settings(packed, size=SIDE)
    return Packed(open_pictures(data, True), data, augment, True)


class TestOpen:
    @pytest.mark.parametrize("augmented", [False, True])
    def test_pictures_of_the_networks_size_live_on_the_device(self, packed, augmented, monkeypatch):
        augment = Augmentation(crop="resized", randaugment="torchvision-n2-m9", erase=0.1)
        monkeypatch.setattr(PackedPictures, "picture", lambda *given: pytest.fail("read one by one"))
        data = settings(packed, size=SIDE, crop_pct=1.0)
        monkeypatch.setattr(resident, "_are_of_size", lambda *given: True)
        feed = open_feed(data, augment if augmented else None, True)
        assert isinstance(feed, Resident)
        assert torch.equal(feed.images, torch.from_numpy(values(packed / "train")).permute(0, 3, 1, 2))
        monkeypatch.setattr(resident, "LIMIT", 1)
        with pytest.raises(ValueError, match="not supported") if augmented else nullcontext():
            assert isinstance(open_feed(data, augment if augmented else None, True), Packed)

    def test_what_is_wrong_is_one_sentence(self, packed, tmp_path):
        (tmp_path / "train").mkdir()
        for data, augment, reason in (
            (settings(tmp_path), Augmentation(), "contains no packed pictures"),
            (settings(packed, in_chans=1, mean=(0.5,), std=(0.5,)), Augmentation(), "has 3 channels"),
            (settings(packed, num_classes=2), Augmentation(), "give --data.num-classes 3"),
            (settings(packed), Augmentation(randaugment="torchvision-n2-m14"), "augment.randaugment is not supported$"),
            (settings(packed), Augmentation(erase=0.1), "augment.erase is not supported$"),
        ):
            with pytest.raises(ValueError, match=reason):
                open_feed(data, augment, True)

    @pytest.mark.parametrize(
        ("file", "content"),
        [
            ("index.json", b"{"),
            ("index.json", b"[]"),
            ("targets.npy", b"\x93NUMPY"),
            ("images-00000.npy", b"x" * 13952),
        ],
    )
    def test_damage_is_told(self, packed, tmp_path, file, content):
        shutil.copytree(packed, tmp_path / "packed")
        (tmp_path / "packed/train" / file).write_bytes(content)
        with pytest.raises(ValueError, match=file):
            open_feed(settings(tmp_path / "packed"), Augmentation(), True)


class TestTrain:
    @pytest.mark.parametrize("crop", ["resized", "padded", "none"])
    @pytest.mark.parametrize("mirrored", [False, True])
    def test_any_division_sees_the_same_pictures(self, packed, crop, mirrored):
        feed = open_feed(settings(packed), Augmentation(crop=crop), True, seed=5)
        for step, (images, targets) in enumerate(train(feed, Split(12))):
            places = torch.arange(12)
            for parts, world in ((2, 1), (1, 2), (3, 2)):
                for rank in range(world):
                    split = Split(12, parts, rank, world, mirrored)
                    mine = train(feed, split)[step * parts : (step + 1) * parts]
                    for chosen, (part, labels) in zip(split.micro_batches(places), mine, strict=True):
                        torch.testing.assert_close(part, images[chosen], atol=1e-4, rtol=0)
                        assert torch.equal(labels, targets[chosen])

    def test_an_epoch_can_begin_anywhere(self, packed):
        feed = open_feed(settings(packed), Augmentation(), True)
        whole = train(feed, Split(4, parts=2))
        tail = train(feed, Split(4, parts=2), start=5)
        assert (len(whole), len(tail)) == (14, 4)
        for (images, targets), (expected, labels) in zip(tail, whole[10:], strict=True):
            assert torch.equal(images, expected)
            assert torch.equal(targets, labels)

    def test_epochs_and_seeds_differ(self, packed):
        a, b = (open_feed(settings(packed), Augmentation(), True, seed) for seed in (0, 1))
        first = train(a, Split(30))[0][0]
        assert torch.equal(first, train(a, Split(30))[0][0])
        assert not torch.equal(first, train(a, Split(30), epoch=4)[0][0])
        assert not torch.equal(first, train(b, Split(30))[0][0])

    def test_crops_are_those_of_torchvision(self, packed):
        """Each picture is torchvision's crop of the stored square, for the box and flip that were drawn."""
        feed = open_feed(settings(packed), Augmentation(), True)
        stored = torch.from_numpy(values(packed / "train")).permute(0, 3, 1, 2).float()
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (MEAN, STD))
        ((images, targets),) = train(feed, Split(30))
        ((chosen, numbers),) = feed._draws(3, 0, Split(30))
        assert sorted(chosen.tolist()) == list(range(COUNT))
        assert 0 < numbers[:, 1].sum() < COUNT
        for image, target, i, (label, flip, *box) in zip(images, targets, chosen, numbers.tolist(), strict=True):
            expected = F.resized_crop(stored[i], *box, [16, 16], InterpolationMode.BICUBIC).clamp(0, 255)
            expected = expected.flip(-1) if flip else expected
            torch.testing.assert_close(image, (expected / 255 - mean) / std, atol=1e-4, rtol=0)
            assert target == label == feed.targets[i]

    def test_whole_pictures(self, packed):
        feed = of_their_size(packed, Augmentation(crop="none", flip=0))
        ((images, _),) = train(feed, Split(30))
        ((chosen, _),) = feed._draws(3, 0, Split(30))
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (MEAN, STD))
        stored = torch.from_numpy(values(packed / "train")).permute(0, 3, 1, 2)[chosen]
        torch.testing.assert_close(images, (stored / 255 - mean) / std, atol=1e-4, rtol=0)

    def test_padded_pictures_are_moved(self, packed):
        feed = of_their_size(packed, Augmentation(crop="padded", padding=0.25, flip=1))
        ((images, _),) = train(feed, Split(30))
        ((chosen, numbers),) = feed._draws(3, 0, Split(30))
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (MEAN, STD))
        stored = torch.from_numpy(values(packed / "train")).permute(0, 3, 1, 2)[chosen]
        bordered = torch.nn.functional.pad(stored, (6, 6, 6, 6))
        assert numbers[:, 2:4].min() == -6
        assert numbers[:, 2:4].max() == 6
        for image, whole, (_, _, y, x, _, _) in zip(images, bordered, numbers.tolist(), strict=True):
            moved = whole[:, 6 + y : 6 + y + SIDE, 6 + x : 6 + x + SIDE].flip(-1)
            torch.testing.assert_close(image, (moved / 255 - mean) / std, atol=1e-4, rtol=0)


class TestEvaluate:
    @pytest.mark.parametrize(("batch", "world"), [(7, 1), (4, 3), (64, 2)])
    def test_every_picture_once(self, packed, batch, world):
        feed = open_feed(settings(packed), Augmentation(), False)
        shares = [list(feed.evaluate(batch, rank, world)) for rank in range(world)]
        assert all(len(images) <= batch for share in shares for images, _ in share)
        images, targets = torch.empty(COUNT, 3, 16, 16), torch.empty(COUNT, dtype=torch.int64)
        for rank, share in enumerate(shares):
            images[rank::world], targets[rank::world] = (torch.cat(part) for part in zip(*share, strict=True))
        assert torch.equal(targets, feed.targets)
        stored = torch.from_numpy(values(packed / "validation")).permute(0, 3, 1, 2).float()
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (MEAN, STD))
        resized = F.resize(stored, [18, 18], InterpolationMode.BICUBIC)  # 16/0.875
        expected = F.center_crop(resized.clamp(0, 255), [16, 16])
        torch.testing.assert_close(images, (expected / 255 - mean) / std, atol=1e-4, rtol=0)


class TestThreads:
    def test_they_end_when_the_loop_breaks_off(self, packed):
        feed = open_feed(settings(packed), Augmentation(), True)
        batches = feed.train(0, 0, Split(2))
        next(batches)
        assert reading()
        batches.close()
        assert not reading()

    def test_they_end_with_an_exception_of_the_loop(self, packed):
        feed = open_feed(settings(packed), Augmentation(), True)

        def loop() -> None:
            for _ in feed.train(0, 0, Split(2)):
                raise RuntimeError("of the loop")

        with pytest.raises(RuntimeError, match="of the loop"):
            loop()
        assert not reading()

    def test_they_end_with_the_epoch(self, packed):
        train(open_feed(settings(packed), Augmentation(), True), Split(2))
        assert not reading()

    def test_a_shard_that_shrinks_is_told_before_it_is_read(self, packed, tmp_path):
        shutil.copytree(packed, tmp_path / "packed")
        feed = open_feed(settings(tmp_path / "packed"), Augmentation(), True)
        os.truncate(tmp_path / "packed/train/images-00002.npy", 4000)  # while the run goes on
        with pytest.raises(ValueError, match=r"images-00002\.npy has 4000 bytes and should have"):
            next(iter(feed.train(0, 0, Split(4))))

    def test_their_errors_reach_the_loop(self, packed, tmp_path):
        shutil.copytree(packed, tmp_path / "packed")
        feed = open_feed(settings(tmp_path / "packed"), Augmentation(), True)
        feed.pictures.shards[2] = feed.pictures.shards[2][:1]
        with pytest.raises((IndexError, RuntimeError), match="out of range"):
            train(feed, Split(2))
        assert not reading()


def test_nothing_is_compiled_on_a_cpu(packed):
    """Where there may be no compiler, and the products take longer than the weights."""
    feed = open_feed(settings(packed), Augmentation(), True)
    assert feed.augment_batch == feed._augment


@pytest.mark.gpu
@pytest.mark.unhooked
def test_compiled_crops_are_the_same_in_every_call():
    """Of 256 pictures: a race in a kernel spoils some of so many rows in half of the calls."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (256, 3, 256, 256), generator=draw, dtype=torch.uint8).cuda()
    boxes = crop_boxes(256, 256, 256, (0.08, 1.0), (3 / 4, 4 / 3), draw).cuda()
    flips = (torch.rand(256, generator=draw) < 0.5).cuda()
    expected, compiled = crop_and_resize(images, boxes, flips, 224), torch.compile(crop_and_resize, dynamic=False)
    for _ in range(20):
        assert (compiled(images, boxes, flips, 224) - expected).abs().max() <= 0.5  # a rounding of half precision


@pytest.mark.gpu
def test_cuda_sees_the_same_pictures(packed):
    on_cpu, on_cuda = (open_feed(settings(packed), Augmentation(), True, device=device) for device in ("cpu", "cuda"))
    for epoch in range(20):
        for (images, targets), (expected, labels) in zip(
            train(on_cuda, Split(4), epoch), train(on_cpu, Split(4), epoch), strict=True
        ):
            assert images.is_cuda
            assert torch.equal(targets.cpu(), labels)
            assert (images.cpu() - expected).abs().max() < 0.3 / 255 / min(STD)
    on_cpu, on_cuda = (open_feed(settings(packed), Augmentation(), False, device=device) for device in ("cpu", "cuda"))
    for (images, targets), (expected, labels) in zip(on_cuda.evaluate(7), on_cpu.evaluate(7), strict=True):
        assert torch.equal(targets.cpu(), labels)
        assert (images.cpu() - expected).abs().max() < 0.3 / 255 / min(STD)
