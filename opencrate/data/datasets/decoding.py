"""Decoding: a picture from the bytes of a file, and the count of those that do not decode."""

import io
import logging
import warnings

import numpy as np
from PIL import Image, UnidentifiedImageError

from ...errors import one_line
from ...files import PICTURE_PIXELS, SCANNED_PIXELS

log = logging.getLogger("opencrate")

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
TOO_LARGE = f"it has more than {PICTURE_PIXELS // 10**6} million pixels"
TILE_WIDTH, TILE_LENGTH = 322, 323  # tags of TIFF
SCAN = b"\xff\xda\0"  # the marker before a scan of a JPEG


class DecodeFailures:
    """Counts pictures that do not decode, logs each once, and stops the run above a fraction `limit` of the set.

    A limit of 1 allows all but the last.
    """

    def __init__(self, limit: float, total: int) -> None:
        self.limit, self.total, self.names = limit, total, dict[str, str]()

    def __len__(self) -> int:
        return len(self.names)

    def add(self, name: str, reason: str) -> None:
        if name in self.names:
            return
        self.names[name] = reason
        log.warning("skipped %s, which does not decode: %s", one_line(name, 300), one_line(reason))
        if len(self) > self.limit * self.total:
            raise ValueError(
                f"{len(self)} of {self.total} pictures do not decode, more than the fraction {self.limit:g} that"
                f" data.max_decode_failures allows; the last is {one_line(name, 100)}: {one_line(reason, 80)}"
            )
        if len(self) == self.total:
            raise ValueError(f"none of {self.total} pictures decodes")


def decode(content: bytes, in_chans: int = 3) -> Image.Image:
    """A picture from a file's bytes, in colour or grey; whatever is wrong with it is a ValueError.

    Its size is known, and limited, before it is decoded. Pillow's other readers stay closed: that of PostScript would
    start a program.
    """
    if not content:
        raise ValueError("it is empty")
    try:
        # Pillow warns of a large picture, and refuses one of twice that size
        with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
            opened = Image.open(io.BytesIO(content), formats=FORMATS)
        with opened as image:
            _require_bounded(image, content)
            image.load()
            return with_channels(image, in_chans)
    except Exception as error:  # Pillow's readers raise many kinds, and what they raise is about the content
        raise ValueError(error_text(error)) from error


def _require_bounded(image: Image.Image, content: bytes) -> None:
    pixels = image.width * image.height
    tags = getattr(image, "tag_v2", {})  # of a TIFF, whose tiles are decoded complete and may exceed the picture
    if max(pixels, tags.get(TILE_WIDTH, 0) * tags.get(TILE_LENGTH, 0)) > PICTURE_PIXELS:
        raise ValueError(TOO_LARGE)
    require_few_scans(image, content)


def require_few_scans(image: Image.Image, content: bytes) -> None:
    """Refuse a JPEG that would be decoded for minutes, because every scan costs as much as the picture."""
    pixels = image.width * image.height
    may_exceed = len(content) // 10 * pixels > SCANNED_PIXELS  # a scan has ten bytes and more
    if may_exceed and content.count(SCAN) * pixels > SCANNED_PIXELS:
        raise ValueError("it is a JPEG of too many scans")


def error_text(error: Exception) -> str:
    """Pillow's message in one line; for an unknown format it would print an address in memory."""
    if isinstance(error, Image.DecompressionBombError):
        return TOO_LARGE
    if isinstance(error, UnidentifiedImageError):
        return "it is not a picture, or damaged from the start"
    return one_line(str(error), 100) or type(error).__name__


def with_channels(image: Image.Image, in_chans: int) -> Image.Image:
    """Converted to colour or grey, without transparency. 16 bits keep the upper eight; Pillow would clip to white."""
    mode = "L" if in_chans == 1 else "RGB"
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode == "P":
        image = image.convert("RGBA")  # a palette may have transparent colours, of which Pillow would warn
    return image if image.mode == mode else image.convert(mode)
