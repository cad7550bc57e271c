"""Pictures that a visitor sends: recognised by content, size-limited before decoding, never written to disk."""

import io
import warnings
from dataclasses import dataclass
from threading import Lock

from PIL import Image, ImageOps, UnidentifiedImageError

from ..data.datasets.decoding import require_few_scans, with_channels

MAX_BYTES = 20 * 2**20
MAX_PIXELS = 50_000_000
FORMATS = ("JPEG", "PNG", "WEBP")
DECODING = Lock()  # one at a time: for memory, and because `catch_warnings` is not for threads
SUPPORTED = "JPEG, PNG and WebP are supported"


@dataclass(frozen=True)
class Upload:
    """A decoded picture, and what its sender should know about it."""

    image: Image.Image
    notes: tuple[str, ...]


def read_upload(content: bytes, in_chans: int) -> Upload:
    """Decode a file's bytes; whatever is wrong with them is a ValueError with a sentence for the page."""
    if not content:
        raise ValueError("The file is empty.")
    if len(content) > MAX_BYTES:
        raise ValueError(f"The file has {len(content) / 2**20:.0f} MB; at most {MAX_BYTES // 2**20} are allowed.")
    with DECODING, warnings.catch_warnings(action="ignore"), _opened(content) as image:
        width, height = image.size
        if width * height > MAX_PIXELS:  # before anything is decoded, and more strictly than Pillow
            raise ValueError(
                f"The picture has {width} × {height} pixels: at most {MAX_PIXELS // 10**6} megapixels are allowed."
            )
        try:
            require_few_scans(image, content)
            notes = tuple(_notes(image))
            image.load()
            return Upload(with_channels(ImageOps.exif_transpose(image), in_chans), notes)
        except Exception as error:  # Pillow's readers raise many kinds, and what they raise is about the content
            raise ValueError("The picture is damaged and cannot be decoded completely.") from error


def _opened(content: bytes) -> Image.Image:
    try:
        return Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise ValueError(f"This file is not a picture that can be read: {SUPPORTED}.") from error
    except Image.DecompressionBombError as error:
        raise ValueError(f"The picture is too large: at most {MAX_PIXELS // 10**6} megapixels are allowed.") from error
    except Exception as error:  # as above
        raise ValueError(f"The picture is damaged: {SUPPORTED}.") from error


def _notes(image: Image.Image) -> list[str]:
    notes, frames = [], getattr(image, "n_frames", 1)
    if frames > 1:
        notes.append(f"It is animated: only the first of its {frames} frames is used.")
    if image.mode.startswith("I"):
        notes.append("It has 16 bits per pixel: only the upper 8 are used.")
    if image.mode == "CMYK":
        notes.append("It was converted from CMYK.")
    if min(image.size) < 8:
        notes.append(f"It has only {image.width} × {image.height} pixels and was enlarged.")
    return notes
