"""Random changes of valid inputs, by bytes and by their structure; the same chance makes the same change."""

import ast
import gzip
import io
import json
import random
import shutil
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ESCAPE = "\x1b]0;taken\x07\x1b[31m"
HOSTILE: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**9, 10**30, 0.0, -0.5, 1e308, 1e-308),
    *(float("nan"), float("inf"), "", "nan", "..", "/etc/passwd", "http://127.0.0.1:9/x", "hf-hub:a/b", "\x00", ESCAPE),
    *("a" * 5000, "ü" * 300, [], {}, [[]], [0] * 1000, {"": {}}, {"a": 1}, [None, "x", -1], "1e9", "10" * 400),
]
YAML_LINES = [
    "x: !!python/object/apply:os.system ['true']",
    "x: !!python/name:os.system",
    "!!timestamp x: 1",
    "x: !!bool maybe",
    "x: !!binary '%%%'",
    "x: !!set {a, b}",
    "x: &a [*a]",
    "<<: [1, 2]",
    "? [a, b]\n: 1",
    "--- \nanother: document",
    "%YAML 9.9",
    "\t- tab",
    "x: 0o777777777777777777777777",
    "x: 1:60:60:60:60:60:60:60",
    "x: .inf",
    "x: 2001-99-99",
]


def mutate(path: Path, chance: random.Random) -> None:
    """Change one to three files of an input in place, or the folder that holds them."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        if path.is_dir() and chance.random() < 0.05:
            mutate_folder(files, chance)
        elif (file := chance.choice(files)).is_file():
            content = file.read_bytes()
            file.write_bytes(mutate_content(file.name, content, chance))


def mutate_folder(files: list[Path], chance: random.Random) -> None:
    """Remove a file, swap two, or put a folder or a link that leads nowhere in its place."""
    file, other = chance.choice(files), chance.choice(files)
    change = chance.choice(("remove", "swap", "folder", "loop"))
    if file == other or not file.is_file() or not other.is_file():
        return
    if change == "swap":
        content = file.read_bytes()
        shutil.copy(other, file)
        other.write_bytes(content)
        return
    file.unlink()
    if change == "folder":
        file.mkdir()
    elif change == "loop":
        file.symlink_to(file)


def mutate_content(name: str, content: bytes, chance: random.Random) -> bytes:
    """A file's content by its structure, if one is known for its name, or by its bytes."""
    structured = [change for suffix, change in STRUCTURED.items() if name.endswith(suffix)]
    if structured and chance.random() < 0.6:
        try:
            return structured[0](content, chance)
        except Exception:  # an earlier change has left no structure, and readers fail in many ways
            pass
    return mutate_bytes(content, chance)


# bytes


def mutate_bytes(content: bytes, chance: random.Random) -> bytes:
    return chance.choice(BYTES)(bytearray(content), chance)


def _flip(content: bytearray, chance: random.Random) -> bytes:
    for _ in range(chance.choice((1, 1, 2, 8, 64))):
        if content:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return bytes(content)


def _truncate(content: bytearray, chance: random.Random) -> bytes:
    return bytes(content[: chance.choice((0, 1, 8, len(content) - 1, chance.randint(0, len(content))))])


def _insert(content: bytearray, chance: random.Random) -> bytes:
    at = chance.randint(0, len(content))
    content[at:at] = chance.choice((chance.randbytes(chance.randint(1, 64)), bytes(1000), ESCAPE.encode(), b"\xff" * 8))
    return bytes(content)


def _remove(content: bytearray, chance: random.Random) -> bytes:
    start, end = _range(content, chance)
    del content[start:end]
    return bytes(content)


def _duplicate(content: bytearray, chance: random.Random) -> bytes:
    start, end = _range(content, chance)
    content[end:end] = content[start:end] * chance.choice((1, 1, 10))
    return bytes(content)


def _splice(content: bytearray, chance: random.Random) -> bytes:
    """One part over another."""
    start, end = _range(content, chance)
    at = chance.randint(0, len(content))
    content[at : at + end - start] = content[start:end]
    return bytes(content)


def _overwrite(content: bytearray, chance: random.Random) -> bytes:
    start, end = _range(content, chance)
    content[start:end] = chance.choice((chance.randbytes, bytes))(end - start)
    return bytes(content)


