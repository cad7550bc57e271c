"""Sets in tar files: batches, their layouts, samples that are wrong, damage."""

import gzip
import io
import json
import random
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from opencrate.data import open_feed
from opencrate.data.datasets import tars
from opencrate.data.datasets.tar_headers import read_members
from opencrate.data.feeds.feed import Split, order
from opencrate.data.feeds.loading import Loaded
from opencrate.data.feeds.resident import Resident
from opencrate.data.opening import open_pictures
from opencrate.data.settings import Augmentation, Dataset

from .written import CLASSES, SIZES, add, global_batches, micro_batches, png, rows, shards, write

# from Python 3.12 on, for DataLoader's workers beside another thread
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    pytest.mark.usefixtures("cache"),
]

TOTAL = sum(SIZES)


@pytest.mark.parametrize(("world", "parts"), [(2, 1), (4, 1), (1, 2), (2, 2), (1, 8), (8, 1), (16, 1)])
def test_global_batches_are_the_same_on_any_number_of_processes(root, world, parts):
    expected = global_batches(root, 1)
    assert len(expected) == TOTAL // 16
    assert global_batches(root, world, parts) == expected


@pytest.mark.parametrize(("world", "parts"), [(2, 1), (4, 1), (1, 2), (2, 2)])
def test_mixup_mixes_the_same_pairs(root, world, parts):
    assert global_batches(root, world, parts, mirrored=True) == global_batches(root, 1, mirrored=True)


def test_workers_change_nothing(root):
    split = Split(16, 2)
    assert micro_batches(shards(root, workers=2), split) == micro_batches(shards(root), split)


