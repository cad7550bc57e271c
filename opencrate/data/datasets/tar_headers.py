"""Where the files of a tar file are, in the formats ustar, GNU and pax.

Python's tarfile reserves what a header asks for, and takes minutes for some headers of a few kilobytes.
"""

import re
from collections.abc import Iterator
from typing import BinaryIO

BLOCK = 512
HEADER_BYTES = 1 << 16  # of a long name, or of the records before a file
NAME_BYTES = 1000
REGULAR, WITHOUT_CONTENT = b"\x0007", b"123456"


class TarError(ValueError):
    """What the file is instead of a tar file, for the end of a sentence."""


def read_members(file: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """(name, offset, size) of every regular file, complete up to the block of zeros that ends a tar file."""
    end, at = file.seek(0, 2), 0
    records: dict[bytes, bytes] = {}  # about the next file
    while True:
        file.seek(at)
        header = file.read(BLOCK)
        try:
            if header == bytes(BLOCK):
                return
            kind, content = header[156:157], at + BLOCK
            is_about_next = kind in b"xgLK"
            size = int(records[b"size"]) if b"size" in records and not is_about_next else _number(header[124:136])
            stored = 0 if kind in WITHOUT_CONTENT else size
            if not _is_intact(header) or not 0 <= stored <= end - content:
                raise ValueError("the header is damaged, or the file truncated")
            if is_about_next:
                if size > HEADER_BYTES:
                    raise ValueError("long header")
                text = file.read(size)
                records |= {b"path": text.rstrip(b"\0")} if kind == b"L" else _records(text) if kind == b"x" else {}
            else:
                name = records.get(b"path") or _name(header)
                if kind == b"S" or any(key.startswith(b"GNU.sparse") for key in records) or len(name) > NAME_BYTES:
                    raise ValueError("sparse file, or long name")
                records = {}
        except ValueError as error:
            reason = f"truncated or damaged after {at} bytes" if at else "not a complete, uncompressed tar file"
            raise TarError(reason) from error
        if kind in REGULAR:
            yield name, content, size
        at = content + -(-stored // BLOCK) * BLOCK


def _is_intact(header: bytes) -> bool:
    """Whether the sum of its bytes, with spaces for the field that holds it, is the one that it holds."""
    return len(header) == BLOCK and sum(header) - sum(header[148:156]) + 8 * 32 == _number(header[148:156])


def _number(field: bytes) -> int:
    if field[:1] == b"\x80":  # GNU's, for what octal digits cannot hold
        return int.from_bytes(field[1:])
    digits = field.replace(b"\0", b" ").strip()
    if not re.fullmatch(rb"[0-7]*", digits):
        raise ValueError("not a number")
    return int(digits or b"0", 8)


def _name(header: bytes) -> bytes:
    name, prefix = (header[part].partition(b"\0")[0] for part in (slice(0, 100), slice(345, 500)))
    return prefix + b"/" + name if prefix and header[257:263] == b"ustar\0" else name


def _records(text: bytes) -> dict[bytes, bytes]:
    """Of pax: lines of their own length, a space, key=value."""
    records, at = dict[bytes, bytes](), 0
    while at < len(text):
        length = text[at : at + 8].partition(b" ")[0]
        end = at + int(length) if length.isdigit() else 0
        key, equals, value = text[at + len(length) + 1 : max(0, end - 1)].partition(b"=")
        if not equals or end > len(text):
            raise ValueError("not a record")
        records[key] = value
        at = end
    return records
