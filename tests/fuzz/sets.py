"""Sets of pictures: tar shards, packed sets, IDX files, folders."""

import gzip
import io
import json
import os
import random
import socket
import struct
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import chdir, closing
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from opencrate.data import Dataset, open_feed
from opencrate.data.datasets.packing import pack
from opencrate.data.datasets.pictures import Arrays
from opencrate.data.opening import pack_splits
from opencrate.sources import _unlabelled

from . import mutations
from .crafting import (
    JSON_TEXTS,
    PICKLES,
    Change,
    Contents,
    Files,
    changed,
    contents,
    files_in,
    json_values,
    moving,
    odd_files,
    setting,
    several,
    written,
)
from .harness import CANARY, Make, Target
from .mutations import ESCAPE
from .pictures import png

SIZES: dict[str, Any] = {"num_classes": 3, "size": 8, "max_decode_failures": 1.0}
SIDE, COUNT = 6, 9


def _read_set(data: Dataset) -> str:
    """Every picture of a split once, as evaluation sees it."""
    feed = open_feed(data, None, training=False)
    with closing(feed.evaluate(4)) as batches:
        for _ in batches:
            pass
    return "\n".join(name[:100] for name in feed.classes)


def _picture(i: int) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE), (i, 2 * i, 77)).save(content, "png")
    return content.getvalue()


# tar shards

SHARD, INFO, SPLIT = "train-0000.tar", "_info.json", "split"


def _tar(members: dict[str, bytes], form: int = tarfile.GNU_FORMAT, **fields: Any) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=form) as tar:
        for name, inside in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(inside)
            for field, value in fields.items():
                setattr(member, field, value)
            tar.addfile(member, io.BytesIO(inside))
    return content.getvalue()


@cache
def _shards() -> Files:
    members = [{f"{i}.png": _picture(i), f"{i}.cls": b"%d" % (i % 3)} for i in range(COUNT)]
    halves = [dict(pair for part in half for pair in part.items()) for half in (members[:5], members[5:])]
    names = [SHARD, "train-0001.tar"]
    info = {"classes": ["a", "b", "c"], "splits": {"train": {"filenames": names, "num_samples": COUNT}}}
    tars = {name: _tar(half, tarfile.PAX_FORMAT) for name, half in zip(names, halves, strict=True)}
    return {**tars, INFO: json.dumps(info).encode(), SPLIT: b"train"}


def _labels_in_json() -> Files:
    members = {f"{i}.jpg": _picture(i) for i in range(4)} | {f"{i}.json": b'{"label": %d}' % (i % 2) for i in range(4)}
    return {SHARD: _tar(dict(sorted(members.items()))), SPLIT: b"train-{0000..0000}.tar"}


def _read_shards(path: Path) -> str:
    """The split's name, or its pattern, is in a file, because it comes from a recipe; the cache is in the folder."""
    split = (path / SPLIT).read_text(encoding="utf-8", errors="replace")[:2000]
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(path.parent)):
        return _read_set(Dataset("wds", str(path), validation=split, **SIZES))


def _header(name: str = "a.png", size: int = 0, kind: bytes = b"0", field: bytes = b"") -> bytes:
    """The header of a member; the text of its size may be any."""
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    block = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    if field:
        block[124:136] = field.ljust(12, b"\0")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _extended(text: bytes, kind: bytes = b"x") -> bytes:
    return _header("x", len(text), kind) + text + bytes(-len(text) % 512)


def _record(key: str, value: str) -> bytes:
    length = len(key) + len(value) + 3
    while len(f"{length}") + len(key) + len(value) + 3 != length:
        length = len(f"{length}") + len(key) + len(value) + 3
    return f"{length} {key}={value}\n".encode()


def _linked(kind: bytes, target: str) -> bytes:
    return _tar({"0.png": b""}, type=kind, linkname=target) + _tar({"0.cls": b"1"})