def test_an_epoch_has_every_sample_once_in_the_order_of_every_set(root):
    feed = shards(root)
    first, second = ([s for batch in micro_batches(feed, Split(16), epoch) for s in batch] for epoch in (0, 1))
    for epoch, samples in enumerate((first, second)):
        assert [number for number, *_ in samples] == order(TOTAL, 3, epoch)[: TOTAL // 16 * 16].tolist()
        assert all(target == number % CLASSES for number, target, *_ in samples)
    assert not set(first) & set(second)
    draws = np.array([s[2:] for s in first])
    assert [len(set(column)) > 50 for column in draws.T] == [True] * 3


@pytest.mark.parametrize("world", [1, 2])
def test_a_run_starts_at_any_step(root, world):
    feed = shards(root)
    for rank in range(world):
        split = Split(16, 2, rank, world)
        whole = micro_batches(feed, split, epoch=4)
        for start in range(feed.steps(16) + 1):
            assert micro_batches(feed, split, 4, start) == whole[2 * start :]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_global_generators_stay_as_they_are(root, workers):
    feed = shards(root, workers=workers)
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    for _ in feed.train(0, 0, Split(16)):
        now = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        assert now == before
    list(feed.evaluate(50))
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


@pytest.mark.parametrize("world", [1, 3])
def test_evaluation_sees_every_picture_once(root, world):
    feed = shards(root, training=False)
    shares = [[row[:2] for batch in feed.evaluate(10, rank, world) for row in rows(*batch)] for rank in range(world)]
    for rank, share in enumerate(shares):
        assert share == [(n, n % CLASSES) for n in range(TOTAL)][rank::world]


@pytest.mark.parametrize("kind", [Loaded, Resident])
def test_the_same_as_from_folders(tmp_path, kind):
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
    (images, targets), (expected, classes) = (
        next(kind(open_pictures(settings, False), settings, Augmentation(), False).evaluate(12))
        for settings in (ours, data)
    )
    assert torch.equal(targets, classes)
    assert torch.equal(images, expected)
    assert isinstance(open_feed(ours, Augmentation(), training=False), Resident)


@pytest.mark.parametrize("workers", [0, 2])
def test_pictures_that_do_not_decode(tmp_path, workers):
    write(tmp_path / "shards", broken=(40, 41, 42, 100))
    feed = shards(tmp_path / "shards", workers=workers)
    samples = [s for batch in micro_batches(feed, Split(16)) for s in batch]
    replaced = {40: 43, 41: 43, 42: 43, 100: 101}
    expected = [replaced.get(n, n) for n in order(TOTAL, 3, 0)[: TOTAL // 16 * 16].tolist()]
    assert [number for number, *_ in samples] == expected
    assert all(target == number % CLASSES for number, target, *_ in samples)
    names = {f"train-000{2 if n < 100 else 6}.tar: {n:06d}" for n in (40, 41, 42, 100)}
    assert set(feed.decode_failures.names) <= names

    evaluated = shards(tmp_path / "shards", training=False, workers=workers)
    seen = [row for batch in evaluated.evaluate(50) for row in rows(*batch)]
    assert [n for n, row in enumerate(seen) if row[1] == -1] == [40, 41, 42, 100]
    assert set(evaluated.decode_failures.names) == names


def test_pictures_that_are_too_large_are_not_read(root, monkeypatch):
    pictures = shards(root).pictures
    length = int(pictures.index.lengths[3])
    monkeypatch.setattr(tars, "PICTURE_BYTES", length)
    pictures.picture(3)
    monkeypatch.setattr(tars, "PICTURE_BYTES", length - 1)
    with pytest.raises(ValueError, match=r"^it is larger than 0 MiB$"):
        pictures.picture(3)


def test_too_many_that_do_not_decode_stop_the_run(tmp_path):
    write(tmp_path / "shards", (8, 8), broken=tuple(range(8)))
    with pytest.raises(ValueError, match=r"2 of 16 pictures do not decode.* train-0000.tar: 00000"):
        list(shards(tmp_path / "shards", training=False, max_decode_failures=0.1).evaluate(4))
    write(tmp_path / "shards", (8, 8), broken=tuple(range(16)))
    with pytest.raises(ValueError, match=r"^none of 16 pictures decodes$"):
        micro_batches(shards(tmp_path / "shards", max_decode_failures=1), Split(4))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_shard_that_is_truncated_while_it_is_read(root, workers):
    feed = shards(root, training=False, validation="train-0001.tar", workers=workers)
    file = root / "train-0001.tar"
    file.write_bytes(file.read_bytes()[:600])
    with pytest.raises(ValueError, match=r"16 of 30 pictures do not decode.*: the shard is truncated: it ends before"):
        list(feed.evaluate(2))
    with pytest.raises(OSError, match=r"train-0001.tar is truncated or damaged after 1024 bytes"):
        shards(root, training=False, validation="train-0001.tar")


def test_the_index_is_kept_and_renewed(root, monkeypatch, cache):
    shards(root)
    read = []
    original = tars._read_index
    monkeypatch.setattr(tars, "_read_index", lambda path, name: read.append(path.name) or original(path, name))
    expected = micro_batches(shards(root), Split(16))
    assert not read
    for file in cache.glob("*.npz"):
        file.write_text("not an archive")
    assert micro_batches(shards(root), Split(16)) == expected
    assert len(read) == len(SIZES)
    write(root, (6,))  # the first shard anew
    assert len(shards(root)) == TOTAL + 1
    assert read[len(SIZES) :] == ["train-0000.tar"]


def test_an_index_that_cannot_be_kept(root, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "train-0000.tar"))
    assert len(shards(root)) == TOTAL
    assert "cannot be kept" in caplog.text


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_layouts(tmp_path, form):
    """Long names, members of other kinds, folders, labels in .json, the order of members."""
    deep = "folder-" + "x" * 60 + "/" + "y" * 70
    with tarfile.open(tmp_path / "train-0.tar", "w", format=form) as tar:
        folder = tarfile.TarInfo("folder.jpg")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        add(tar, "__meta__", b"")
        for n in range(4):
            add(tar, f"./{deep}{n}.png", png(n))
            add(tar, f"./{deep}{n}.seg.png", png(99))
            add(tar, f"./{deep}{n}.txt", b"nothing")
            add(tar, f"./{deep}{n}.json", json.dumps({"label": n, "filename": "x"}).encode())
        add(tar, "alone.cls", b"3")
        for n in range(4, 6):
            add(tar, f"{n}.json", b"{}")
            add(tar, f"{n}.CLS", f" {n}\n".encode())
            add(tar, f"{n}.PNG", png(n))
    feed = shards(tmp_path, training=False, validation="train-*.tar")
    assert [row[:2] for batch in feed.evaluate(4) for row in rows(*batch)] == [(n, n) for n in range(6)]
    assert feed.pictures.name(0) == f"train-0.tar: ./{deep}0"
    assert feed.classes == tuple("0123456")
    assert shards(tmp_path, train="train-*.tar", num_classes=10**9).classes == tuple("012345")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.png": png(0), "a.cls": b"7"}, r"train-0.tar: a is of class 7, which is not one of 7"),
        ({"a.png": png(0), "a.cls": b"-1"}, r"train-0.tar: a has no class that is a number from 0 on, but '-1'"),
        ({"a.png": png(0), "a.cls": b"cat"}, r"train-0.tar: a has no class that is a number from 0 on, but 'cat'"),
        ({"a.png": png(0), "a.cls": b"9" * 30}, r"train-0.tar: a has no class that is a number"),
        ({"a.png": png(0), "a.json": b'{"x": 1}'}, r"train-0.tar: a has no class that is a number"),
        ({"a.png": png(0), "a.json": b'{"label": 1.5}'}, r"train-0.tar: a has no class that is a number"),
        ({"b.cls": b"1", "a.png": png(0)}, r"train-0.tar: a has a picture but no class"),
        ({"b.cls": b"1"}, r"no pictures were found"),
    ],
)
def test_samples_that_are_wrong(tmp_path, members, message):
    with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
        for name, content in members.items():
            add(tar, name, content)
    with pytest.raises(ValueError, match=message):
        open_feed(Dataset("wds", str(tmp_path), num_classes=7), Augmentation(), training=True)


