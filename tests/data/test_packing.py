"""Packing: what is written, and what becomes of it when it is interrupted."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from opencrate.data import Split, open_feed
from opencrate.data.datasets.packing import pack
from opencrate.data.opening import open_pictures
from opencrate.data.settings import Augmentation

from .squares import COUNT, SIDE, settings, train, values


def test_round_trip(packed, pictures):
    """The stored square is PIL's: itself where it had the size, else resized and cut to its centre."""
    stored, targets = values(packed / "train"), np.load(packed / "train" / "targets.npy")
    again = open_pictures(settings(packed), training=True)
    assert stored.shape == (COUNT, SIDE, SIDE, 3)
    assert targets.tolist() == [pictures.targets[i] for i in range(COUNT)]
    for i in range(COUNT):
        picture = pictures.picture(i)
        if picture.size != (SIDE, SIDE):  # 60 × 40 → 36 × 24
            picture = F.center_crop(F.resize(picture, [SIDE], InterpolationMode.BICUBIC), [SIDE])
        np.testing.assert_allclose(stored[i].astype(int), np.asarray(picture, int), atol=1)
        np.testing.assert_array_equal(again.picture(i), stored[i])
    assert again.classes == pictures.classes


def test_index_says_what_there_is(packed):
    index = json.loads((packed / "train" / "index.json").read_text())
    assert (index["count"], index["side"], index["channels"], index["skipped"]) == (COUNT, SIDE, 3, [])
    assert index["classes"] == ["class0", "class1", "class2"]
    assert [shard["count"] for shard in index["shards"]] == [8, 8, 8, 6]
    for shard in index["shards"]:
        assert (packed / "train" / shard["file"]).stat().st_size == shard["size"]
    assert sorted(f.suffix for f in (packed / "train").iterdir()) == [".json"] + [".npy"] * 5


def test_squares_and_shards_that_nobody_chose(pictures, tmp_path):
    """256 pixels, of which a network of 224 sees the usual 7/8."""
    index = pack(pictures, tmp_path)
    assert (index.side, index.channels, index.shard) == (224 * 8 // 7, 3, 16384)
    assert [shard.count for shard in index.shards] == [COUNT]


def test_grey(pictures, tmp_path):
    pack(pictures, tmp_path / "train", 8, in_chans=1)
    feed = open_feed(settings(tmp_path, in_chans=1, mean=(0.5,), std=(0.5,), size=8), Augmentation(), True)
    assert train(feed, Split(30))[0][0].shape == (30, 1, 8, 8)


def test_broken_pictures_are_left_out_and_named(source, tmp_path, caplog):
    shutil.copytree(source, tmp_path / "source")
    names = [tmp_path / "source/train" / n for n in ("class1/004.jpg", "class2/017.png")]
    names[0].write_bytes(names[0].read_bytes()[:200])
    names[1].write_bytes(b"no picture")
    pictures = open_pictures(settings(tmp_path / "source", name="folder"), training=True)
    index = pack(pictures, tmp_path / "packed/train", SIDE, shard=8, max_decode_failures=0.1)
    assert index.count == COUNT - 2
    assert {name for _, name, _ in index.skipped} == {str(n) for n in names}
    assert all(str(n) in caplog.text for n in names)
    left = [i for i in range(COUNT) if pictures.name(i) not in map(str, names)]
    feed = open_feed(settings(tmp_path / "packed"), Augmentation(), True)
    assert feed.targets.tolist() == [pictures.targets[i] for i in left]
    assert len(feed) == len(values(tmp_path / "packed/train")) == COUNT - 2
    with pytest.raises(ValueError, match="2 of 30 pictures do not decode"):
        pack(pictures, tmp_path / "strict", SIDE, shard=8, max_decode_failures=0.05)
    assert not (tmp_path / "strict/index.json").exists()


def test_a_whole_set_is_not_packed_again(packed, pictures, monkeypatch):
    monkeypatch.setattr(pictures, "picture", lambda i: pytest.fail("decoded again"))
    assert pack(pictures, packed / "train", SIDE, shard=8).count == COUNT


def test_another_set_is_not_overwritten(packed, pictures):
    with pytest.raises(ValueError, match="holds other pictures"):
        pack(pictures, packed / "train", SIDE + 1, shard=8)


def test_an_interrupted_pack_continues(packed, pictures, tmp_path, monkeypatch):
    decoded: list[int] = []
    picture = pictures.picture

    def interrupted(i: int) -> Image.Image:
        if i == 20:
            raise KeyboardInterrupt
        return picture(i)

    monkeypatch.setattr(pictures, "picture", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pack(pictures, tmp_path / "train", SIDE, shard=8)
    with pytest.raises(ValueError, match="was interrupted"):
        open_feed(settings(tmp_path), Augmentation(), True)
    monkeypatch.setattr(pictures, "picture", lambda i: decoded.append(i) or picture(i))
    pack(pictures, tmp_path / "train", SIDE, shard=8)
    assert sorted(decoded) == list(range(16, COUNT))
    np.testing.assert_array_equal(values(tmp_path / "train"), values(packed / "train"))
    assert not (tmp_path / "train/unfinished.json").exists()


def test_a_killed_pack_continues(packed, source, pictures, tmp_path):
    code = (
        "import sys, time; from opencrate.data.datasets.packing import pack\n"
        "from opencrate.data.opening import open_pictures\n"
        "from opencrate.data.settings import Dataset\n"
        f"pictures = open_pictures(Dataset(name='folder', root={str(source)!r}, num_classes=3), True)\n"
        "picture = pictures.picture\n"
        "pictures.picture = lambda i: (time.sleep(60 if i == 20 else 0), picture(i))[1]\n"
        f"pack(pictures, {str(tmp_path / 'train')!r}, {SIDE}, shard=8, workers=1)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    until = time.monotonic() + 60
    while not (tmp_path / "train/.images-00002.npy.tmp").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with pytest.raises(ValueError, match="was interrupted"):
        open_feed(settings(tmp_path), Augmentation(), True)
    pack(pictures, tmp_path / "train", SIDE, shard=8)
    np.testing.assert_array_equal(values(tmp_path / "train"), values(packed / "train"))
    assert not list((tmp_path / "train").glob(".*"))


def test_a_truncated_shard_is_told_and_repaired(packed, pictures, tmp_path):
    shutil.copytree(packed, tmp_path / "packed")
    shard = tmp_path / "packed/train/images-00001.npy"
    os.truncate(shard, shard.stat().st_size - 100)
    with pytest.raises(ValueError, match=r"images-00001\.npy has 13852 bytes and should have 13952"):
        open_feed(settings(tmp_path / "packed"), Augmentation(), True)
    pack(pictures, tmp_path / "packed/train", SIDE, shard=8)
    np.testing.assert_array_equal(values(tmp_path / "packed/train"), values(packed / "train"))


@pytest.fixture
def copy(packed, tmp_path):
    """The packed set, to be damaged."""
    shutil.copytree(packed, tmp_path / "packed")
    return tmp_path / "packed"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([3], r"holds pictures of class 3, and it has 3 classes$"),
        ([-1], r"holds pictures of class -1, and it has 3 classes$"),
        ([2**40], r"holds pictures of class 1099511627776, and it has 3 classes$"),
    ],
)
def test_labels_are_classes(copy, values, message):
    """Those that are none were indices into the network's logits."""
    targets = np.load(copy / "train/targets.npy")
    targets[-1:] = values
    np.save(copy / "train/targets.npy", targets)
    with pytest.raises(ValueError, match=message):
        open_pictures(settings(copy), training=True)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("targets.npy", np.zeros(3, np.int64), r"targets.npy contains int64 of \(3,\), which does not agree"),
        ("targets.npy", np.zeros(COUNT), r"targets.npy contains float64 of \(30,\), which does not agree"),
        ("targets.npy", np.array([{}] * COUNT), r"targets.npy is damaged: "),
        ("targets.npy", {"a": np.zeros(3)}, r"targets.npy is damaged: "),
        ("images-00000.npy", np.asfortranarray(np.zeros((8, SIDE, SIDE, 3), np.uint8)), r"which does not agree"),
        ("images-00000.npy", np.zeros((SIDE, 8, SIDE, 3), np.uint8), r"which does not agree"),
    ],
)
def test_arrays_that_do_not_agree_with_the_index(copy, name, content, message):
    file = copy / "train" / name
    with file.open("wb") as opened:
        np.savez(opened, **content) if isinstance(content, dict) else np.save(opened, content, allow_pickle=True)
    with pytest.raises(ValueError, match=message):
        open_pictures(settings(copy), training=True)