TARS: Contents = {
    "empty": b"",
    "zeros": bytes(1 << 20),
    "text": b"not a tar file" * 100,
    "zipped": lambda: gzip.compress(_tar({"0.png": _picture(0), "0.cls": b"1"})),
    "a size of 2³³": _header(size=2**33 - 1),
    "a size of 2⁸⁸": _header(field=b"\x80" + b"\xff" * 11),
    "a size below zero": _header(field=b"\xff" * 12),
    "a size with a sign": _header(field=b"-0000000001"),
    "a size in letters": _header(field=b"0x10"),
    "a size of spaces": _header(field=b" " * 12),
    "a size of digits beyond seven": _header(field=b"99999999999"),
    "a size in Arabic digits": _header(field="١٢".encode()),
    "a wrong checksum": _header()[:148] + b"000000\0 " + _header()[156:],
    "a checksum of 2⁶³": _header()[:148] + b"\x80" + b"\xff" * 7 + _header()[156:],
    "a long name of a terabyte": _header("x", 2**33 - 1, b"L"),
    "a long name of a mebibyte": _header("x", 1 << 20, b"L") + bytes(1 << 20) + _header(),
    "a long name of nothing": _extended(b"", b"L") + _header(),
    "a hundred thousand long names": lambda: _extended(b"a.png", b"L") * 10**5 + _header(),
    "records of no end": _extended(b"9999 a=b\n"),
    "records of length 0": _extended(b"0 a=b\n"),
    "records below zero": _extended(b"-6 a=b\n"),
    "records without a value": _extended(b"6 ab\n\n"),
    "records of 5,000 digits": _extended(b"1" * 5000),
    "a recorded size below zero": _extended(_record("size", "-1024")) + _header(),
    "a recorded size of 5,000 digits": _extended(_record("size", "9" * 5000)) + _header(),
    "a recorded size in letters": _extended(_record("size", "1e9")) + _header(),
    "a recorded size of 0x10": _extended(_record("size", " 1_0 ")) + _header() + bytes(512),
    "a recorded path of 10,000 parts": _extended(_record("path", "a/" * 10_000 + "b.png")) + _header(),
    "a recorded path of escape codes": _extended(_record("path", f"{ESCAPE}.png")) + _header(),
    "a recorded path of NUL": _extended(_record("path", "\0.png")) + _header(),
    "records for all members": _extended(_record("path", "../x.png"), b"g") + _header(),
    "a character set of its own": _extended(_record("hdrcharset", "BINARY") + _record("path", "\xff")) + _header(),
    "a sparse file": _header(kind=b"S"),
    "a sparse file by records": _extended(_record("GNU.sparse.major", "1")) + _header(),
    "a sparse file of an exabyte": _extended(_record("GNU.sparse.realsize", "1" * 18)) + _header(),
    "a volume": _header(kind=b"M"),
    "an unknown kind": _header(kind=b"Z", size=512) + bytes(512),
    "a symbolic link": _linked(tarfile.SYMTYPE, "/etc/passwd"),
    "a hard link": _linked(tarfile.LNKTYPE, "../../etc/passwd"),
    "a device": _linked(tarfile.CHRTYPE, ""),
    "a pipe": _linked(tarfile.FIFOTYPE, ""),
    "names above the folder": _tar({"../../0.png": _picture(0), "../../0.cls": b"1"}),
    "absolute names": _tar({"/etc/0.png": _picture(0), "/etc/0.cls": b"1"}),
    "names of escape codes": _tar({f"{ESCAPE}.png": _picture(0), f"{ESCAPE}.cls": b"7"}),
    "names that are not UTF-8": _tar({"\udcff\udcfe.png": _picture(0), "\udcff\udcfe.cls": b"x"}),
    "names of dots": _tar({"...png": _picture(0), "..cls": b"1"}),
    "an empty name": _tar({".png": _picture(0), ".cls": b"1"}),
    "one key many times": lambda: _tar({"0.png": _picture(0), "0.cls": b"1"})[:2048] * 3000,
    "a hundred thousand members": lambda: _header("a.txt") * 10**5,
    "no classes": _tar({"0.png": _picture(0)}),
    "no pictures": _tar({"0.cls": b"1"}),
    **{
        f"a class of {name}": _tar({"0.png": _picture(0), "0.cls": text})
        for name, text in {
            **{"nothing": b"", "−1": b"-1", "3": b"3", "2³¹": b"%d" % 2**31, "5,000 digits": b"9" * 5000},
            **{"letters": b"cat", "escape codes": ESCAPE.encode(), "1.5": b"1.5", "1_0": b"1_0", "NUL": bytes(10)},
            **{"Arabic digits": "١".encode(), "two megabytes": b"1" * (2 << 20), "not UTF-8": b"\xff\xfe"},
        }.items()
    },
    **{
        f"a label of {name}": _tar({"0.png": _picture(0), "0.json": text})
        for name, text in {
            **{"nothing": b"{}", "null": b'{"label": null}', "a list": b'{"label": [1]}', "true": b'{"label": true}'},
            **{"2⁶³": b'{"label": %d}' % 2**63, "1e400": b'{"label": 1e400}', "a text": b'{"label": "\\u001b[31m"}'},
            **{"100,000 depths": b"[" * 10**5, "two values": b'{"label": 1, "label": 9}', "no JSON": b"label: 1"},
        }.items()
    },
    "a picture of 60,000 pixels a side": _tar({"0.png": png(60_000, 60_000), "0.cls": b"1"}),
    "a picture in PostScript": _tar({"0.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n(touch ran) system\n", "0.cls": b"1"}),
    "a picture of nothing": _tar({"0.png": b"", "0.cls": b"1"}),
}
PATTERNS: Contents = {
    "a range of 10⁹ names": b"train-{0..1000000000}.tar",
    "a range of 5,000 digits": b"train-{0.." + b"9" * 900 + b"}.tar",
    "ranges of ranges": b"{0..9}" * 100 + b".tar",
    "commas of commas": b"{a,b}" * 100 + b".tar",
    "braces in braces": b"{" * 400 + b"0..9" + b"}" * 400 + b".tar",
    "a range that falls": b"train-{9..0}.tar",
    "half a brace": b"train-{0..9.tar",
    "61 patterns": b"train-0000.tar::" * 60 + b"train-0000.tar",
    "the folder above": b"../input/train-0000.tar",
    "an absolute path": b"/etc/passwd.tar",
    "an absolute pattern": b"/etc/*.tar",
    "wildcards without end": b"**/" * 200 + b"*.tar",
    "an address": b"http://127.0.0.1:9/x.tar",
    "an address of a file": b"file:///etc/passwd.tar",
    "an address in a range": b"{http,s3}://127.0.0.1:9/x.tar",
    "NUL": b"train-\0.tar",
    "escape codes": ESCAPE.encode() + b".tar",
    "10,000 characters": b"a" * 10_000,
    "nothing": b"",
    "a half bracket": b"train-[0-.tar",
}
INFOS: dict[str, Change] = {
    "files at an address": setting(INFO, "splits.train.filenames.0", "http://127.0.0.1:9/x.tar"),
    "files above the folder": setting(INFO, "splits.train.filenames.0", "../../../etc/passwd"),
    "files of escape codes": setting(INFO, "splits.train.filenames.0", ESCAPE),
    "files with NUL": setting(INFO, "splits.train.filenames.0", "a\0b"),
    "one file 300 times": setting(INFO, "splits.train.filenames", [SHARD] * 300),
    "a file that is a pattern": setting(INFO, "splits.train.filenames", ["train-{0..99999999}.tar"]),
    "a hundred thousand classes": setting(INFO, "classes", list(range(10**5))),
    "classes of escape codes": setting(INFO, "classes", [ESCAPE, ESCAPE * 100, "a" * 10**5]),
    "YAML in place of JSON": moving(INFO, "info.yaml"),
    "YAML that calls code": several(
        lambda path: (path / INFO).unlink(),
        lambda path: (path / "info.yaml").write_text(f"x: !!python/object/apply:tests.fuzz.harness.{CANARY} []"),
    ),
}
SHARDS = written(_shards)

