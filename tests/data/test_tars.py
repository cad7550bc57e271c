"""Tar files: their layouts, samples that are wrong, damage."""

import gzip
import json
import tarfile

import pytest

from .written import add, png, shards, told

pytestmark = pytest.mark.usefixtures("cache")


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
    assert [row[:2] for batch in feed.evaluate(4) for row in told(*batch)] == [(n, n) for n in range(6)]
    assert feed.indexes[0].key(0) == f"./{deep}0"
    assert feed.classes == tuple("0123456")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.png": png(0), "a.cls": b"7"}, r"train-0.tar: a is of class 7, which is not one of 7"),
        ({"a.png": png(0), "a.cls": b"-1"}, r"train-0.tar: a is of class -1"),
        ({"a.png": png(0), "a.cls": b"cat"}, r"train-0.tar: a has no class that is an integer, but 'cat'"),
        ({"a.png": png(0), "a.json": b'{"x": 1}'}, r"train-0.tar: a has no class that is an integer"),
        ({"a.png": png(0), "a.json": b'{"label": 1.5}'}, r"train-0.tar: a has no class that is an integer"),
        ({"b.cls": b"1", "a.png": png(0)}, r"train-0.tar: a has a picture and no class"),
        ({"b.cls": b"1"}, r"no pictures were found"),
    ],
)
def test_samples_that_are_wrong(tmp_path, members, message):
    with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
        for name, content in members.items():
            add(tar, name, content)
    with pytest.raises(ValueError, match=message):
        shards(tmp_path)


def test_damaged_shards(root):
    file = root / "train-0003.tar"
    content = file.read_bytes()
    with tarfile.open(file) as tar:
        members = tar.getmembers()
    boundary = members[6].offset
    for end in (100, boundary, boundary + 100, members[6].offset_data + 1, members[-1].offset_data + 20):
        file.write_bytes(content[:end])
        with pytest.raises(OSError, match=r"train-0003.tar is (not a whole|truncated)"):
            shards(root)
    file.write_bytes(content[:boundary] + b"\xff" * 512 + content[boundary + 512 :])
    with pytest.raises(OSError, match=rf"train-0003.tar is truncated or damaged after {boundary} bytes"):
        shards(root)
    file.write_bytes(gzip.compress(content))
    with pytest.raises(OSError, match=r"train-0003.tar is not a whole tar file, without compression"):
        shards(root)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"the shard .*train-0003.tar does not exist"):
        shards(root, train="train-{0000..0010}.tar")
