"""The pictures that visitors have opened, each under a key that cannot be guessed, and their recordings.

Both are kept in memory only: so many pictures, and recordings up to so many bytes. What was not used for the longest
time is dropped first. A dropped recording can be made again from its picture; a dropped picture has to be opened again.
"""

import secrets
from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock

from ..inspection.recording import Recording
from ..sources import Gallery

__all__ = ["PictureStore"]


class PictureStore:
    """A visitor finds a picture by its key alone, and knows only the keys of their own pictures."""

    def __init__(self, max_pictures: int = 64, max_recording_bytes: int = 2**28) -> None:
        self.max_pictures, self.max_recording_bytes, self.lock = max_pictures, max_recording_bytes, Lock()
        self.pictures: OrderedDict[str, Gallery] = OrderedDict()
        self.recordings: OrderedDict[tuple[str, Hashable], Recording] = OrderedDict()

    def add(self, picture: Gallery) -> str:
        key = secrets.token_urlsafe(16)
        with self.lock:
            self.pictures[key] = picture
            while len(self.pictures) > self.max_pictures:
                dropped, _ = self.pictures.popitem(last=False)
                for place in [place for place in self.recordings if place[0] == dropped]:
                    del self.recordings[place]
        return key

    def get(self, key: str) -> Gallery:
        with self.lock:
            if key not in self.pictures:
                raise KeyError("This picture is no longer kept, because others were opened since. Open it again.")
            self.pictures.move_to_end(key)
            return self.pictures[key]

    def add_recording(self, key: str, variant: Hashable, recording: Recording) -> None:
        """Keep what a picture is in one variant of the network; the newest is kept whatever its size."""
        with self.lock:
            if key not in self.pictures:  # dropped while the recording was made
                return
            self.recordings[key, variant] = recording
            size = sum(kept.nbytes for kept in self.recordings.values())
            while size > self.max_recording_bytes and len(self.recordings) > 1:
                size -= self.recordings.popitem(last=False)[1].nbytes

    def get_recording(self, key: str, variant: Hashable) -> Recording | None:
        with self.lock:
            recording = self.recordings.get((key, variant))
            if recording is not None:
                self.recordings.move_to_end((key, variant))
            return recording
