"""Pictures: one of a set, and one that a visitor of the explorer sends."""

import io
import struct
import zlib
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from opencrate.data.datasets.decoding import decode
from opencrate.explorer.uploads import read_upload

from .crafting import Contents, contents
from .harness import CANARY, Make, Target
from .mutations import ESCAPE, png_chunk

PIXELS = np.random.default_rng(0).integers(0, 256, (16, 24, 3), np.uint8)
KINDS = {"JPEG": "jpg", "PNG": "png", "GIF": "gif", "WEBP": "webp", "BMP": "bmp", "TIFF": "tiff"}


def _saved(kind: str, image: Image.Image | None = None, **options: object) -> bytes:
    content = io.BytesIO()
    (image or Image.fromarray(PIXELS)).save(content, kind, **options)
    return content.getvalue()


def _written(name: str, content: bytes) -> Make:
    def make(place: Path) -> Path:
        (place / name).write_bytes(content)
        return place / name

    return make


# PNG

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def png(
    width: int = 8, height: int = 8, data: bytes | None = None, *chunks: tuple[bytes, bytes], kind: int = 2
) -> bytes:
    """A PNG of these sizes, whatever its data; further chunks stand before the data."""
    rows = zlib.compress(bytes(8 * 25)) if data is None else data
    header = struct.pack(">II5B", width, height, 8, kind, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", rows), (b"IEND", b"")]
    return SIGNATURE + b"".join(png_chunk(*part) for part in parts)


def _bomb(size: int) -> bytes:
    """Zeros, deflated twice in one: a megabyte of them for each kilobyte."""
    packer = zlib.compressobj(9)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(-(-size >> 20))) + packer.flush()


def _pngs() -> Contents:
    return {
        "60,000 pixels a side": png(60_000, 60_000),
        "2³¹ pixels wide": png(2**31 - 1, 1),
        "2³² − 1 pixels wide": png(2**32 - 1, 2**32 - 1),
        "no width": png(0, 8),
        "7,800 pixels a side, without data": png(7_800, 7_800, zlib.compress(b"")),
        "6,000 pixels a side, of zeros": lambda: png(6_000, 6_000, _bomb(6_000 * 18_001)),
        "more data than pixels": lambda: png(8, 8, _bomb(1 << 28)),
        "a compressed text of 256 MB": lambda: png(8, 8, None, (b"zTXt", b"x\0\0" + _bomb(1 << 28))),
        "a thousand compressed texts": lambda: png(8, 8, None, *[(b"zTXt", b"x\0\0" + _bomb(1 << 20))] * 1000),
        "an international text of 256 MB": lambda: png(8, 8, None, (b"iTXt", b"x\0\1\0\0\0" + _bomb(1 << 28))),
        "a colour profile of 256 MB": lambda: png(8, 8, None, (b"iCCP", b"x\0\0" + _bomb(1 << 28))),
        "a colour profile of code": png(8, 8, None, (b"iCCP", b"x\0\0" + zlib.compress(CANARY.encode()))),
        "a text of escape codes": png(8, 8, None, (b"tEXt", f"Comment\0{ESCAPE}".encode())),
        "a palette that is missing": png(kind=3),
        "a palette of one colour": png(8, 8, zlib.compress(b"\0" + b"\xff" * 8), (b"PLTE", b"abc"), kind=3),
        "transparency beyond its palette": png(8, 8, None, (b"PLTE", b"abc"), (b"tRNS", bytes(256)), kind=3),
        "an unknown colour type": png(kind=7),
        "2³² − 1 animated frames": png(8, 8, None, (b"acTL", struct.pack(">II", 2**32 - 1, 0))),
        "a frame outside the picture": png(
            *(8, 8, None, (b"acTL", struct.pack(">II", 2, 0))),
            (b"fcTL", struct.pack(">5IHHBB", 0, 2**31 - 1, 2**31 - 1, 2**31 - 1, 8, 0, 1, 0, 0)),
        ),
        "a hundred thousand chunks": lambda: png(8, 8, None, *[(b"teSt", b"")] * 10**5),
        "a chunk of 2³¹ bytes": SIGNATURE + struct.pack(">I", 2**31 - 1) + b"IHDR",
        "a chunk with a name of zeros": png(8, 8, None, (b"\0\0\0\0", b"x")),
        "two headers": png(8, 8, None, (b"IHDR", struct.pack(">II5B", 60_000, 60_000, 8, 2, 0, 0, 0))),
        "data before the header": SIGNATURE + png_chunk(b"IDAT", b"x") + png()[8:],
        "no end": png()[:-12],
        "a wrong checksum": png()[:-1] + b"\0",
        "an EXIF that is damaged": png(8, 8, None, (b"eXIf", b"MM\0*\xff\xff\xff\xff")),
        "an EXIF that is a loop": png(8, 8, None, (b"eXIf", _tiff_loop(b""))),
        "a resolution of nothing": png(8, 8, None, (b"pHYs", struct.pack(">IIB", 0, 0, 1))),
        "gamma of nothing": png(8, 8, None, (b"gAMA", b"\0\0\0\0")),
        "16 bits": _saved("PNG", Image.fromarray(np.arange(256, dtype=np.uint16).reshape(16, 16) * 257)),
        "one bit": _saved("PNG", Image.new("1", (9, 9))),
    }