def test_damaged_shards(root):
    file = root / "train-0003.tar"
    content = file.read_bytes()
    with tarfile.open(file) as tar:
        members = tar.getmembers()
    boundary = members[6].offset
    for end in (100, boundary, boundary + 100, members[6].offset_data + 1, members[-1].offset_data + 20):
        file.write_bytes(content[:end])
        with pytest.raises(OSError, match=r"train-0003.tar is (not a complete|truncated)"):
            shards(root)
    file.write_bytes(content[:boundary] + b"\xff" * 512 + content[boundary + 512 :])
    with pytest.raises(OSError, match=rf"train-0003.tar is truncated or damaged after {boundary} bytes"):
        shards(root)
    file.write_bytes(gzip.compress(content))
    with pytest.raises(OSError, match=r"train-0003.tar is not a complete, uncompressed tar file"):
        shards(root)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"the shard .*train-0003.tar does not exist"):
        shards(root, train="train-{0000..0010}.tar")


def test_headers_are_read_as_tarfile_reads_them(tmp_path):
    """Of every format, with members of every kind, long names and numbers that octal digits do not hold."""
    rng = random.Random(0)
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        file = tmp_path / f"{form}.tar"
        with tarfile.open(file, "w", format=form, pax_headers={"comment": "ü" * 300}) as tar:
            for i in range(60):
                member = tarfile.TarInfo("/".join(f"{i}é" * rng.randint(1, 9) for _ in range(rng.randint(1, 4))))
                member.type = rng.choice([b"0", b"0", b"0", b"\0", b"1", b"2", b"3", b"5", b"6", b"7"])
                member.linkname = "z" * rng.choice((0, 9, 90 if form == tarfile.USTAR_FORMAT else 200))
                member.mtime = 2**33 if form == tarfile.GNU_FORMAT else 1.5
                content = rng.randbytes(rng.choice((0, 1, 511, 512, 513, 5000)))
                member.size = len(content) if member.isreg() else 0
                tar.addfile(member, io.BytesIO(content))
        with tarfile.open(file) as tar:
            expected = [(m.name.encode(), m.offset_data, m.size) for m in tar if m.isreg()]
        with file.open("rb") as opened:
            assert list(read_members(opened)) == expected
    assert len(expected) > 20


def header(name: str = "a.png", size: int = 0, kind: bytes = b"0", field: bytes = b"") -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    block = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    if field:
        block[124:136] = field
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def record(key: bytes, value: bytes) -> bytes:
    length = len(key) + len(value) + 3
    while len(b"%d" % length) + len(key) + len(value) + 3 != length:
        length = len(b"%d" % length) + len(key) + len(value) + 3
    return b"%d %s=%s\n" % (length, key, value)


def extended(text: bytes, kind: bytes = b"x") -> bytes:
    return header("x", len(text), kind) + text + bytes(-len(text) % 512)


@pytest.mark.parametrize(
    "content",
    [
        header(size=2**33),
        header(field=b"\xff" * 12),
        header(field=b"\x80" + b"\xff" * 11),
        header(field=b"-0000000001\0"),
        header("x", 2**40, b"x"),
        header("x", 2**20, b"L") + bytes(2**20),
        extended(b"1" * 60_000),
        extended(b"0 a=b\n"),
        extended(b"-6 a=b\n"),
        extended(b"9999 a=b\n"),
        extended(record(b"size", b"-1024")) + header(),
        extended(record(b"size", b"9" * 5000)) + header(),
        extended(record(b"path", b"a/" * 5000 + b"b.png")) + header(),
        extended(record(b"GNU.sparse.major", b"1")) + header(),
        header(kind=b"S"),
        b"".join(extended(record(b"k%d" % i, b"v")) for i in range(3000)),
        header(kind=b"S") + bytes(1024),
        extended(record(b"GNU.sparse.major", b"1")) + header() + bytes(1024),
        extended(record(b"path", b"a/" * 5000 + b"b.png")) + header() + bytes(1024),
    ],
    ids=len,
)
def test_hostile_headers(tmp_path, content):
    """tarfile reserves gigabytes, runs into recursion, walks backwards for ever, or needs minutes for a few of them."""
    (tmp_path / "train-0.tar").write_bytes(content)
    with pytest.raises(
        OSError, match=r"train-0.tar is (truncated or damaged after \d+ bytes|not a complete, un[^\n]+)$"
    ):
        shards(tmp_path, train="train-0.tar")


def test_hostile_sidecars(tmp_path):
    for name, content in (("a.json", b"[" * 10**5), ("a.json", b"1" * 2**21), ("a.cls", b"1" * 10**5)):
        with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
            add(tar, "a.png", png(0))
            add(tar, name, content)
        with pytest.raises(
            ValueError, match=r"train-0.tar: a has (no class that is a number|a .json of 2097152 bytes)"
        ):
            shards(tmp_path, train="train-0.tar")


def test_names_from_a_shard_are_short_and_printable(tmp_path):
    with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
        add(tar, "\x1b]0;" + "a" * 900 + ".png", png(0))
    with pytest.raises(ValueError, match=r"^[ -~…]{1,300} has a picture but no class: [ -~]+$"):
        shards(tmp_path, train="train-0.tar")
