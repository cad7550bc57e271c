"""Shards from a server of the test's own, which can fail, and from a filesystem of fsspec."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from opencrate.data.feeds.feed import Split

from .written import SIZES, TIMM, micro_batches, shards

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


def requests(server: Server) -> dict[str, int]:
    return {name: count for name, count in server.asked.items() if name.endswith(".tar")}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_remote_shard_is_fetched_once(root, server, workers, caplog, cache):
    server.failures["train-0004.tar"] = 1
    feed = shards(server.address, train=PATTERN, workers=workers)
    assert "train-0004.tar again: " in caplog.text
    for split in (Split(16, 2, 0, 1), Split(16, 2, 1, 2)):
        assert micro_batches(feed, split) == micro_batches(shards(root), split)
    list(shards(server.address, train=PATTERN).evaluate(16))
    assert requests(server) == {f"train-{i:04d}.tar": 2 if i == 4 else 1 for i in range(len(SIZES))}
    assert not list(cache.glob(".*.tmp"))


def test_a_download_that_was_killed_starts_again(root, server, cache):
    shards(server.address, train="train-0001.tar")
    (copy,) = cache.glob("*.tar")
    partial = copy.with_name(f".{copy.name}.tmp")
    copy.replace(partial)
    partial.write_bytes(b"half")
    assert len(shards(server.address, train="train-0001.tar")) == SIZES[1]
    assert requests(server) == {"train-0001.tar": 2}


def test_remote_splits(root, server):
    (root / "_info.json").write_text(json.dumps(TIMM))
    feed = shards(server.address, train="train")
    assert feed.classes == tuple("abcdefg")
    assert micro_batches(feed, Split(16)) == micro_batches(shards(root), Split(16))


def test_remote_shards_that_fail(root, server, cache):
    (root / "train-0004.tar").rename(root / "away")
    with pytest.raises(FileNotFoundError, match=r"http.*train-0004.tar does not exist, or access to it is denied"):
        shards(server.address, train=PATTERN)
    (root / "away").rename(root / "train-0004.tar")
    server.failures["train-0004.tar"] = 3
    with pytest.raises(OSError, match=r"train-0004.tar cannot be read, in 3 attempts: "):
        shards(server.address, train=PATTERN)
    assert len(shards(server.address, train=PATTERN)) == sum(SIZES)
    with pytest.raises(ValueError, match="has a wildcard, which only a local folder allows"):
        shards(server.address, train="train-*.tar")


def test_a_damaged_remote_shard_is_fetched_again_once_it_is_mended(root, server):
    content = (root / "train-0000.tar").read_bytes()
    (root / "train-0000.tar").write_bytes(content[:1000])
    with pytest.raises(OSError, match=r"http.*train-0000.tar is (not a complete|truncated)"):
        shards(server.address, train=PATTERN)
    (root / "train-0000.tar").write_bytes(content)
    assert len(shards(server.address, train=PATTERN)) == sum(SIZES)


def test_addresses_of_fsspec(root):
    import fsspec

    for file in root.iterdir():
        with fsspec.open(f"memory://bucket/{file.name}", "wb") as target:
            target.write(file.read_bytes())
    feed = shards("memory://bucket", train=PATTERN)
    assert micro_batches(feed, Split(16)) == micro_batches(shards(root), Split(16))
    with pytest.raises(FileNotFoundError, match=r"memory://bucket/train-0011.tar does not exist"):
        shards("memory://bucket", train="train-{0000..0011}.tar")
    with pytest.raises(ValueError, match=r"nowhere://bucket/.* cannot be read: Protocol not known"):
        shards("nowhere://bucket", train=PATTERN)