@pytest.mark.parametrize(
    "shard",
    [
        {"count": 9},
        {"count": -8},
        {"size": 10**30},
        {"file": "../train/images-00000.npy"},
        {"file": "/etc/passwd"},
        {"file": "x" * 5000},
    ],
)
def test_an_index_that_does_not_agree_with_itself(copy, shard):
    file = copy / "train/index.json"
    index = json.loads(file.read_text())
    index["shards"][0] |= shard
    index["count"] = sum(part["count"] for part in index["shards"])
    file.write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"^.{1,200} is damaged: its shard .{1,70} does not agree with its pictures$"):
        open_pictures(settings(copy), training=True)


@pytest.mark.parametrize(("side", "channels"), [(10**9, 3), (0, 3), (-SIDE, 3), (SIDE, 2), (SIDE, 4)])
def test_an_index_whose_pictures_are_none(copy, side, channels):
    """Too large, empty or of no colour, and with shards of the size that would follow."""
    file = copy / "train/index.json"
    index = json.loads(file.read_text())
    stored = SIDE**2 * index["channels"]
    for shard in index["shards"]:
        shard["size"] += shard["count"] * (side**2 * channels - stored)
    file.write_text(json.dumps(index | {"side": side, "channels": channels}))
    with pytest.raises(ValueError, match="is damaged: its shard"):
        open_pictures(settings(copy), training=True)


def test_targets_that_are_missing(copy):
    (copy / "train/targets.npy").unlink()
    with pytest.raises(ValueError, match=r"targets\.npy is missing: pack the pictures again$"):
        open_pictures(settings(copy), training=True)


def test_a_full_disk_is_one_sentence(packed, pictures, tmp_path):
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
        with pytest.raises(
            OSError, match="train could not be written: the disk is full; 16 of 30 pictures are packed"
        ) as caught:
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
