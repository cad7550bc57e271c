"""Pictures that a visitor sends: known by their content, limited before they are decoded, never written to disk."""

import io
import warnings
from dataclasses import dataclass
from threading import Lock

from PIL import Image, ImageOps, UnidentifiedImageError

from ..data.datasets.pictures import with_channels

__all__ = ["MAX_BYTES", "MAX_PIXELS", "Upload", "read_upload"]

MAX_BYTES = 20 * 2**20
MAX_PIXELS = 50_000_000
FORMATS = ("JPEG", "PNG", "WEBP")
DECODING = Lock()  # one at a time: for memory, and because `catch_warnings` is not for threads
WANTED = "the page takes pictures in JPEG, PNG and WebP"


@dataclass(frozen=True)
class Upload:
    """A decoded picture, and what its sender should know about it."""

    image: Image.Image
    notes: tuple[str, ...]


def read_upload(content: bytes, in_chans: int) -> Upload:
    """The picture in a file's bytes; whatever is wrong with them is a ValueError with a sentence for the page."""
    if not content:
        raise ValueError("The file is empty.")
    if len(content) > MAX_BYTES:
        raise ValueError(f"The file has {len(content) / 2**20:.0f} MB, and {MAX_BYTES // 2**20} are allowed.")
    with DECODING:
        return _decode(content, in_chans)


def _decode(content: bytes, in_chans: int) -> Upload:
    try:
        # The size is checked here, before anything is decoded, and more strictly than Pillow does.
        with warnings.catch_warnings(action="ignore"):
            opened = Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise ValueError(f"This is not a picture that can be read: {WANTED}.") from error
    except Image.DecompressionBombError as error:
        raise ValueError(f"The picture is far too large: {MAX_PIXELS // 10**6} megapixels are allowed.") from error
    except Exception as error:  # Pillow's readers raise many kinds, and what they raise is about the content
        raise ValueError(f"The picture is damaged: {WANTED}.") from error
    with opened as image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise ValueError(
                f"The picture has {width} × {height} pixels: {MAX_PIXELS // 10**6} megapixels are allowed."
            )
        try:
            with warnings.catch_warnings(action="ignore"):
                notes = tuple(_notes(image))
                image.load()
                upright = ImageOps.exif_transpose(image)
                return Upload(with_channels(upright, in_chans), notes)
        except Exception as error:  # as above
            raise ValueError("The picture is damaged: it begins well and cannot be decoded to its end.") from error


def _notes(image: Image.Image) -> list[str]:
    found, frames = [], getattr(image, "n_frames", 1)
    if frames > 1:
        found.append(f"It is animated: of its {frames} frames the first is looked at.")
    if image.mode.startswith("I"):
        found.append("It has 16 bits a pixel: the upper eight are looked at.")
    if image.mode == "CMYK":
        found.append("It has the colours of print (CMYK), which were converted.")
    if min(image.size) < 8:
        found.append(f"It has only {image.width} × {image.height} pixels, which were enlarged.")
    return found