# TIFF


def _tiff(entries: dict[int, tuple[int, int, int]], behind: bytes = b"", following: int = 0) -> bytes:
    """One directory at the start; an entry is its tag with type, count and value."""
    lines = b"".join(struct.pack("<HHII", tag, *entry) for tag, entry in entries.items())
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + lines + struct.pack("<I", following) + behind


def _tiff_loop(behind: bytes) -> bytes:
    """A directory that follows itself."""
    return _tiff({**_plain(), 330: (4, 1, 8), 34665: (4, 1, 8), 34853: (4, 1, 8)}, behind, following=8)


def _plain(width: int = 8, height: int = 8, **changed: int) -> dict[int, tuple[int, int, int]]:
    values = {256: width, 257: height, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: height, 279: width * height}
    values |= {int(tag[1:]): value for tag, value in changed.items()}
    return {tag: (4, 1, value) for tag, value in sorted(values.items())}


def _tiffs() -> Contents:
    return {
        "a directory that follows itself": _tiff_loop(bytes(64)),
        "65,535 entries that are not there": b"II*\0\x08\0\0\0\xff\xff",
        "a directory beyond the file": b"II*\0\xff\xff\xff\x7f",
        "a directory in the header": b"II*\0\0\0\0\0",
        "60,000 pixels a side": _tiff(_plain(60_000, 60_000)),
        "a strip beyond the file": _tiff(_plain(t273=2**31)),
        "a strip of 2³² bytes": _tiff(_plain(t279=2**32 - 1), bytes(64)),
        "no rows in a strip": _tiff(_plain(t278=0), bytes(64)),
        "2³¹ values for a pixel": _tiff(_plain(t277=2**31), bytes(64)),
        "a tile of a gigabyte": _tiff({**_plain(t259=8), 322: (4, 1, 2**16), 323: (4, 1, 2**14), 324: (4, 1, 8)}),
        "a tile of a gigabyte in a type of its own": _tiff(
            {**_plain(t259=8), 322: (12, 1, 8), 323: (3, 1, 2**14), 324: (4, 1, 8)}, struct.pack("<d", 2.0**16)
        ),
        "a tile that is a text": _tiff({**_plain(), 322: (2, 4, 0x41414141), 323: (2, 4, 0x41414141), 324: (4, 1, 8)}),
        "a tag of 2³² values": _tiff({**_plain(), 270: (4, 2**32 - 1, 8)}),
        "a tag of 2³¹ doubles": _tiff({**_plain(), 270: (12, 2**31, 8)}),
        "sizes that are fractions": _tiff({**_plain(), 256: (5, 1, 8), 257: (5, 1, 8)}, bytes(64)),
        "sizes that are texts": _tiff({**_plain(), 256: (2, 2, 0x41)}, bytes(64)),
        "sizes that are lists": _tiff({**_plain(), 256: (3, 2, 0x80008)}, bytes(64)),
        "an unknown compression": _tiff(_plain(t259=12345), bytes(64)),
        "JPEG inside": _tiff(_plain(t259=7), _saved("JPEG")),
        "LZW of nothing": _tiff(_plain(t259=5), bytes(64)),
        "fax of nothing": _tiff(_plain(t259=4, t258=1), bytes(64)),
        "bits of many kinds": _tiff(_plain(t258=2**31), bytes(64)),
        "a hundred thousand frames": lambda: _many_frames(10**5),
        "BigTIFF": b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, 2**63),
        "an ICC profile of 2³² bytes": _tiff({**_plain(), 34675: (7, 2**32 - 1, 8)}, bytes(64)),
    }


