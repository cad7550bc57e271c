"""The pictures that visitors have opened, each under a key that cannot be guessed, and their recordings.

Both are kept in memory only, and those that were not used for the longest time are dropped first. A dropped recording
is made again from its picture; a dropped picture has to be opened again.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

from ..inspection.recording import Recording
from ..sources import Gallery

V = TypeVar("V")


class LRUCache(Generic[V]):
    """The least recently used values are dropped when all together exceed a limit; the newest always stays."""

    def __init__(self, limit: int, size_of: Callable[[V], int] = lambda value: 1) -> None:
        self.limit, self.size_of, self._lock = limit, size_of, Lock()
        self._values: OrderedDict[Hashable, V] = OrderedDict()

    @property
    def size(self) -> int:
        return sum(map(self.size_of, self._values.values()))

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: V) -> V:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while self.size > self.limit and len(self._values) > 1:
                self._values.popitem(last=False)
        return value


class PictureStore:
    """A visitor finds a picture by its key alone, and knows only the keys of their own pictures."""

    def __init__(self, max_pictures: int = 64, max_recording_bytes: int = 2**28) -> None:
        self.pictures: LRUCache[Gallery] = LRUCache(max_pictures)
        self.recordings: LRUCache[Recording] = LRUCache(max_recording_bytes, lambda recording: recording.nbytes)

    def add(self, picture: Gallery) -> str:
        key = secrets.token_urlsafe(16)
        self.pictures.put(key, picture)
        return key

    def get(self, key: str) -> Gallery:
        picture = self.pictures.get(key)
        if picture is None:
            raise KeyError("This picture is no longer kept, because others were opened since. Open it again.")
        return picture