# packed sets

INDEX, IMAGES, TARGETS_FILE = "train/index.json", "train/images-00000.npy", "train/targets.npy"


@cache
def _packed() -> Files:
    images = np.random.default_rng(0).integers(0, 256, (COUNT, SIDE, SIDE, 3), np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        pack(Arrays(images, np.arange(COUNT) % 3, "abc", "made-up"), Path(folder) / "train", SIDE, shard=5, workers=1)
        return files_in(Path(folder))


def _read_packed(path: Path) -> str:
    return _read_set(Dataset("packed", str(path), validation="train", **SIZES))


def _npy(header: bytes, data: bytes = b"", version: bytes = b"\x01\0") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + data


def _array(shape: str, kind: str = "'|u1'", order: str = "False", data: bytes = b"") -> bytes:
    """A header that says this, padded as NumPy pads it."""
    header = f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    return _npy(header.ljust(117) + b"\n", data)


@cache
def _arrays() -> dict[str, bytes]:
    data = bytes(5 * SIDE * SIDE * 3)
    shape = f"(5, {SIDE}, {SIDE}, 3)"
    return {
        "2⁶³ pictures": _array(f"({2**63}, {SIDE}, {SIDE}, 3)", data=data),
        "2⁴⁰ pictures": _array(f"({2**40}, {SIDE}, {SIDE}, 3)", data=data),
        "pictures below zero": _array(f"(-5, {SIDE}, {SIDE}, 3)", data=data),
        "no shape": _array("()", data=data),
        "a shape of a thousand axes": _npy(
            f"{{'descr': '|u1', 'fortran_order': False, 'shape': {(1,) * 999}}}".encode()
        ),
        "a shape that is a text": _array("'x'", data=data),
        "objects": _array(shape, "'|O'", data=data[: -len(PICKLES["a call"])] + PICKLES["a call"]),
        "a type of 2³¹ bytes": _array(shape, "'|S2147483647'", data=data),
        "a type of fields": _array(shape, "[('a', '|u1')]", data=data),
        "a type of code": _array(shape, f"__import__('tests.fuzz.harness').{CANARY}()", data=data),
        "an order of columns": _array(shape, order="True", data=data),
        "a header of code": _npy(f"tests.fuzz.harness.{CANARY}()\n".encode(), data),
        "a header 10,000 deep": _npy(b"(" * 10_000 + b")" * 10_000, data),
        "a header of operators": _npy(b"-" * 60_000 + b"1", data),
        "a header that ends early": _npy(b"{'descr': '|u1'", data),
        "a header of another version": _npy(b"{}", data, b"\x09\0"),
        "a header of 4 GB": b"\x93NUMPY\x02\0\xff\xff\xff\xff" + data,
        "another magic": b"NUMPY\x93" + data,
        "an archive": b"PK\x03\x04" + data,
        "a pickle": PICKLES["a call"],
        "empty": b"",
    }


def _sized(content: bytes) -> bytes:
    """Of the size that the index says, so that its header is read."""
    return content[:668].ljust(128 + 5 * SIDE * SIDE * 3, b"\0")


INDEXES: dict[str, Change] = {
    "more pictures than there are": setting(INDEX, "shards.0.count", 6),
    "2⁴⁰ pictures": setting(INDEX, "shards.0.count", 2**40),
    "pictures below zero": several(setting(INDEX, "shards.0.count", -5), setting(INDEX, "count", -1)),
    "a shard above the folder": setting(INDEX, "shards.0.file", "../train/images-00000.npy"),
    "a shard elsewhere": setting(INDEX, "shards.0.file", "/etc/passwd"),
    "a shard called ..": setting(INDEX, "shards.0.file", ".."),
    "a shard of escape codes": setting(INDEX, "shards.0.file", ESCAPE),
    "a shard twice": setting(INDEX, "shards", [{"file": "a.npy", "count": 1, "size": 236}] * 2),
    "a side of 10⁹": setting(INDEX, "side", 10**9),
    "a side of 0": setting(INDEX, "side", 0),
    "a side of 2⁶³": setting(INDEX, "side", 2**63),
    "2 channels": setting(INDEX, "channels", 2),
    "a channel": setting(INDEX, "channels", 1),
    "no classes": setting(INDEX, "classes", []),
    "one class": setting(INDEX, "classes", ["a"]),
    "classes of escape codes": setting(INDEX, "classes", [ESCAPE, ESCAPE * 1000, "c"]),
    "a hundred thousand classes": setting(INDEX, "classes", [str(i) for i in range(10**5)]),
    "a hundred thousand shards": setting(INDEX, "shards", [{"file": "a", "count": 0, "size": 128}] * 10**5),
    "no shards": several(setting(INDEX, "shards", []), setting(INDEX, "count", 0)),
    "skipped pictures of escape codes": setting(INDEX, "skipped", [[0, ESCAPE, ESCAPE]]),
    "an unknown field": setting(INDEX, "nothing", 1),
    "a picture of 7,000 pixels a side": lambda path: _one_large_picture(path, 7_000),
    "a shard that is a link": several(
        lambda path: (path / IMAGES).rename(path / "elsewhere"), lambda path: (path / IMAGES).symlink_to("../elsewhere")
    ),
    "a shard that is cut off": lambda path: os.truncate(path / IMAGES, 300),
    "a shard that is longer": lambda path: os.truncate(path / IMAGES, 10**6),
    "unfinished": moving(INDEX, "train/unfinished.json"),
    **{
        f"labels of {name}": lambda path, labels=labels: np.save(path / TARGETS_FILE, labels)
        for name, labels in {
            "class 3": np.full(COUNT, 3),
            "class −1": np.full(COUNT, -1),
            "class 2⁶³ − 1": np.full(COUNT, 2**63 - 1),
            "fractions": np.zeros(COUNT),
            "8 bits": np.zeros(COUNT, np.int8),
            "the other byte order": np.zeros(COUNT, ">i8"),
            "another number": np.zeros(COUNT + 1, np.int64),
            "two axes": np.zeros((COUNT, 1), np.int64),
        }.items()
    },
}


def _one_large_picture(path: Path, side: int) -> None:
    """In a file of zeros that takes no room on the disk."""
    index = json.loads((path / INDEX).read_text())
    size = 128 + 3 * side**2
    index |= {"side": side, "count": 1, "shards": [{"file": "images-00000.npy", "count": 1, "size": size}]}
    (path / INDEX).write_text(json.dumps(index))
    (path / IMAGES).write_bytes(_array(f"(1, {side}, {side}, 3)"))
    os.truncate(path / IMAGES, size)
    np.save(path / TARGETS_FILE, np.zeros(1, np.int64))


PACKED = written(_packed)


@cache
def _packing() -> Files:
    """A folder of pictures, and the set that was packed from it."""
    pictures = {f"source/train/{'abc'[i % 3]}/{i}.png": _picture(i) for i in range(COUNT)}
    with tempfile.TemporaryDirectory() as folder, chdir(written(lambda: pictures)(Path(folder))):
        pack_splits(Path("source"), Path("out"), SIDE)
        return files_in(Path())


def _packed_again(place: Path) -> Path:
    """The set that was packed is read; the pictures beside it are as they were."""
    return written(_packing)(place) / "out"


def _read_packing(path: Path) -> None:
    """Packing goes on from what is there, if the pictures have the same names."""
    with chdir(path.parent):
        pack_splits(Path("source"), Path("out"), SIDE)


def _of_packing() -> dict[str, Make]:
    return {
        **changed(_packed_again, INDEXES),
        **contents(_packed_again, INDEX, {"empty": b"", "a list": b"[]", "a bomb": b"[" * 10**5}),
        **odd_files(_packed_again, IMAGES),
        **odd_files(_packed_again, TARGETS_FILE),
        **odd_files(_packed_again, INDEX),
    }


# IDX files

IDX, LABELS, NAMES = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", "classes.txt"


def _idx(shape: tuple[int, ...], data: bytes | None = None, kind: int = 8, axes: int | None = None) -> bytes:
    header = struct.pack(f">BBBB{len(shape)}I", 0, 0, kind, len(shape) if axes is None else axes, *shape)
    return header + (bytes(i % 3 for i in range(int(np.prod(shape)))) if data is None else data)


def _idx_files(zipped: bool = False) -> Files:
    files = {IDX: _idx((COUNT, SIDE, 5)), LABELS: _idx((COUNT,))}
    if zipped:
        files = {f"{name}.gz": gzip.compress(content) for name, content in files.items()}
    return files | {NAMES: b"cat\ndog\n\xc3\xa9lan\n"}


def _colour() -> Files:
    return {IDX.replace("3", "4"): _idx((COUNT, SIDE, 5, 3)), LABELS: _idx((COUNT,))}


def _read_idx(path: Path) -> str:
    in_chans = 3 if any(path.glob("*idx4*")) else 1
    values = {"mean": (0.5,) * in_chans, "std": (0.5,) * in_chans, "in_chans": in_chans}
    return _read_set(Dataset("idx", str(path), **{**SIZES, **values}))


IDX_TEXTS: Contents = {
    **{
        f"{name} in the header": _idx(shape, b"\0" * 270)
        for name, shape in {
            "2³² − 1 of all": (2**32 - 1, 2**32 - 1, 2**32 - 1),
            "2³¹ pictures": (2**31, SIDE, 5),
            "no rows": (COUNT, 0, 5),
            "no pictures": (0, SIDE, 5),
            "a picture more": (COUNT + 1, SIDE, 5),
            "a picture less": (COUNT - 1, SIDE, 5),
            "one picture of 10⁵ rows": (1, 10**5, 10**5),
            "a row of all": (1, 1, 270),
        }.items()
    },
    "four axes in the header": _idx((COUNT, SIDE, 5), axes=4),
    "255 axes in the header": _idx((COUNT, SIDE, 5), axes=255),
    "floats in the header": _idx((COUNT, SIDE, 5), kind=13),
    "another magic": b"\x08\0\0\3" + _idx((COUNT, SIDE, 5))[4:],
    "half a header": _idx((COUNT, SIDE, 5))[:9],
    "half of it": _idx((COUNT, SIDE, 5))[:100],
    "a byte more": _idx((COUNT, SIDE, 5)) + b"x",
    "empty": b"",
    "zipped without its name": gzip.compress(_idx((COUNT, SIDE, 5))),
}
BOMBS: Contents = {
    "256 MB behind it": lambda: gzip.compress(_idx((COUNT, SIDE, 5))) + gzip.compress(bytes(1 << 28), 1),
    "256 MB as the header says": lambda: gzip.compress(_idx((1 << 18, 32, 32), bytes(1 << 28)), 1),
    "2 GB as the header says": lambda: gzip.compress(_idx((1 << 21, 32, 32), bytes(1 << 20)), 1),
    "zipped twice": gzip.compress(gzip.compress(_idx((COUNT, SIDE, 5)))),
    "a wrong checksum": gzip.compress(_idx((COUNT, SIDE, 5)))[:-8] + b"12345678",
    "half of it": gzip.compress(_idx((COUNT, SIDE, 5)))[:30],
    "not zipped": _idx((COUNT, SIDE, 5)),
    "a name of escape codes": b"\x1f\x8b\x08\x08" + bytes(6) + ESCAPE.encode() + b"\0" + gzip.compress(b"")[10:],
    "a thousand empty members": gzip.compress(b"") * 1000 + gzip.compress(_idx((COUNT, SIDE, 5))),
    "a header of no end": b"\x1f\x8b\x08\x08" + bytes(6) + b"x" * 10**6,
    "empty": b"",
}
LABEL_TEXTS: Contents = {
    "class 255": _idx((COUNT,), b"\xff" * COUNT),
    "one class": _idx((COUNT,), bytes(COUNT)),
    "two axes": _idx((COUNT, 1)),
    "2³² − 1 labels": _idx((2**32 - 1,), b""),
}
NAME_TEXTS: Contents = {
    "not UTF-8": b"caf\xe9\n" * 3,
    "too few": b"a",
    "escape codes": f"{ESCAPE}\n{ESCAPE * 100}\nc".encode(),
    "a million names": lambda: b"a\n" * 10**6,
    "a line of four megabytes": lambda: b"a" * (4 << 20),
    "larger than four megabytes": lambda: b"a\n" * (3 << 20),
    "other ends of lines": "a\u2028b\x85c\x0bd".encode(),
    "NUL": bytes(100),
    "empty": b"",
}
GREY = written(_idx_files)
ZIPPED = written(lambda: _idx_files(zipped=True))

# folders


def _pictures() -> Files:
    names = [f"{split}/{label}/{i}" for split in ("train", "val") for label in "abc" for i in range(2)]
    kinds = {".png": "png", ".jpg": "jpeg", ".gif": "gif"}
    files = {}
    for i, name in enumerate(names):
        suffix = list(kinds)[i % len(kinds)]
        content = io.BytesIO()
        Image.new("RGB", (SIDE, SIDE), (i, 0, 9)).save(content, kinds[suffix])
        files[name + suffix] = content.getvalue()
    return files


def _read_folder(path: Path) -> str:
    """As a set of classes, and as a folder of any pictures."""
    text = _read_set(Dataset("folder", str(path), **SIZES))
    open_feed(Dataset("folder", str(path), **SIZES), None, training=True)
    loose = _unlabelled(path, 3)
    for i in range(min(len(loose), 20)):
        try:
            loose.picture(i)
        except ValueError as error:
            text += f"\n{error}"
    return text


def _mutate_folder(path: Path, chance: random.Random) -> None:
    """Rename, move, link or replace a few entries; or change files, as of any input."""
    if chance.random() < 0.3:
        mutations.mutate(path, chance)
        return
    for _ in range(chance.choice((1, 2, 5))):
        entries = sorted(path.rglob("*"))
        entry = chance.choice(entries)
        other = chance.choice([part for part in entries if part.is_dir()] or [path])
        names = ("x.png", "..png", "\udcff.png", f"{ESCAPE}.png", "a\nb.JPG", "é" * 100, "con.gif", " ", "٣.png", "-")
        change = chance.choice(("rename", "rename", "rename", "link", "link", "pipe", "folder", "file", "move"))
        place = other / chance.choice(names)
        if os.path.lexists(place):
            continue
        if change in ("rename", "move"):
            target = entry.parent / place.name if change == "rename" else place
            if not os.path.lexists(target) and not target.is_relative_to(entry):
                entry.rename(target)
        elif change == "link":
            place.symlink_to(chance.choice((path, entry, Path(".."), Path("nothing"), Path("/dev/zero"), place)))
        elif change == "pipe":
            os.mkfifo(place)
        elif change == "folder":
            place.mkdir()
        else:
            place.write_bytes(chance.randbytes(chance.choice((0, 10, 1000))))


def _in(place: str, change: Change) -> Change:
    """A change of a path in the folder of the set."""
    return lambda path: change(path / place)


def _deep(path: Path) -> None:
    """A hundred folders in one another, more than a path of 4,096 characters holds."""
    for _ in range(15):
        path = path / ("d" * 250)
        path.mkdir()
    (path / "x.png").write_bytes(_picture(0))


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket is short
        try:
            opened.bind(path.name)
        finally:
            os.chdir(here)


def _many(path: Path, count: int, name: Callable[[int], str]) -> None:
    for i in range(count):
        (path / name(i)).mkdir()


def _replaced(place: str, change: Change) -> Change:
    """Something else in place of a folder of pictures."""

    def replace(path: Path) -> None:
        (path / place).rename(path / f"{place}-before")
        change(path / place)

    return replace


TREES: dict[str, Change] = {
    "a pipe": _in("val/a/x.png", os.mkfifo),
    "a socket": _in("val/a/x.png", _socket),
    "a link to a device": _in("val/a/x.png", lambda path: path.symlink_to("/dev/zero")),
    "a link to itself": _in("val/a/x.png", lambda path: path.symlink_to("x.png")),
    "a link to nothing": _in("val/a/x.png", lambda path: path.symlink_to("nothing")),
    "a link to a file of the system": _in("val/a/x.png", lambda path: path.symlink_to("/etc/passwd")),
    "a link to the system's folder": _in("val/d", lambda path: path.symlink_to("/proc/self")),
    "links in a circle": _in("val/a/x", lambda path: path.symlink_to("../..")),
    "two links in a circle": several(
        _in("val/a/x", lambda path: path.symlink_to("../../val")),
        _in("val/a/y", lambda path: path.symlink_to("../../val")),
    ),
    "folders as deep as paths are long": _in("val/a", _deep),
    "3,000 classes": _in("val", lambda path: _many(path, 3_000, str)),
    "a picture that is a folder": _in("val/a/x.png", lambda path: path.mkdir()),
    "a picture beside the classes": _in("val/x.png", lambda path: path.write_bytes(_picture(0))),
    "a picture of a terabyte": _in("val/a/x.png", lambda path: (path.touch(), os.truncate(path, 1 << 40))),
    "a picture of no bytes": _in("val/a/x.png", lambda path: path.touch()),
    "pictures that are text": _in("val/a/x.png", lambda path: path.write_text("<svg/>")),
    "classes of escape codes": _in("val/a", lambda path: path.rename(path.parent / ESCAPE)),
    "classes of new lines": _in("val/a", lambda path: path.rename(path.parent / "a\nb\r\tc")),
    "classes that are not UTF-8": _in("val/a", lambda path: path.rename(path.parent / "\udcff\udcfe")),
    "classes from right to left": _in("val/a", lambda path: path.rename(path.parent / "\u202ea\u2066b")),
    "classes that differ by case": _in("val", lambda path: ((path / "A").mkdir(), (path / "A/x.png").touch())),
    "classes of digits of other scripts": _in("val", lambda path: _many(path, 3, lambda i: "٣²𝟛"[i])),
    "a class of 255 characters": _in("val/a", lambda path: path.rename(path.parent / ("x" * 255))),
    "a class of 4,000 digits in parts": _in("val/a", lambda path: path.rename(path.parent / ("9" * 255))),
    "names of escape codes": _in("val/a", lambda path: (path / f"{ESCAPE}.png").write_text("x")),
    "names that are not UTF-8": _in("val/a", lambda path: (path / "\udcff.png").write_text("x")),
    "names of new lines": _in("val/a", lambda path: (path / "a\nb.png").write_text("x")),
    "a name of dots": _in("val/a", lambda path: (path / "....png").write_text("x")),
    "one class": several(
        *(_in(f"val/{name}", lambda path: path.rename(path.parent.parent / path.name)) for name in "bc")
    ),
    "no classes": _replaced("val", lambda path: path.mkdir()),
    "classes without pictures": _replaced("val", lambda path: _many((path.mkdir(), path)[1], 3, str)),
    "a split that is a file": _replaced("val", lambda path: path.touch()),
    "a split that is a pipe": _replaced("val", os.mkfifo),
    "a split that links to itself": _replaced("val", lambda path: path.symlink_to("val")),
    "a split that links to the set": _replaced("val", lambda path: path.symlink_to(".")),
    "a split that is missing": _replaced("val", lambda path: None),
}
FOLDERS = written(_pictures)

TARGETS = (
    Target(
        "shards",
        _read_shards,
        {"with a record": SHARDS, "labels in JSON": written(_labels_in_json)},
        {
            **contents(SHARDS, SHARD, TARS),
            **contents(SHARDS, SPLIT, PATTERNS),
            **contents(SHARDS, INFO, JSON_TEXTS),
            **changed(SHARDS, INFOS),
            **json_values(SHARDS, INFO, ("classes", "splits", "splits.train.filenames")),
            **odd_files(SHARDS, SHARD),
            **odd_files(SHARDS, INFO),
        },
    ),
    Target(
        "packed set",
        _read_packed,
        {"in colour": PACKED},
        {
            **changed(PACKED, INDEXES),
            **contents(PACKED, IMAGES, {name: _sized(content) for name, content in _arrays().items()}),
            **contents(PACKED, TARGETS_FILE, _arrays()),
            **contents(PACKED, INDEX, JSON_TEXTS),
            **json_values(PACKED, INDEX, ("count", "side", "classes", "shards")),
            **odd_files(PACKED, IMAGES),
            **odd_files(PACKED, TARGETS_FILE),
            **odd_files(PACKED, INDEX),
        },
    ),
    Target("packing again", _read_packing, {"folder": _packed_again}, _of_packing()),
    Target(
        "IDX files",
        _read_idx,
        {"grey": GREY, "zipped": ZIPPED, "colour": written(_colour)},
        {
            **contents(GREY, IDX, IDX_TEXTS),
            **contents(ZIPPED, f"{IDX}.gz", BOMBS),
            **contents(GREY, LABELS, LABEL_TEXTS),
            **contents(GREY, NAMES, NAME_TEXTS),
            **odd_files(GREY, IDX),
            **odd_files(ZIPPED, f"{IDX}.gz"),
            **odd_files(GREY, NAMES),
        },
    ),
    Target("image folder", _read_folder, {"pictures": FOLDERS}, changed(FOLDERS, TREES), _mutate_folder),
)
