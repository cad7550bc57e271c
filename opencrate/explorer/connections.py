"""What visitors may hold open: connections, the time in which they send and read, the memory of uploads and answers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from .uploads import MAX_BYTES


@dataclass(frozen=True)
class Limits:
    """Numbers in all and for one address; times in seconds."""

    connections: int = 384
    connections_each: int = 128
    upload_bytes: int = 6 * MAX_BYTES
    upload_bytes_each: int = 3 * MAX_BYTES
    answers: int = 24  # that are computed or sent; there are 40 threads
    answers_each: int = 8
    patience: float = 15.0  # for a request's head, and for every further `progress` bytes that a visitor sends or reads
    patience_if_awaited: float = 2.0  # for these bytes, while others wait for the memory
    progress: int = 2**16
    upload_wait: float = 10.0  # for memory


class Budget:
    """A quantity that requests share; one that finds too little of it left, in all or for its address, waits."""

    def __init__(self, total: int, each: int, queue: int, patience: float | None = None) -> None:
        self.total, self.each, self.queue, self.patience = total, each, queue, patience
        self.taken: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def taking(self, address: str, amount: int = 1) -> AsyncIterator[None]:
        """Hold an amount; TimeoutError when none is free for too long, or too many wait."""

        def is_free() -> bool:
            return self.taken[address] + amount <= self.each and self.taken.total() + amount <= self.total

        if self.waiting[address] >= self.queue:  # visitors who hang up still wait, so connections are no limit
            raise TimeoutError
        self.waiting[address] += 1
        try:
            async with asyncio.timeout(self.patience), self._freed:
                await self._freed.wait_for(is_free)
                self.taken[address] += amount
        finally:
            self.waiting -= Counter({address: 1})
        try:
            yield
        finally:
            self.taken -= Counter({address: amount})
            async with self._freed:
                self._freed.notify_all()


class Connections:
    """The open connections; `accept` makes uvicorn's protocol for a new one."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits = limits or Limits()
        queue = limits.connections_each
        self.uploads = Budget(limits.upload_bytes, limits.upload_bytes_each, queue, limits.upload_wait)
        self.answers = Budget(limits.answers, limits.answers_each, queue)
        self.open: dict[Connection, None] = {}
        self._is_watching = False

    def accept(self, **uvicorns: Any) -> "Connection":
        return Connection(self, **uvicorns)

    def add(self, new: "Connection") -> None:
        """Where there are too many, the address with most loses the one that has waited longest for its visitor."""
        self.open[new] = None
        if not self._is_watching:
            self._watch()
        number = Counter(connection.address for connection in self.open)
        crowded = new.address if number[new.address] > self.limits.connections_each else number.most_common(1)[0][0]
        if number[crowded] > self.limits.connections_each or len(self.open) > self.limits.connections:
            idle = [one for one in self.open if one.address == crowded and one is not new and not one.is_served]
            self._close(min(idle, key=lambda one: (one.cycle is not None, one.since), default=new))

    def _close(self, connection: "Connection") -> None:
        self.open.pop(connection, None)
        connection.transport.abort()

    def _watch(self) -> None:
        """Close the connections whose visitors are too slow, from time to time while there is one."""
        now, limits = asyncio.get_running_loop().time(), self.limits
        is_awaited = bool(self.uploads.waiting or self.answers.waiting)
        for one in list(self.open):
            if one.is_served:
                one.since = now
            short = is_awaited and one.is_answering
            if now - one.since > (limits.patience_if_awaited if short else limits.patience):
                self._close(one)
        self._is_watching = bool(self.open)
        if self._is_watching:
            asyncio.get_running_loop().call_later(min(1.0, limits.patience / 4), self._watch)


class Connection(H11Protocol):
    """One connection, which knows since when it waits for its visitor."""

    def __init__(self, connections: Connections, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self.all, self.address, self.since, self._unseen = connections, "", self.loop.time(), 0

    @property
    def is_answering(self) -> bool:
        """Whether there is a request whose answer is not complete; its body may not be, either."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_served(self) -> bool:
        """Whether it is the server's turn: to compute, or to make room for a body."""
        is_sent = self.is_answering and (not self.cycle.more_body or self.flow.read_paused)
        return is_sent and not self.flow.write_paused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self.all.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.all.open.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before, self._unseen = self.cycle, self._unseen + len(data)
        super().data_received(data)
        if self.cycle is not before or (self.is_answering and self._unseen >= self.all.limits.progress):
            self._see()

    def resume_writing(self) -> None:  # the visitor has read what was sent
        super().resume_writing()
        self._see()

    def on_response_complete(self) -> None:
        self._see()
        super().on_response_complete()

    def _see(self) -> None:
        self.since, self._unseen = self.loop.time(), 0
