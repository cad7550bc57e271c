"""Decoding: a picture from the bytes of a file, and the count of those that do not decode."""

import io
import logging
import warnings

import numpy as np
from PIL import Image, UnidentifiedImageError

log = logging.getLogger("opencrate")


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
        log.warning("skipped %s, which does not decode: %s", name, reason)
        if len(self) > self.limit * self.total:
            raise ValueError(
                f"{len(self)} of {self.total} pictures do not decode, more than the fraction {self.limit:g} that"
                f" data.max_decode_failures allows; the last is {name}: {reason}"
            )
        if len(self) == self.total:
            raise ValueError(f"none of {self.total} pictures decodes")


def decode(content: bytes, in_chans: int = 3) -> Image.Image:
    """A picture from a file's bytes, in colour or grey; whatever is wrong with it is a ValueError."""
    if not content:
        raise ValueError("it is empty")
    try:
        # Pillow warns of a large picture, and refuses one of twice that size
        with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
            opened = Image.open(io.BytesIO(content))
        with opened as image:
            image.load()
            return with_channels(image, in_chans)
    except Exception as error:  # Pillow's readers raise many kinds, and what they raise is about the content
        raise ValueError(error_text(error)) from error


def error_text(error: Exception) -> str:
    """Pillow's message in one line; for an unknown format it would print an address in memory."""
    if isinstance(error, UnidentifiedImageError):
        return "it is not a picture, or damaged from the start"
    return " ".join(str(error).split()) or type(error).__name__


def with_channels(image: Image.Image, in_chans: int) -> Image.Image:
    """Converted to colour or grey, without transparency. 16 bits keep the upper eight; Pillow would clip to white."""
    mode = "L" if in_chans == 1 else "RGB"
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode == "P":
        image = image.convert("RGBA")  # a palette may have transparent colours, of which Pillow would warn
    return image if image.mode == mode else image.convert(mode)