def _many_frames(count: int) -> bytes:
    """Directories of one entry, each of which is followed by the next."""
    first = _tiff(_plain(), bytes(64))
    frames = b"".join(struct.pack("<HHHIII", 1, 256, 4, 1, 8, len(first) + 18 * (i + 1)) for i in range(count))
    return first[: len(first) - 64 - 4] + struct.pack("<I", len(first)) + bytes(64) + frames


# JPEG, GIF and others

JPEG = _saved("JPEG")
GIF = _saved("GIF")


def _segment(marker: int, inside: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(inside) + 2) + inside


def _with_segments(*segments: bytes) -> bytes:
    return JPEG[:2] + b"".join(segments) + JPEG[2:]


def _sized(content: bytes, width: int, height: int) -> bytes:
    at = content.index(b"\xff\xc0") + 5
    return content[:at] + struct.pack(">HH", height, width) + content[at + 4 :]


def _exif(content: bytes) -> bytes:
    return _with_segments(_segment(0xE1, b"Exif\0\0" + content))


def _many_scans(side: int, scans: int) -> bytes:
    content = _saved("JPEG", Image.new("L", (side, side)), progressive=True)
    return content[:-2] + scans * content[content.rindex(b"\xff\xda") : -2] + content[-2:]


def _orientation(value: int, kind: int = 3) -> bytes:
    return _exif(_tiff({0x112: (kind, 1, value)}))


def _jpegs() -> Contents:
    return {
        "65,500 pixels a side": _sized(JPEG, 65_500, 65_500),
        "no height": _sized(JPEG, 24, 0),
        "10,000 scans": lambda: _many_scans(1000, 10_000),
        "60 scans of 4,000 pixels": lambda: _many_scans(4000, 60),
        "3,000 scans of 7,000 pixels": lambda: _many_scans(7000, 3000),
        "an EXIF that is a loop": _exif(_tiff_loop(b"")),
        "an EXIF of 65,535 entries": _exif(b"II*\0\x08\0\0\0\xff\xff"),
        "an EXIF in no order": _exif(b"XX*\0\x08\0\0\0"),
        "an EXIF of one byte": _exif(b"I"),
        **{f"turned by {value} of type {kind}": _orientation(value, kind) for value, kind in ((6, 3), (9, 3), (0, 3))},
        **{"turned by a text": _orientation(0x41, 2), "turned by a fraction": _orientation(8, 5)},
        "turned by 2³²": _orientation(2**32 - 1, 4),
        "GPS of a loop": _exif(_tiff({0x8825: (4, 1, 8)})),
        "XMP with entities": _with_segments(_segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + _entities())),
        "XMP that turns it": _with_segments(
            _segment(0xE1, b'http://ns.adobe.com/xap/1.0/\0<x:xmpmeta tiff:Orientation="\x1b[31m9"/>')
        ),
        "a thumbnail of 60,000 pixels": _exif(
            _tiff({0x201: (4, 1, 64), 0x202: (4, 1, 2**31)}, _sized(JPEG, 60000, 60000))
        ),
        "a comment of escape codes": _with_segments(_segment(0xFE, ESCAPE.encode() * 100)),
        "a thousand segments": lambda: _with_segments(*[_segment(0xE5, bytes(65_000))] * 1000),
        "an ICC profile in 255 parts of 254": _with_segments(_segment(0xE2, b"ICC_PROFILE\0\xff\xfe" + bytes(100))),
        "MPF of a loop": _with_segments(_segment(0xE2, b"MPF\0" + _tiff({0xB001: (4, 1, 2**31), 0xB002: (7, 16, 8)}))),
        "Photoshop's resources": _with_segments(_segment(0xED, b"Photoshop 3.0\0" + b"8BIM" * 100)),
        "no tables": JPEG.replace(b"\xff\xdb", b"\xff\xfe").replace(b"\xff\xc4", b"\xff\xfe"),
        "a segment without length": JPEG[:2] + b"\xff\xe1\0\0" + JPEG[2:],
        "nothing but marks": lambda: b"\xff\xd8" + b"\xff" * 10**6,
        "half of it": JPEG[: len(JPEG) // 2],
        "arithmetic coding": JPEG.replace(b"\xff\xc0", b"\xff\xc9"),
        "lossless coding": JPEG.replace(b"\xff\xc0", b"\xff\xc3"),
        "12 bits": JPEG.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"),
        "CMYK": _saved("JPEG", Image.new("CMYK", (16, 16))),
    }


