"""What visitors may hold open: half-sent requests, uploads that never end, answers that nobody reads."""

import asyncio
import selectors
import socket
import statistics
import time
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn")

from opencrate.explorer import connections
from opencrate.explorer.connections import Budget, Limits
from opencrate.explorer.explore import serving
from opencrate.explorer.uploads import MAX_BYTES

from .asking import ask
from .conftest import free_port
from .files import encoded, noise
from .memory import peak_growth

QUICK = {"patience": 2.0, "upload_wait": 2.0}
limits = pytest.mark.parametrize(
    "changed", [QUICK, pytest.param({}, marks=pytest.mark.slow)], ids=["quick", "as it is"]
)


@pytest.fixture
def server(subject, settings, monkeypatch, changed):
    """The address of a server off loopback, its token as a question, and its limits."""
    monkeypatch.setattr(connections, "Limits", partial(Limits, **changed))
    with serving(subject, replace(settings, host="127.0.0.2", port=free_port())) as address:
        base, _, token = address.partition("/?")
        yield base, token, Limits(**changed)


class Held:
    """Connections that send what they are given, and then keep silent."""

    def __init__(self, base, number, head, body=b""):
        parts = urlsplit(base)
        self.place, self.number, self.message = (parts.hostname, parts.port), number, head.encode() + body
        self.selector, self.open = selectors.DefaultSelector(), set()

    def __enter__(self):
        for _ in range(self.number):
            visitor = socket.create_connection(self.place, timeout=5)
            visitor.setblocking(False)
            self.selector.register(visitor, selectors.EVENT_READ | selectors.EVENT_WRITE, memoryview(self.message))
            self.open.add(visitor)
        return self

    def __exit__(self, *error):
        for visitor in self.open:
            visitor.close()
        self.selector.close()

    def go_on(self, seconds):
        """Send what can be sent, and forget whom the server has answered or closed."""
        until = time.monotonic() + seconds
        while self.open and (left := until - time.monotonic()) > 0:
            for key, events in self.selector.select(left):
                try:
                    is_over = events & selectors.EVENT_READ and not key.fileobj.recv(2**16)
                    if not is_over and events & selectors.EVENT_WRITE:
                        sent = key.fileobj.send(key.data[: 2**18])
                        rest = key.data[sent:]
                        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if rest else 0)
                        self.selector.modify(key.fileobj, events, rest)
                except BlockingIOError:
                    is_over = False
                except OSError:
                    is_over = True
                if is_over:
                    self.selector.unregister(key.fileobj)
                    self.open.discard(key.fileobj)
                    key.fileobj.close()


def timed(base, token):
    begun = time.monotonic()
    assert ask(base, f"/?{token}").status == 200
    return time.monotonic() - begun


def post(path, size):
    """The head of a question whose body has this size."""
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.2\r\nX-Opencrate: 1\r\nContent-Length: {size}\r\n\r\n"


HEADS = {
    "nothing": "",
    "half a line": "GET / HT",
    "half a head": "GET / HTTP/1.1\r\nHost: 127.0.0.2\r\nX-A",
    "half a body": post("/api/look?{token}", 99) + "[",
}


@limits
@pytest.mark.timeout(120)
@pytest.mark.parametrize("head", HEADS)
def test_half_sent_requests_are_closed_while_others_are_answered(server, head):
    base, token, limits = server
    with Held(base, 400, HEADS[head].format(token=token)) as held:
        times, begun = [], time.monotonic()
        while held.open and time.monotonic() < begun + 2 * limits.patience:
            held.go_on(0.2)
            times.append(timed(base, token))
        assert not held.open, f"{len(held.open)} are open after {2 * limits.patience:.0f} s"
    assert statistics.median(times) < 0.1
    assert max(times) < 1  # a bound of 0.1 s would also measure what else this machine does


@limits
@pytest.mark.timeout(120)
def test_held_uploads_take_bounded_memory_while_others_are_answered(server):
    base, token, limits = server
    size = 19 * 10**6
    head = post(f"/api/picture?{token}", size)
    times = []

    def hold():
        with Held(base, 60, head, bytes(size - 1)) as held:
            until = time.monotonic() + 1.5 * (limits.patience + limits.upload_wait)
            while held.open and time.monotonic() < until:
                held.go_on(0.2)
                times.append(timed(base, token))
            assert not held.open

    assert peak_growth(hold) < 500 * 10**6
    assert statistics.median(times) < 0.1
    assert max(times) < 1
    assert ask(base, f"/api/picture?{token}", encoded(noise())).status == 200, "small pictures are opened as before"


@pytest.mark.parametrize("changed", [QUICK])
def test_the_memory_of_uploads_that_hung_up_is_free_again(server):
    base, token, _ = server
    head = post(f"/api/picture?{token}", MAX_BYTES)
    for _ in range(4):
        with Held(base, 6, head, bytes(MAX_BYTES // 2)) as held:
            held.go_on(0.5)
    assert ask(base, f"/api/picture?{token}", bytes(MAX_BYTES)).refusal.startswith("This file is not a picture")


def test_an_address_gets_no_more_than_its_share():
    async def share():
        budget = Budget(total=4, each=2, queue=1, patience=0.05)
        async with budget.taking("a"), budget.taking("a"):
            with pytest.raises(TimeoutError):
                async with budget.taking("a"):
                    pass
            async with budget.taking("b", 2):
                with pytest.raises(TimeoutError):
                    async with budget.taking("c"):
                        pass
            async with budget.taking("c", 2):
                assert budget.taken == {"a": 2, "c": 2}
        assert not budget.taken.total()
        assert not budget.waiting.total()

    asyncio.run(share())


def test_who_waits_is_served_when_there_is_room():
    async def wait():
        budget, order = Budget(total=1, each=1, queue=2), []

        async def take(name, seconds):
            async with budget.taking(name):
                order.append(name)
                await asyncio.sleep(seconds)

        first = asyncio.create_task(take("a", 0.05))
        await asyncio.sleep(0)
        await asyncio.gather(first, take("b", 0), take("c", 0))
        with pytest.raises(TimeoutError):  # a queue of two is full
            await asyncio.gather(take("d", 0.05), take("d", 0), take("d", 0), take("d", 0))
        return order[:3]

    assert asyncio.run(wait()) == ["a", "b", "c"]
