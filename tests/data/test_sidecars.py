"""Where shards are found, and how many samples each holds."""

import json
from pathlib import Path

import pytest

from opencrate.data.datasets import tars
from opencrate.data.datasets.sidecars import expand
from opencrate.data.feeds.feed import Split

from .written import SIZES, TIMM, micro_batches, shards, write

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
        expand(pattern)


def test_where_shards_are_found(root):
    assert len(shards(root, train="train-*.tar")) == sum(SIZES)
    assert len(shards(root, train="train-{0000..0001}.tar::train-0004.tar")) == 5 + 30 + 21
    assert len(shards(root.parent, train="shards")) == sum(SIZES)
    assert len(shards(root.parent, train=f"{root}/train-0001.tar")) == 30
    with pytest.raises(ValueError, match="has no shards val"):
        shards(root, train="val-*.tar")
    with pytest.raises(ValueError, match=r"does not tell the shards of 'val': give a pattern such as val-{0000"):
        shards(root, train="val")
    with pytest.raises(ValueError, match="is not a folder"):
        shards(root / "none")
    write(root, (4,), name="imagenet-val")
    assert len(shards(root, training=False, validation="validation")) == 4


BY_NAME = dict(zip(TIMM["splits"]["train"]["filenames"], SIZES, strict=True))


WIDS = {"__kind__": "wids-shard-index-v1", "shardlist": [{"url": k, "nsamples": v} for k, v in BY_NAME.items()]}


@pytest.mark.parametrize(
    ("name", "content"),
    [("_info.json", TIMM), ("info.json", TIMM), ("info.yaml", TIMM), ("sizes.json", BY_NAME), ("index.json", WIDS)],
)
def test_sizes_from_a_file_beside_the_shards(root, name, content, monkeypatch, cache):
    expected = micro_batches(shards(root), Split(16))
    (root / name).write_text(json.dumps(content))
    for file in cache.iterdir():
        file.unlink()
    read = []
    original = tars.read_index
    monkeypatch.setattr(tars, "read_index", lambda *args: read.append(args) or original(*args))
    feed = shards(root)
    assert not read
    assert feed.classes == tuple("abcdefg" if content is TIMM else "0123456")
    assert micro_batches(feed, Split(16)) == expected


def test_more_classes_than_the_recipe_has(root):
    (root / "_info.json").write_text(json.dumps(TIMM))
    with pytest.raises(ValueError, match=r"has 7 classes and the recipe 6: give --data.num-classes 7"):
        shards(root, num_classes=6)


def test_sizes_that_are_wrong(root):
    (root / "sizes.json").write_text(json.dumps({**BY_NAME, "train-0001.tar": 31}))
    with pytest.raises(ValueError, match=r"train-0001.tar holds 30 samples, not the 31 of .*sizes.json"):
        micro_batches(shards(root), Split(16))
    (root / "sizes.json").write_text('["a"]')
    with pytest.raises(ValueError, match=r"sizes.json does not tell the sizes of shards in a known form"):
        shards(root)


def test_sizes_are_kept_and_renewed(root, monkeypatch, cache):
    shards(root)
    (file,) = cache.iterdir()
    read = []
    original = tars.read_index
    monkeypatch.setattr(tars, "read_index", lambda *args: read.append(Path(args[0]).name) or original(*args))
    assert len(shards(root)) == sum(SIZES)
    assert not read
    write(root, (6,))  # the first shard anew
    assert len(shards(root)) == sum(SIZES) + 1
    assert read == ["train-0000.tar"]
    file.write_text("no JSON")
    assert len(shards(root)) == sum(SIZES) + 1


def test_a_cache_that_cannot_be_written(root, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "train-0000.tar"))
    assert len(shards(root)) == sum(SIZES)
    assert "cannot be kept" in caplog.text
