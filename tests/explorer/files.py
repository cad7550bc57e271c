"""Files that a visitor may send: pictures of many kinds, files that are none, and some made to do harm."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

from opencrate.explorer.uploads import MAX_BYTES

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def noise(seed: int = 0, width: int = 40, height: int = 30) -> Image.Image:
    """A picture that is no other's: a coarse pattern of random colours."""
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, rows: bytes, *before: bytes) -> bytes:
    """A grey PNG that claims this size, whatever its rows are; some chunks may come before them."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(rows, 9))
    return b"".join([SIGNATURE, chunk(b"IHDR", header), *before, pixels, chunk(b"IEND", b"")])


def zeros(size: int) -> bytes:
    """Compressed zeros: a thousandth of what they become."""
    return zlib.compress(bytes(size), 9)


def flipped(content: bytes, seed: int, count: int = 8) -> bytes:
    """With some bytes replaced, anywhere."""
    draw, changed = np.random.default_rng(seed), bytearray(content)
    for place in draw.integers(0, len(content), count):
        changed[place] ^= int(draw.integers(1, 256))
    return bytes(changed)


def _accepted() -> dict[str, tuple[bytes, list[str]]]:
    frames = {"save_all": True, "append_images": [noise(i) for i in (1, 2)], "duration": 100}
    deep = np.random.default_rng(0).integers(0, 2**16, (30, 40), dtype=np.uint16)
    palette = noise().quantize(16)
    rotation = Image.Exif()
    rotation[0x0112] = 6
    animated = ["It is animated: only the first of its 3 frames is used."]
    return {
        "a PNG": (encoded(noise()), []),
        "a JPEG": (encoded(noise(), "JPEG"), []),
        "a progressive JPEG": (encoded(noise(), "JPEG", progressive=True), []),
        "a WebP": (encoded(noise(), "WEBP"), []),
        "a PNG with bytes behind its end": (encoded(noise()) + b"<script>alert(1)</script>", []),
        "an animated WebP": (encoded(noise(), "WEBP", **frames), animated),
        "an animated PNG": (encoded(noise(), "PNG", **frames), animated),
        "16 bits of grey": (encoded(Image.fromarray(deep)), ["It has 16 bits per pixel: only the upper 8 are used."]),
        "a CMYK JPEG": (
            encoded(noise().convert("CMYK"), "JPEG"),
            ["It was converted from CMYK."],
        ),
        "one pixel": (encoded(noise(0, 1, 1)), ["It has only 1 × 1 pixels and was enlarged."]),
        "a line": (encoded(noise(0, 2000, 1)), ["It has only 2000 × 1 pixels and was enlarged."]),
        "a palette with a transparent colour": (encoded(palette, transparency=3), []),
        "a palette with shades of transparency": (encoded(palette, transparency=bytes(range(16))), []),
        "grey with transparency": (encoded(noise().convert("LA")), []),
        "colours with transparency": (encoded(noise().convert("RGBA"), "WEBP"), []),
        "colours with a transparent one": (encoded(noise(), transparency=(1, 2, 3)), []),
        "black and white": (encoded(noise().convert("1")), []),
        "grey JPEG": (encoded(noise().convert("L"), "JPEG"), []),
        "a JPEG on its side": (encoded(noise(), "JPEG", exif=rotation), []),
    }


def _refused() -> dict[str, tuple[bytes, str]]:
    none, damaged, large = "not a picture that can be read", "damaged", "megapixels are allowed"
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    refused = {
        "nothing": (b"", "empty"),
        "one byte": (b"\xff", none),
        "text": (b"Ein Bild sagt mehr als tausend Worte, sagt man.", none),
        "HTML": (b"<!doctype html><title>x</title><script>alert(1)</script>", none),
        "an SVG": (svg, none),
        "a GIF": (encoded(noise().quantize(16), "GIF"), none),
        "a BMP": (encoded(noise(), "BMP"), none),
        "a TIFF": (encoded(noise(), "TIFF"), none),
        "an ICO": (encoded(noise(0, 32, 32), "ICO"), none),
        "a PPM": (encoded(noise(), "PPM"), none),
        "PostScript": (encoded(noise(), "EPS"), none),
        "a PDF": (encoded(noise(), "PDF"), none),
        "a ZIP": (b"PK\x03\x04" + bytes(200), none),
        "a PNG's signature": (SIGNATURE, "picture"),
        "a JPEG's signature": (b"\xff\xd8\xff\xe0", "picture"),
        "a WebP's signature": (b"RIFF\x10\x00\x00\x00WEBPVP8 ", "picture"),
        "a header of 60000 × 60000": (png(60000, 60000, b""), large),
        "a header of 2³¹ − 1 squared": (png(2**31 - 1, 2**31 - 1, b""), large),
        "a header of 0 × 0": (png(0, 0, b""), "picture"),
        "81 megapixels in 80 kB": (png(9000, 9000, bytes(9001 * 9000)), large),
        "64 MB of text in 64 kB": (png(8, 8, bytes(72), chunk(b"zTXt", b"a\0\0" + zeros(2**26))), damaged),
        "64 MB of profile in 64 kB": (png(8, 8, bytes(72), chunk(b"iCCP", b"a\0\0" + zeros(2**26))), damaged),
        "more than may be sent": (encoded(noise()) + bytes(MAX_BYTES), "20 MB|20 are allowed"),
    }
    for kind in ("JPEG", "PNG", "WEBP"):
        content = encoded(noise(0, 160, 120), kind)
        for share in (0.01, 0.3, 0.6, 0.9):
            refused[f"{share:.0%} of a {kind}"] = content[: int(share * len(content))], "picture"
    return refused


def _damaged() -> dict[str, bytes]:
    whole = {kind: encoded(noise(0, 160, 120), kind) for kind in ("JPEG", "PNG", "WEBP")}
    cut = {f"a {kind} without its last {n} bytes": whole[kind][:-n] for kind in whole for n in (1, 9)}
    changed = {f"a {kind} with other bytes, {seed}": flipped(whole[kind], seed) for kind in whole for seed in range(8)}
    twice = {f"a {kind} that begins twice": whole[kind][:40] + whole[kind] for kind in whole}
    return cut | changed | twice | {"a PNG with fewer rows than claimed": png(500, 500, bytes(501))}


ACCEPTED = _accepted()
"""By name: the content, and the notes for its sender."""

REFUSED = _refused()
"""By name: the content, and a pattern of the sentence."""

DAMAGED = _damaged()
"""Those of which a decoder may make something or nothing."""
