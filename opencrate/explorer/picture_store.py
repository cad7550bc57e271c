"""What visitors have opened: each picture under a key that nobody can guess, the oldest forgotten first."""

import secrets
from collections import OrderedDict
from threading import Lock

from ..sources import Gallery

__all__ = ["Rooms"]


class Rooms:
    """A visitor sees a picture by its key alone, and knows only the keys of their own."""

    def __init__(self, limit: int = 64) -> None:
        self.limit, self.lock = limit, Lock()
        self.pictures: OrderedDict[str, Gallery] = OrderedDict()

    def keep(self, picture: Gallery) -> str:
        key = secrets.token_urlsafe(16)
        with self.lock:
            self.pictures[key] = picture
            while len(self.pictures) > self.limit:
                self.pictures.popitem(last=False)
        return key

    def find(self, key: str) -> Gallery:
        with self.lock:
            if key not in self.pictures:
                raise KeyError("This picture was forgotten: too many others came since. Open it again.")
            self.pictures.move_to_end(key)
            return self.pictures[key]
