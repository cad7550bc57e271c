"""Pictures for training: the embedded digits, datasets by name, and the feeds that bring them to the device."""

from typing import TYPE_CHECKING

from ..lazy import lazy_names
from .settings import Augmentation, Dataset

if TYPE_CHECKING:
    from .feeds.feed import Batch, Feed, PictureFeed, Split
    from .opening import open_feed, open_feeds, pack_splits

__getattr__ = lazy_names(
    __name__,
    {
        "Batch": "feeds.feed",
        "Feed": "feeds.feed",
        "PictureFeed": "feeds.feed",
        "Split": "feeds.feed",
        "open_feed": "opening",
        "open_feeds": "opening",
        "pack_splits": "opening",
    },
)
