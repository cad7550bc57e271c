"""Which shards a split has."""

import json

import pytest

from opencrate.data.datasets import shard_files
from opencrate.data.datasets.shard_files import expand
from opencrate.data.opening import open_pictures
from opencrate.data.settings import Dataset

from .written import SIZES, TIMM, shards, write

pytestmark = pytest.mark.usefixtures("cache")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{08..11}.tar", ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]),
        ("a-{8..10}.tar", ["a-8.tar", "a-9.tar", "a-10.tar"]),
        ("{a,b}/{0..1}.tar", ["a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar"]),
        ("{a,b{0..1}}.tar", ["a.tar", "b0.tar", "a.tar", "b1.tar"]),
        ("a{0..1}.tar::b.tar", ["a0.tar", "a1.tar", "b.tar"]),
    ],
)
def test_patterns(pattern, names):
    assert sorted(expand(pattern)) == sorted(names)


@pytest.mark.parametrize("pattern", ["a-{3..1}.tar", "a-{x}.tar", "a-{}.tar"])
def test_patterns_that_mean_nothing(pattern):
    with pytest.raises(ValueError, match="neither a range"):
        list(expand(pattern))


def test_a_pattern_of_too_many_names_is_refused_at_once(root):
    for pattern in ("a-{0..999999999999}.tar", "a-{0..99999}-{0..99999}.tar"):
        with pytest.raises(ValueError, match="names more than 100,000 shards"):
            shards(root, train=pattern)


def test_where_shards_are_found(root):
    assert len(shards(root, train="train-*.tar")) == sum(SIZES)
    assert len(shards(root, train="train-{0000..0001}.tar::train-0004.tar")) == 5 + 30 + 21
    assert len(shards(root.parent, train="shards")) == sum(SIZES)
    assert len(shards(root.parent, train=f"{root}/train-0001.tar")) == 30
    with pytest.raises(ValueError, match="has no shards val"):
        shards(root, train="val-*.tar")
    with pytest.raises(ValueError, match=r"no shards of 'val' in .*: give a pattern such as val-{0000"):
        shards(root, train="val")
    with pytest.raises(ValueError, match="is not a folder"):
        shards(root / "none")
    write(root, (4,), name="imagenet-val")
    assert len(shards(root, training=False, validation="validation")) == 4


@pytest.mark.parametrize("name", ["_info.json", "info.json", "info.yaml"])
def test_names_of_splits_and_classes(root, name):
    content = {**TIMM, "splits": {"first": {"filenames": ["train-0000.tar", "train-0001.tar"]}}}
    (root / name).write_text(json.dumps(content))
    feed = shards(root, train="first")
    assert (len(feed), feed.classes) == (5 + 30, tuple("abcdefg"))
    assert shards(root, train="train-0001.tar").classes == tuple("abcdefg")
    with pytest.raises(ValueError, match=r"wds has 7 classes but data.num_classes is 6: give --data.num-classes 7"):
        open_pictures(Dataset("wds", str(root), num_classes=6), training=True)
    (root / name).write_text('["a"]')
    with pytest.raises(ValueError, match=rf"{name} does not list splits with their filenames"):
        shards(root)


def test_a_local_set_makes_no_request(root, monkeypatch):
    """Neither for what its lists name nor for what its recipe names."""
    monkeypatch.setattr(shard_files, "_file_system", lambda address: pytest.fail(address))
    (root / "_info.json").write_text(json.dumps({"splits": {"x": {"filenames": ["http://127.0.0.1:9/a.tar"]}}}))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        shards(root, train="x")
    assert len(shards(root)) == sum(SIZES)
    for pattern in ("http://127.0.0.1:9/a.tar", "hf://datasets/a/b-{0..3}.tar", "train-0000.tar::s3://a/b.tar"):
        with pytest.raises(
            ValueError, match=r"^\S+ is an address, and \S+ a folder: give both addresses or both local$"
        ):
            shards(root, train=pattern)


@pytest.mark.parametrize(
    "pattern", ["/etc/*.tar", "*.tar" + "\x1b" * 900, "../**/*.tar" * 100, "\0*.tar", "{0..1}" * 200 + ".tar"]
)
def test_hostile_patterns(root, pattern):
    with pytest.raises(ValueError, match=r"^[^\x00-\x1f]{1,300}$"):
        shards(root, train=pattern)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("_info.json", '{"splits": ' + "[" * 5000 + "]" * 5000 + "}"),
        ("_info.json", '{"splits": {"x": {"filenames": ["' + "a" * 5000 + '"]}}}'),
        ("_info.json", '{"splits": {"x": {"filenames": [["a.tar"]]}}}'),
        (
            "info.yaml",
            "a: &a [x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)),
        ),
        ("info.yaml", "splits: !!python/object/apply:os.system ['true']"),
    ],
)
def test_hostile_lists(root, name, text):
    """Deep, long, of anchors that stand for a billion names, of code."""
    (root / name).write_text(text)
    with pytest.raises(ValueError, match=rf"^.{{0,150}}{name} (does not list|is not \w+ that can be read).{{0,165}}$"):
        shards(root)
