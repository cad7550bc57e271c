"""Shards are written here with tarfile. Picture n is one colour that tells n, and the transform adds what it draws."""

import gzip
import io
import json
import random
import tarfile
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from opencrate.data import remote, tars
from opencrate.data.feed import Split
from opencrate.data.loading import Loaded
from opencrate.data.pictures import open_pictures
from opencrate.data.settings import Augmentation, Dataset
from opencrate.data.shards import Shards, lane_count
from opencrate.data.sidecars import expand

# from Python 3.12 on, of DataLoader's workers beside a thread, here the server's
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

SIZES = (5, 30, 17, 8, 21, 12, 9, 26, 14, 3, 19)  # 164 samples
CLASSES = 7


def png(n: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 4), (n % 256, n // 256, 77)).save(file, "png")
    return file.getvalue()


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def write(folder: Path, sizes: tuple[int, ...] = SIZES, broken: tuple[int, ...] = (), name: str = "train") -> None:
    n = 0
    folder.mkdir(exist_ok=True)
    for i, size in enumerate(sizes):
        with tarfile.open(folder / f"{name}-{i:04d}.tar", "w") as tar:
            for _ in range(size):
                add(tar, f"{n:06d}.cls", str(n % CLASSES).encode())
                add(tar, f"{n:06d}.png", png(n)[:40] if n in broken else png(n))
                n += 1


def with_draws(image: Image.Image) -> Tensor:
    """(3, 4, 4): the picture, but for one row of the last channel, which is random."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
    draws = (random.randrange(256), np.random.randint(256), int(torch.randint(256, ())))
    pixels[2, 0, :3] = torch.tensor(draws, dtype=torch.uint8)
    return pixels


def shards(root: Path | str, training: bool = True, workers: int = 0, transform=with_draws, **changes) -> Shards:
    settings = {"train": "train", "validation": "train", "num_classes": CLASSES, "broken": 0.5, **changes}
    data = Dataset(name="wds", root=str(root), size=4, mean=(0, 0, 0), std=(1 / 255,) * 3, **settings)
    return Shards(data, Augmentation(), training, 3, torch.device("cpu"), workers, transform)


def told(images: Tensor, targets: Tensor) -> list[tuple[int, ...]]:
    """(number, class, draws) of every picture of a batch."""
    values = images.round().int()
    numbers = values[:, 0, 1, 1] + 256 * values[:, 1, 1, 1]
    rows = torch.cat([numbers[:, None], targets[:, None], values[:, 2, 0, :3]], dim=1)
    return [tuple(row) for row in rows.tolist()]


def micro_batches(feed: Shards, split: Split, epoch: int = 0, start: int = 0) -> list[list[tuple[int, ...]]]:
    return [told(*batch) for batch in feed.train(epoch, start, split)]


def global_batches(root: Path | str, world: int, parts: int = 1, mirrored: bool = False, **options) -> list[Counter]:
    """What each global batch holds: samples, or for mixup the pairs that it mixes."""
    batches: list[Counter] = []
    for rank in range(world):
        micro = micro_batches(shards(root, **options), Split(16, parts, rank, world, mirrored))
        for i, samples in enumerate(micro):
            if i // parts == len(batches):
                batches.append(Counter())
            batches[i // parts].update(zip(samples, reversed(samples), strict=True) if mirrored else samples)
    return batches


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "PATIENCE", 0.0)
    return tmp_path / "cache" / "opencrate" / "shards"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "shards")
    return tmp_path / "shards"


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


TIMM = {
    "name": "set",
    "classes": list("abcdefg"),
    "splits": {
        "train": {
            "name": "train",
            "num_samples": sum(SIZES),
            "filenames": [f"train-{i:04d}.tar" for i in range(len(SIZES))],
            "shard_lengths": list(SIZES),
        }
    },
}
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


class Server:
    """Serves a folder. `failures` says how often a name is cut off in the middle, `asked` what was asked for."""

    def __init__(self, folder: Path) -> None:
        self.failures: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.strip("/")
                server.asked[name] += 1
                if not (folder / name).is_file():
                    return self.send_error(404)
                content = (folder / name).read_bytes()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if server.failures[name]:
                    server.failures[name] -= 1
                    content = content[: len(content) // 2]
                self.wfile.write(content)
                return None

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server(root: Path) -> Iterator[Server]:
    server = Server(root)
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


PATTERN = "train-{0000..0010}.tar"


@pytest.mark.parametrize("workers", [0, 2])
def test_remote_shards(root, server, workers, tmp_path, monkeypatch, caplog):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    caplog.set_level("INFO", "opencrate")
    feed = shards(server.address, train=PATTERN, workers=workers)
    assert "counting the samples of 11 shards" in caplog.text
    assert len(feed) == sum(SIZES)
    server.asked.clear()
    server.failures["train-0004.tar"] = 1
    for split in (Split(16, 2, 0, 1), Split(16, 2, 1, 2)):
        assert micro_batches(feed, split) == micro_batches(shards(root), split)
    assert "reading" in caplog.text
    assert "train-0004.tar again: the connection ended after" in caplog.text
    assert not list((tmp_path / "temporary").glob("opencrate-*"))
    server.asked.clear()
    assert len(shards(server.address, train=PATTERN)) == sum(SIZES)  # from the cache
    assert not [name for name in server.asked if name.endswith(".tar")]


def test_copies_of_remote_shards_do_not_gather(root, server, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    feed = shards(server.address, training=False, validation=PATTERN)
    batches = feed.evaluate(4)
    most = max(len(list((tmp_path / "temporary").glob("opencrate-*/*.tar"))) for _ in batches)
    assert most <= 3
    training = feed.train(0, 0, Split(16))
    next(training)
    assert list((tmp_path / "temporary").glob("opencrate-*"))
    training.close()
    assert not list((tmp_path / "temporary").glob("opencrate-*"))


def test_remote_sizes_and_splits(root, server):
    (root / "_info.json").write_text(json.dumps(TIMM))
    feed = shards(server.address, train="train")
    assert not [name for name in server.asked if name.endswith(".tar")]
    assert micro_batches(feed, Split(16)) == micro_batches(shards(root), Split(16))


def test_remote_shards_that_fail(root, server):
    (root / "_info.json").write_text(json.dumps(TIMM))
    feed = shards(server.address)
    (root / "train-0004.tar").unlink()
    with pytest.raises(FileNotFoundError, match=r"http.*train-0004.tar cannot be read: the server answers 404"):
        micro_batches(feed, Split(16))
    write(root)
    server.failures["train-0004.tar"] = 6  # two lanes may need it
    with pytest.raises(OSError, match=r"train-0004.tar cannot be read, in 3 attempts: the connection ended after"):
        micro_batches(feed, Split(16))
    assert server.failures["train-0004.tar"] <= 3
    with pytest.raises(ValueError, match="cannot be searched for at a remote address"):
        shards(server.address, train="train-*.tar")


def test_addresses_of_fsspec(root):
    import fsspec

    for file in root.iterdir():
        with fsspec.open(f"memory://bucket/{file.name}", "wb") as target:
            target.write(file.read_bytes())
    feed = shards("memory://bucket", train=PATTERN)
    assert micro_batches(feed, Split(16)) == micro_batches(shards(root), Split(16))
    with pytest.raises(FileNotFoundError, match=r"memory://bucket/train-0011.tar cannot be read"):
        shards("memory://bucket", train="train-{0000..0011}.tar")
    with pytest.raises(ValueError, match=r"nowhere://bucket/.* cannot be read: Protocol not known"):
        shards("nowhere://bucket", train=PATTERN)