def _entities() -> bytes:
    lines = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 10))
    return f'<!DOCTYPE x [<!ENTITY a0 "x">{lines}]><x:xmpmeta tiff:Orientation="&a9;"/>'.encode()


def _gif(frames: int, width: int = 1, height: int = 1, part: tuple[int, int, int, int] = (0, 0, 1, 1)) -> bytes:
    """Frames of one pixel each."""
    frame = b"!\xf9\4\0\1\0\0\0," + struct.pack("<4H", *part) + b"\0\2\2\x44\1\0"
    header = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    return header + frame * frames + b";"


def _others() -> Contents:
    webp, bmp = _saved("WEBP"), _saved("BMP")
    ico = b"\0\0\1\0\1\0\0\0\0\0\1\0\x20\0" + struct.pack("<II", len(png()), 22) + png()
    return {
        "GIF: 100,000 frames": lambda: _gif(10**5),
        "GIF: 65,535 pixels a side": _gif(1, 65_535, 65_535),
        "GIF: a frame larger than its picture": _gif(1, 8, 8, (0, 0, 65_535, 65_535)),
        "GIF: a frame outside its picture": _gif(2, 8, 8, (65_000, 65_000, 500, 500)),
        "GIF: no frame": _gif(0),
        "GIF: a comment of a megabyte": GIF[:13] + b"!\xfe" + (b"\xff" + bytes(255)) * 4000 + b"\0" + GIF[13:],
        "GIF: codes beyond the table": _gif(1).replace(b"\2\2\x44\1", b"\2\2\xff\xff"),
        "GIF: a first code of 255 bits": _gif(1).replace(b"\0\2\2\x44\1", b"\0\xff\2\x44\1"),
        "GIF: half of it": GIF[: len(GIF) // 2],
        "WebP: 2²⁴ pixels a side": b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff" * 6 + b"VP8 \0\0\0\0",
        "WebP: 16,383 pixels a side": b"RIFF\x1e\0\0\0WEBPVP8L\x0a\0\0\0\x2f" + b"\xff\xff\xff\x0f" + bytes(8),
        "WebP: a file of 2³² bytes": webp[:4] + b"\xff\xff\xff\xff" + webp[8:],
        "WebP: animated without frames": b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\2\0\0\0\7\0\0\7\0\0",
        "WebP: half of it": webp[: len(webp) // 2],
        "BMP: 2³¹ pixels wide": bmp[:18] + struct.pack("<i", 2**31 - 1) + bmp[22:],
        "BMP: a height of −2³¹": bmp[:22] + struct.pack("<i", -(2**31)) + bmp[26:],
        "BMP: below zero wide": bmp[:18] + struct.pack("<i", -8) + bmp[22:],
        "BMP: 2³¹ colours": bmp[:46] + struct.pack("<I", 2**31) + bmp[50:],
        "BMP: data beyond the file": bmp[:10] + struct.pack("<I", 2**31) + bmp[14:],
        "BMP: RLE of nothing": bmp[:28] + struct.pack("<HI", 8, 1) + bmp[34:],
        "BMP: RLE of jumps": lambda: bmp[:28] + struct.pack("<HI", 8, 1) + bmp[34:54] + b"\0\2\xff\xff" * 10**5,
        "BMP: a header of 4 bytes": bmp[:14] + struct.pack("<I", 4) + bmp[18:],
        "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n(touch ran) system\nshowpage\n",
        "PDF": b"%PDF-1.7\n1 0 obj\n<< /Type /Catalog /OpenAction << /S /Launch /F (sh) >> >>\nendobj\n",
        "SVG": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="http://127.0.0.1:9/x"/></svg>',
        "SVG with entities": b'<?xml version="1.0"?>' + _entities(),
        "HTML": b"<!doctype html><script>alert(1)</script>",
        "PPM": b"P6 60000 60000 255\n" + bytes(100),
        "icon": ico,
        "icons of Apple's": b"icns" + struct.pack(">I", 16) + b"ic10" + struct.pack(">I", 8),
        "Photoshop": b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 8, 8, 8, 3) + bytes(12),
        "FITS": b"SIMPLE  =                    T".ljust(80) + b"END".ljust(2800),
        "DDS": b"DDS " + struct.pack("<I", 124) + bytes(120),
        "JPEG 2000": b"\0\0\0\x0cjP  \r\n\x87\n" + b"\0\0\0\x2djp2h" + bytes(40),
        "a flash picture": b"FPX" + bytes(100),
        "a Windows metafile": b"\xd7\xcd\xc6\x9a\0\0" + bytes(100),
        "an HDF5 file": b"\x89HDF\r\n\x1a\n" + bytes(100),
        "Python": f"import tests.fuzz.harness as h; h.{CANARY}()".encode(),
        "a pickle": f"ctests.fuzz.harness\n{CANARY}\n(tR.".encode(),
        "empty": b"",
        "one byte": b"\xff",
        "zeros": bytes(10**6),
        "a text with an address in memory": b"<_io.BytesIO object at 0x7f0000000000>",
    }


def _all() -> Contents:
    return (
        {f"PNG: {name}": content for name, content in _pngs().items()}
        | {f"TIFF: {name}": content for name, content in _tiffs().items()}
        | {f"JPEG: {name}": content for name, content in _jpegs().items()}
        | _others()
    )


def _read(path: Path) -> None:
    """In colour and in grey, as sets of either kind do."""
    for in_chans in (3, 1):
        decode(path.read_bytes(), in_chans)


def _read_upload(path: Path) -> str:
    upload = read_upload(path.read_bytes(), 3)
    return "\n".join(upload.notes)


def _seeds() -> dict[str, Make]:
    image = Image.fromarray(PIXELS)
    seeds = {kind: (f"a.{end}", _saved(kind)) for kind, end in KINDS.items()}
    seeds["palette"] = ("b.png", _saved("PNG", image.convert("P"), transparency=3))
    seeds["progressive"] = ("b.jpg", _saved("JPEG", progressive=True, exif=_exif_of(6)))
    seeds["animation"] = ("b.gif", _saved("GIF", save_all=True, append_images=[ImageOps.invert(image)] * 3))
    seeds["animated WebP"] = ("b.webp", _saved("WEBP", save_all=True, append_images=[ImageOps.invert(image)] * 3))
    for compression, mode in product(("tiff_lzw", "tiff_adobe_deflate"), ("RGB", "L")):
        seeds[f"{compression} {mode}"] = ("b.tiff", _saved("TIFF", image.convert(mode), compression=compression))
    return {name: _written(*seed) for name, seed in seeds.items()}


def _exif_of(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x112] = orientation
    return exif.tobytes()


SEEDS = _seeds()
UPLOADS = {name: make for name, make in SEEDS.items() if name in ("JPEG", "PNG", "WEBP", "palette", "progressive")}
MAKE = _written("picture", b"")
TARGETS = (
    Target("picture", _read, SEEDS, contents(MAKE, "", _all())),
    Target("upload", _read_upload, UPLOADS, contents(MAKE, "", _all())),
)