def _number(content: bytearray, chance: random.Random) -> bytes:
    """An extreme number over some bytes, near the start more often, where headers are."""
    width, order = chance.choice((1, 2, 4, 8)), chance.choice(("little", "big"))
    value = chance.choice((0, 1, 2 ** (8 * width) - 1, 2 ** (8 * width - 1), 2 ** (8 * width - 1) - 1, 255, 2**width))
    at = chance.randint(0, max(0, min(len(content), chance.choice((32, 256, len(content)))) - width))
    content[at : at + width] = value.to_bytes(width, order)
    return bytes(content)


BYTES = (_flip, _flip, _truncate, _insert, _remove, _duplicate, _splice, _overwrite, _number, _number)


def _range(content: bytearray, chance: random.Random) -> tuple[int, int]:
    length = chance.choice((1, 4, 16, 256, max(1, len(content) // 4)))
    start = chance.randint(0, max(0, len(content) - 1))
    return start, min(len(content), start + length)


# structures


def mutate_value(value: Any, chance: random.Random) -> Any:
    """A value of lists and mappings with one part replaced, removed, added, renamed or nested deeply."""
    places = list(_places(value))
    if not places or chance.random() < 0.03:
        return chance.choice([*HOSTILE, [value], {"": value}])
    part, key = chance.choice(places)
    change = chance.choice(("replace", "replace", "replace", "remove", "add", "rename", "nest", "copy"))
    if change == "replace":
        old = part[key]
        near = [old * 10**6, old + 1, -old, old * 2] if isinstance(old, int | float) else []
        part[key] = chance.choice([*HOSTILE, *near, *near])
    elif change == "remove":
        del part[key]
    elif change == "add":
        new = chance.choice(HOSTILE)
        part[chance.choice((f"{key}_", "", "x" * 400, ESCAPE))] = new if isinstance(part, dict) else None
    elif change == "rename" and isinstance(part, dict):
        part[chance.choice((f"{key}s", "", str(key)[:-1], ESCAPE, "é", "y" * 1000))] = part.pop(key)
    elif change == "nest":
        for _ in range(chance.choice((1, 3, 70, 300))):
            part[key] = [part[key]] if chance.random() < 0.5 else {"a": part[key]}
    else:
        other, other_key = chance.choice(places)
        part[key] = json.loads(json.dumps(other[other_key], default=str))
    return value


def _places(value: Any) -> Any:
    """Every list or mapping in it with each of its keys."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from _places(value[key])


def _json(content: bytes, chance: random.Random) -> bytes:
    value = mutate_value(json.loads(content), chance)
    return json.dumps(value, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")


def _json_lines(content: bytes, chance: random.Random) -> bytes:
    lines = content.splitlines()
    at = chance.randrange(len(lines))
    change = chance.choice(("json", "json", "json", "bytes", "remove", "copy", "swap", "join"))
    if change == "json":
        lines[at] = _json(lines[at], chance)
    elif change == "bytes":
        lines[at] = mutate_bytes(lines[at], chance)
    elif change == "remove":
        del lines[at]
    elif change == "copy":
        lines.insert(chance.randint(0, len(lines)), lines[at])
    elif change == "swap":
        other = chance.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    return (b"" if change == "join" else b"\n").join(lines) + b"\n"


def _yaml(content: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.5:
        return yaml.safe_dump(mutate_value(yaml.safe_load(content), chance), allow_unicode=True).encode()
    lines = content.decode().splitlines()
    lines.insert(chance.randint(0, len(lines)), chance.choice(YAML_LINES))
    if chance.random() < 0.5:
        at = chance.randrange(len(lines))
        name = lines[at].partition(":")[0]
        lines[at] = f"{name}: {chance.choice(YAML_LINES).partition(': ')[2]}"
    return "\n".join(lines).encode()


def _safetensors(content: bytes, chance: random.Random) -> bytes:
    (length,) = struct.unpack("<Q", content[:8])
    header, data = content[8 : 8 + length], content[8 + length :]
    change = chance.choice(("header", "header", "length", "data"))
    if change == "header":
        header = _json(header, chance)
        length = len(header)
    elif change == "length":
        length = chance.choice((0, 1, length + 1, 2**31, 2**63, 2**64 - 1, chance.randrange(2 * length)))
    else:
        data = mutate_bytes(data, chance)
    return struct.pack("<Q", length) + header + data


def _zip(content: bytes, chance: random.Random) -> bytes:
    """A member changed, with its checksum; or members removed, doubled, renamed or compressed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    at = chance.randrange(len(members))
    name, inside = members[at]
    change = chance.choice(("content", "content", "content", "pickle", "remove", "double", "rename", "swap"))
    if change == "content":
        members[at] = (name, mutate_bytes(inside, chance))
    elif change == "pickle":
        members = [(n, mutate_bytes(c, chance) if n.endswith("data.pkl") else c) for n, c in members]
    elif change == "remove":
        del members[at]
    elif change == "double":
        members.append((name, mutate_bytes(inside, chance)))
    elif change == "rename":
        members[at] = (chance.choice(("../x", "/x", name + "x", ESCAPE, "a/" * 500)), inside)
    else:
        other = chance.randrange(len(members))
        members[at], members[other] = (name, members[other][1]), (members[other][0], inside)
    file = io.BytesIO()
    compression = chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(file, "w", compression) as archive:
        for name, inside in members:  # names may be there twice
            archive.writestr(name, inside)
    return file.getvalue()


def _tar(content: bytes, chance: random.Random) -> bytes:
    """A field of a header changed, with its checksum; or members removed, doubled, or cut short."""
    headers = [at for at in range(0, len(content), 512) if content[at + 257 : at + 262] == b"ustar"]
    at = chance.choice(headers)
    end = next((other for other in headers if other > at), len(content))
    change = chance.choice(("field", "field", "field", "field", "remove", "double", "cut"))
    if change != "field":
        kept = {"remove": b"", "double": 2 * content[at:end], "cut": content[at : (at + end) // 2]}[change]
        return content[:at] + kept + content[end:]
    fields = {0: 100, 100: 8, 124: 12, 124 + 1: 11, 156: 1, 157: 100, 257: 8, 345: 155}
    header, start = bytearray(content[at : at + 512]), chance.choice(list(fields))
    digits = b"".join(chance.choice((b"7", b"0", b" ", b"-", b"\x80", b"\xff", b"\0")) for _ in range(fields[start]))
    texts = (digits, chance.randbytes(fields[start]), b"../" * 33, b"/etc/passwd\0", ESCAPE.encode(), b"xgLKS12345")
    text = chance.choice(texts)[: fields[start]]
    header[start : start + len(text)] = text
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return content[:at] + bytes(header) + content[at + 512 :]


def _gzip(content: bytes, chance: random.Random) -> bytes:
    return gzip.compress(mutate_bytes(gzip.decompress(content), chance), 1)


def _npy(content: bytes, chance: random.Random) -> bytes:
    """Another header; the version and the padding stay."""
    (length,) = struct.unpack("<H", content[8:10])
    header = mutate_value(ast.literal_eval(content[10 : 10 + length].decode()), chance)
    if isinstance(header, dict) and isinstance(header.get("shape"), list):
        header["shape"] = tuple(header["shape"])
    text = repr(header).encode()[:65000].ljust(length - 1) + b"\n"
    return content[:8] + struct.pack("<H", len(text)) + text + content[10 + length :]


def _png(content: bytes, chance: random.Random) -> bytes:
    """A chunk changed, with its checksum; or removed, doubled, moved, or inflated and changed."""
    chunks, at = [], 8
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        chunks.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + length]))
        at += 12 + length
    at = chance.randrange(len(chunks))
    name, inside = chunks[at]
    change = chance.choice(("content", "content", "content", "name", "remove", "double", "move"))
    if change == "content" and name == b"IDAT" and chance.random() < 0.5:
        chunks[at] = (name, zlib.compress(mutate_bytes(zlib.decompress(inside), chance)))
    elif change == "content":
        chunks[at] = (name, mutate_bytes(inside, chance))
    elif change == "name":
        chunks[at] = (chance.choice((b"acTL", b"fdAT", b"tRNS", b"PLTE", b"iCCP", b"eXIf", b"zTXt")), inside)
    elif change == "double":
        chunks.insert(at, (name, inside))
    else:
        del chunks[at]
        if change == "move":
            chunks.insert(chance.randint(0, len(chunks)), (name, inside))
    return content[:8] + b"".join(map(png_chunk, *zip(*chunks, strict=True)))


def png_chunk(name: bytes, inside: bytes) -> bytes:
    return struct.pack(">I", len(inside)) + name + inside + struct.pack(">I", zlib.crc32(name + inside))


# By the end of a file's name; a change that finds no structure raises, and bytes are changed instead.
STRUCTURED: dict[str, Callable[[bytes, random.Random], bytes]] = {
    ".json": _json,
    ".jsonl": _json_lines,
    ".yaml": _yaml,
    ".safetensors": _safetensors,
    ".pt": _zip,
    ".pth": _zip,
    ".pth.tar": _zip,
    ".tar": _tar,
    ".gz": _gzip,
    ".npy": _npy,
    ".png": _png,
}
