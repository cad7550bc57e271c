import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from opencrate.data import Split
from opencrate.data.packed import Packed
from opencrate.data.packing import pack
from opencrate.data.pictures import open_pictures
from opencrate.data.settings import Augmentation, Dataset

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


def reading() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith(("packed", "pack_"))]


def train(feed: Packed, split: Split, epoch: int = 3, start: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(feed.train(epoch, start, split))


def values(directory: Path) -> np.ndarray:
    files = json.loads((directory / "index.json").read_text())["shards"]
    return np.concatenate([np.load(directory / shard["file"], mmap_mode="r") for shard in files])


class TestPack:
    def test_round_trip(self, packed, pictures):
        """The stored square is PIL's: itself where it had the size, else resized and cut to its centre."""
        stored, targets = values(packed / "train"), np.load(packed / "train" / "targets.npy")
        assert stored.shape == (COUNT, SIDE, SIDE, 3)
        assert targets.tolist() == [pictures.target(i) for i in range(COUNT)]
        for i in range(COUNT):
            picture = pictures.picture(i)
            if picture.size != (SIDE, SIDE):  # 60 × 40 → 36 × 24
                picture = F.center_crop(F.resize(picture, [SIDE], InterpolationMode.BICUBIC), [SIDE])
            np.testing.assert_allclose(stored[i].astype(int), np.asarray(picture, int), atol=1)

    def test_index_says_what_there_is(self, packed):
        index = json.loads((packed / "train" / "index.json").read_text())
        assert (index["count"], index["side"], index["channels"], index["skipped"]) == (COUNT, SIDE, 3, [])
        assert index["classes"] == ["class0", "class1", "class2"]
        assert [shard["count"] for shard in index["shards"]] == [8, 8, 8, 6]
        for shard in index["shards"]:
            assert (packed / "train" / shard["file"]).stat().st_size == shard["size"]
        assert sorted(f.suffix for f in (packed / "train").iterdir()) == [".json"] + [".npy"] * 5

    def test_grey(self, pictures, tmp_path):
        pack(pictures, tmp_path / "train", 8, in_chans=1)
        feed = Packed(settings(tmp_path, in_chans=1, mean=(0.5,), std=(0.5,), size=8), Augmentation(), True)
        assert train(feed, Split(30))[0][0].shape == (30, 1, 8, 8)

    def test_broken_pictures_are_left_out_and_named(self, source, tmp_path, caplog):
        shutil.copytree(source, tmp_path / "source")
        names = [tmp_path / "source/train" / n for n in ("class1/004.jpg", "class2/017.png")]
        names[0].write_bytes(names[0].read_bytes()[:200])
        names[1].write_bytes(b"no picture")
        pictures = open_pictures(settings(tmp_path / "source", name="folder"), training=True)
        index = pack(pictures, tmp_path / "packed/train", SIDE, shard=8, broken=0.1)
        assert index.count == COUNT - 2
        assert {name for _, name, _ in index.skipped} == {str(n) for n in names}
        assert all(str(n) in caplog.text for n in names)
        left = [i for i in range(COUNT) if pictures.name(i) not in map(str, names)]
        feed = Packed(settings(tmp_path / "packed"), Augmentation(), True)
        assert feed.targets.tolist() == [pictures.target(i) for i in left]
        assert len(feed) == len(values(tmp_path / "packed/train")) == COUNT - 2
        with pytest.raises(ValueError, match="2 of 30 pictures do not decode"):
            pack(pictures, tmp_path / "strict", SIDE, shard=8, broken=0.05)
        assert not (tmp_path / "strict/index.json").exists()

    def test_a_whole_set_is_not_packed_again(self, packed, pictures, monkeypatch):
        monkeypatch.setattr(pictures, "picture", lambda i: pytest.fail("decoded again"))
        assert pack(pictures, packed / "train", SIDE, shard=8).count == COUNT

    def test_another_set_is_not_overwritten(self, packed, pictures):
        with pytest.raises(ValueError, match="holds other pictures"):
            pack(pictures, packed / "train", SIDE + 1, shard=8)

    def test_an_interrupted_pack_continues(self, packed, pictures, tmp_path, monkeypatch):
        def interrupt(done: int, total: int) -> None:
            if done == 16:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            pack(pictures, tmp_path / "train", SIDE, shard=8, progress=interrupt)
        with pytest.raises(ValueError, match="was interrupted"):
            Packed(settings(tmp_path), Augmentation(), True)
        decoded: list[int] = []
        picture = pictures.picture
        monkeypatch.setattr(pictures, "picture", lambda i: decoded.append(i) or picture(i))
        pack(pictures, tmp_path / "train", SIDE, shard=8)
        assert sorted(decoded) == list(range(16, COUNT))
        np.testing.assert_array_equal(values(tmp_path / "train"), values(packed / "train"))
        assert not (tmp_path / "train/unfinished.json").exists()

    def test_a_killed_pack_continues(self, packed, source, pictures, tmp_path):
        code = (
            "import sys, time; from opencrate.data.packing import pack; from opencrate.data.pictures import *\n"
            "from opencrate.data.settings import Dataset\n"
            f"pictures = open_pictures(Dataset(name='folder', root={str(source)!r}, num_classes=3), True)\n"
            "picture = pictures.picture\n"
            "pictures.picture = lambda i: (time.sleep(60 if i == 20 else 0), picture(i))[1]\n"
            f"pack(pictures, {str(tmp_path / 'train')!r}, {SIDE}, shard=8, workers=1)\n"
        )
        process = subprocess.Popen([sys.executable, "-c", code])
        until = time.monotonic() + 60
        while not (tmp_path / "train/images-00002.npy.part").exists() and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        with pytest.raises(ValueError, match="was interrupted"):
            Packed(settings(tmp_path), Augmentation(), True)
        pack(pictures, tmp_path / "train", SIDE, shard=8)
        np.testing.assert_array_equal(values(tmp_path / "train"), values(packed / "train"))
        assert not list((tmp_path / "train").glob("*.part"))

    def test_a_truncated_shard_is_told_and_repaired(self, packed, pictures, tmp_path):
        shutil.copytree(packed, tmp_path / "packed")
        shard = tmp_path / "packed/train/images-00001.npy"
        os.truncate(shard, shard.stat().st_size - 100)
        with pytest.raises(ValueError, match=r"images-00001\.npy has 13852 bytes and should have 13952"):
            Packed(settings(tmp_path / "packed"), Augmentation(), True)
        pack(pictures, tmp_path / "packed/train", SIDE, shard=8)
        np.testing.assert_array_equal(values(tmp_path / "packed/train"), values(packed / "train"))

    def test_a_full_disk_is_one_sentence(self, packed, pictures, tmp_path):
        disk = tmp_path / "disk"
        disk.mkdir()
        if (
            os.geteuid()
            or subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(disk)], capture_output=True
            ).returncode
        ):
            pytest.skip("cannot mount a small disk here")
        try:
            with pytest.raises(OSError, match="No space left on device; 16 of 30 pictures are packed") as caught:
                pack(pictures, disk / "train", SIDE, shard=8)
            assert "\n" not in str(caught.value)
            assert sorted(f.name for f in (disk / "train").iterdir()) == [
                "images-00000.npy",
                "images-00001.npy",
                "unfinished.json",
            ]
            subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
            pack(pictures, disk / "train", SIDE, shard=8)
            np.testing.assert_array_equal(values(disk / "train"), values(packed / "train"))
        finally:
            subprocess.run(["umount", str(disk)], check=True)


