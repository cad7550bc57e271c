"""Shards from a server of the test's own, which can fail, and from a filesystem of fsspec."""

import json
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from opencrate.data.feeds.feed import Split

from .written import SIZES, TIMM, micro_batches, shards, write

# from Python 3.12 on, of DataLoader's workers beside a thread, here the server's
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    pytest.mark.usefixtures("cache"),
]


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
