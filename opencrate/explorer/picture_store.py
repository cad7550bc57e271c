"""The pictures that visitors have opened, each under a key that cannot be guessed, and their recordings.

Both are kept in memory only. When there are too many, the visitor who has most of them loses the one that was not used
for the longest time. A dropped recording is made again from its picture; a dropped picture has to be opened again.
"""

import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

from ..inspection.recording import Recording
from ..sources import Gallery

V = TypeVar("V")
Visitor = tuple[str, ...]  # an address and a session of it; empty for the explorer itself


class LRUCache(Generic[V]):
    """Values whose sizes together do not exceed a limit: who owns most loses the least recently used of theirs.

    The sizes of one address are compared before those of its sessions. The newest value always stays.
    """

    def __init__(self, limit: int, size_of: Callable[[V], int] = lambda value: 1) -> None:
        self.limit, self.size_of, self._lock = limit, size_of, Lock()
        self._values: OrderedDict[Hashable, tuple[V, Visitor]] = OrderedDict()

    @property
    def size(self) -> int:
        return sum(self.size_of(value) for value, _ in self._values.values())

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def owner(self, key: Hashable) -> Visitor:
        with self._lock:
            return self._values[key][1] if key in self._values else ()

    def put(self, key: Hashable, value: V, owner: Visitor = ()) -> V:
        with self._lock:
            self._values[key] = (value, owner)
            self._values.move_to_end(key)
            while self.size > self.limit and len(self._values) > 1:
                del self._values[self._dispensable()]
        return value

    def _dispensable(self) -> Hashable:
        owned: Counter[Visitor] = Counter()
        for value, owner in self._values.values():
            for parts in range(1, len(owner) + 1):
                owned[owner[:parts]] += self.size_of(value)

        def owned_by_its_owner(key: Hashable) -> list[int]:
            owner = self._values[key][1]
            return [owned[owner[:parts]] for parts in range(1, len(owner) + 1)]

        return max(list(self._values)[:-1], key=owned_by_its_owner)  # the first, least recently used, of the largest


class PictureStore:
    """A visitor finds a picture by its key alone, and knows only the keys of their own pictures."""

    def __init__(self, max_pictures: int = 64, max_recording_bytes: int = 2**28) -> None:
        self.pictures: LRUCache[Gallery] = LRUCache(max_pictures)
        self.recordings: LRUCache[Recording] = LRUCache(max_recording_bytes, lambda recording: recording.nbytes)

    def add(self, picture: Gallery, owner: Visitor = ()) -> str:
        key = secrets.token_urlsafe(16)
        self.pictures.put(key, picture, owner)
        return key

    def get(self, key: str) -> Gallery:
        picture = self.pictures.get(key)
        if picture is None:
            raise KeyError("This picture is no longer kept, because others were opened since. Open it again.")
        return picture

    def keep(self, key: str, variant: Hashable, recording: Recording) -> Recording:
        """Keep a recording of the picture with this key, in this variant of the network."""
        return self.recordings.put((key, variant), recording, self.pictures.owner(key))