class TestOpen:
    def test_what_is_wrong_is_one_sentence(self, packed, tmp_path):
        (tmp_path / "train").mkdir()
        for data, augment, reason in (
            (settings(tmp_path), Augmentation(), "holds no packed pictures"),
            (settings(packed, in_chans=1, mean=(0.5,), std=(0.5,)), Augmentation(), "has 3 channels"),
            (settings(packed, num_classes=2), Augmentation(), "give --data.num-classes 3"),
            (settings(packed), Augmentation(randaugment="torchvision-n2-m14"), "and not by augment.randaugment$"),
            (settings(packed), Augmentation(erase=0.1), "and not by augment.erase$"),
        ):
            with pytest.raises(ValueError, match=reason):
                Packed(data, augment, True)

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
            Packed(settings(tmp_path / "packed"), Augmentation(), True)


class TestTrain:
    @pytest.mark.parametrize("crop", ["resized", "padded", "none"])
    @pytest.mark.parametrize("mirrored", [False, True])
    def test_any_division_sees_the_same_pictures(self, packed, crop, mirrored):
        feed = Packed(settings(packed), Augmentation(crop=crop), True, seed=5)
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
        feed = Packed(settings(packed), Augmentation(), True)
        whole = train(feed, Split(4, parts=2))
        tail = train(feed, Split(4, parts=2), start=5)
        assert (len(whole), len(tail)) == (14, 4)
        for (images, targets), (expected, labels) in zip(tail, whole[10:], strict=True):
            assert torch.equal(images, expected)
            assert torch.equal(targets, labels)

    def test_epochs_and_seeds_differ(self, packed):
        a, b = (Packed(settings(packed), Augmentation(), True, seed) for seed in (0, 1))
        first = train(a, Split(30))[0][0]
        assert torch.equal(first, train(a, Split(30))[0][0])
        assert not torch.equal(first, train(a, Split(30), epoch=4)[0][0])
        assert not torch.equal(first, train(b, Split(30))[0][0])

    def test_crops_are_those_of_torchvision(self, packed):
        """Each picture is torchvision's crop of the stored square, for the box and flip that were drawn."""
        feed = Packed(settings(packed), Augmentation(), True)
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
        feed = Packed(settings(packed, size=SIDE), Augmentation(crop="none", flip=0), True)
        ((images, _),) = train(feed, Split(30))
        ((chosen, _),) = feed._draws(3, 0, Split(30))
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (MEAN, STD))
        stored = torch.from_numpy(values(packed / "train")).permute(0, 3, 1, 2)[chosen]
        torch.testing.assert_close(images, (stored / 255 - mean) / std, atol=1e-4, rtol=0)

    def test_padded_pictures_are_moved(self, packed):
        feed = Packed(settings(packed, size=SIDE), Augmentation(crop="padded", padding=0.25, flip=1), True)
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
        feed = Packed(settings(packed), Augmentation(), False)
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
        feed = Packed(settings(packed), Augmentation(), True)
        batches = feed.train(0, 0, Split(2))
        next(batches)
        assert reading()
        batches.close()
        assert not reading()

    def test_they_end_with_an_exception_of_the_loop(self, packed):
        feed = Packed(settings(packed), Augmentation(), True)

        def loop() -> None:
            for _ in feed.train(0, 0, Split(2)):
                raise RuntimeError("of the loop")

        with pytest.raises(RuntimeError, match="of the loop"):
            loop()
        assert not reading()

    def test_they_end_with_the_epoch(self, packed):
        train(Packed(settings(packed), Augmentation(), True), Split(2))
        assert not reading()

    def test_a_shard_that_shrinks_is_told_before_it_is_read(self, packed, tmp_path):
        shutil.copytree(packed, tmp_path / "packed")
        feed = Packed(settings(tmp_path / "packed"), Augmentation(), True)
        os.truncate(tmp_path / "packed/train/images-00002.npy", 4000)  # while the run goes on
        with pytest.raises(ValueError, match=r"images-00002\.npy has 4000 bytes and should have"):
            next(iter(feed.train(0, 0, Split(4))))

    def test_their_errors_reach_the_loop(self, packed, tmp_path):
        shutil.copytree(packed, tmp_path / "packed")
        feed = Packed(settings(tmp_path / "packed"), Augmentation(), True)
        feed.pixels[2] = feed.pixels[2][:1]
        with pytest.raises((IndexError, RuntimeError), match="out of range"):
            train(feed, Split(2))
        assert not reading()


@pytest.mark.gpu
def test_cuda_sees_the_same_pictures(packed):
    on_cpu, on_cuda = (Packed(settings(packed), Augmentation(), True, device=device) for device in ("cpu", "cuda"))
    for epoch in range(20):
        for (images, targets), (expected, labels) in zip(
            train(on_cuda, Split(4), epoch), train(on_cpu, Split(4), epoch), strict=True
        ):
            assert images.is_cuda
            assert torch.equal(targets.cpu(), labels)
            assert (images.cpu() - expected).abs().max() < 0.3 / 255 / min(STD)
    on_cpu, on_cuda = (Packed(settings(packed), Augmentation(), False, device=device) for device in ("cpu", "cuda"))
    for (images, targets), (expected, labels) in zip(on_cuda.evaluate(7), on_cpu.evaluate(7), strict=True):
        assert torch.equal(targets.cpu(), labels)
        assert (images.cpu() - expected).abs().max() < 0.3 / 255 / min(STD)
