"""How crafted inputs are made: a valid one with a part of it changed, in tables by what is wrong with it."""

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from .harness import CANARY, Make
from .mutations import ESCAPE

Files = dict[str, bytes]  # of a folder, by their paths in it
Contents = Mapping[
    str, bytes | Callable[[], bytes]
]  # of one file, by what is wrong with them; large ones are made late
Change = Callable[[Path], Any]

HUGE = "9" * 5000  # a number of more digits than Python turns into text
RIGHT_TO_LEFT = "\u202egnp.exe"
VALUES: dict[str, Any] = {
    "nothing": None,
    "yes": True,
    "negative": -1,
    "2⁶³": 2**63,
    "half": 0.5,
    "not a number": float("nan"),
    "infinite": float("inf"),
    "a text": "x",
    "escape codes": ESCAPE * 50,
    "a long text": "x" * 10**5,
    "a path": "/etc/passwd",
    "an address": "http://127.0.0.1:9/x",
    "a list": [0] * 1000,
    "a mapping": {"": {"a": 1}},
    "deep": json.loads("[" * 60 + "]" * 60),
}
FEW = {
    name: VALUES[name] for name in ("nothing", "a text", "escape codes", "2⁶³", "not a number", "a list", "a mapping")
}
JSON_TEXTS: Contents = {
    "empty": b"",
    "null": b"null",
    "a list": b"[]",
    "a number": b"1",
    "a text": b'"x"',
    "an empty mapping": b"{}",
    "a mapping of nothing": b'{"": null}',
    "100,000 lists deep": b"[" * 10**5 + b"]" * 10**5,
    "100,000 mappings deep": b'{"a":' * 10**5 + b"1" + b"}" * 10**5,
    "a number of a million digits": b'{"a": ' + b"9" * 10**6 + b"}",
    "three million values": lambda: b"[" + b"0," * (3 * 10**6) + b"0]",
    "NUL": bytes(1000),
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "UTF-8 with a mark": b"\xef\xbb\xbf{}",
    "not UTF-8": b'{"\xff\xfe": "\xc0\x80"}',
    "lone surrogates": b'{"\\ud800": "\\udfff"}',
    "escape codes": json.dumps({ESCAPE: ESCAPE}).encode(),
    "raw escape codes": f'{{"{ESCAPE}": 1}}'.encode(),
    "half a text": b'{"a": "',
    "two values": b"{} {}",
    "not a number": b'{"a": NaN, "b": -Infinity, "c": 1e999}',
    "YAML": b"a: 1\nb: [2, 3]\n",
}


def written(files: Callable[[], Files], path: str = "input") -> Make:
    """These files, in a folder that is to be read."""

    def make(place: Path) -> Path:
        for name, content in files().items():
            file = place / path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        return place / path

    return make


def files_in(folder: Path) -> Files:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def changed(make: Make, changes: Mapping[str, Change]) -> dict[str, Make]:
    """The input that `make` writes, with each of these changes."""

    def after(change: Change) -> Make:
        def make_changed(place: Path) -> Path:
            path = make(place)
            change(path)
            return path

        return make_changed

    return {name: after(change) for name, change in changes.items()}


def contents(make: Make, file: str, by_name: Contents) -> dict[str, Make]:
    """A file (the input itself if it has no name) with each of these contents."""
    return changed(make, {_named(file, name): _writing(file, content) for name, content in by_name.items()})


def json_values(make: Make, file: str, keys: Iterable[str], values: Mapping[str, Any] = FEW) -> dict[str, Make]:
    """Each value in place of that of each key; "a.b.0" is the path of a key in lists and mappings."""
    pairs = [(key, name) for key in keys for name in values]
    changes = {_named(file, f"{key} is {name}"): setting(file, key, values[name]) for key, name in pairs}
    return changed(make, changes)


def odd_files(make: Make, file: str) -> dict[str, Make]:
    """Something else than a file in its place."""
    changes: dict[str, Change] = {
        "missing": lambda path: None,
        "a folder": lambda path: path.mkdir(),
        "a pipe": os.mkfifo,
        "a link to itself": lambda path: path.symlink_to(path.name),
        "a link to nothing": lambda path: path.symlink_to("nothing"),
        "a link to a device": lambda path: path.symlink_to("/dev/zero"),
        "a link to its folder": lambda path: path.symlink_to("."),
    }

    def instead(change: Change) -> Change:
        def replace(path: Path) -> None:
            (path / file).unlink()
            change(path / file)

        return replace

    return changed(make, {_named(file, name): instead(change) for name, change in changes.items()})


def setting(file: str, key: str, value: Any) -> Change:
    """Change one value of a JSON file, or with the value `...` remove it; numbers that JSON cannot hold are written."""

    def change(path: Path) -> None:
        content = json.loads((path / file).read_bytes())
        *parents, last = [int(part) if part.isdigit() else part for part in key.split(".")]
        part = content
        for parent in parents:
            part = part[parent]
        if value is ...:
            del part[last]
        else:
            part[last] = value
        (path / file).write_text(json.dumps(content))

    return change


def doubled(file: str, key: str, value: str) -> Change:
    """A key of a JSON file twice; the second, which readers take, with this value."""

    def change(path: Path) -> None:
        text = (path / file).read_text().rstrip()
        (path / file).write_text(f'{text[:-1]}, "{key}": {value}}}')

    return change


def several(*changes: Change) -> Change:
    def change(path: Path) -> None:
        for part in changes:
            part(path)

    return change


def moving(file: str, name: str) -> Change:
    def change(path: Path) -> None:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path / file, path / name)

    return change


def _named(file: str, name: str) -> str:
    return f"{file}: {name}" if file else name


def _writing(file: str, content: bytes | Callable[[], bytes]) -> Change:
    return lambda path: (path / file).write_bytes(content if isinstance(content, bytes) else content())


# pickles that would run code, or take memory or time

DEEP = 200_000  # more than the stack of a reader in C holds
_CALL = f"tests.fuzz.harness\n{CANARY}\n".encode()
_TEXTS = [f"tests.fuzz.harness {CANARY}".split()[i].encode() for i in (0, 1)]
_STACK_GLOBAL = b"".join(b"\x8c" + bytes([len(text)]) + text for text in _TEXTS) + b"\x93"


def _long(value: int, width: int) -> bytes:
    return value.to_bytes(width, "little")


PICKLES: Files = {
    "os.system": b"cos\nsystem\n(S'true'\ntR.",
    "posix.system behind a dictionary": b"\x80\x02}X\x01\x00\x00\x00acposix\nsystem\nX\x04\x00\x00\x00true\x85Rs.",
    "a call": b"c" + _CALL + b"(tR.",
    "a call by name from the stack": b"\x80\x04" + _STACK_GLOBAL + b")R.",
    "a call as an instance": b"(i" + _CALL + b".",
    "a call as an object": b"(c" + _CALL + b"o.",
    "a new object": b"\x80\x02c" + _CALL + b")\x81.",
    "a new object with keywords": b"\x80\x04c" + _CALL + b")}\x92.",
    "a state to set": b"\x80\x02cbuiltins\nobject\n)\x81}X\x0c\x00\x00\x00__setstate__c" + _CALL + b"sb.",
    "an extension's code": b"\x80\x02\x82\x01)R.",
    "an unknown persistent name": b"\x80\x02Pos.system\n.",
    "builtins.eval of a text": f"cbuiltins\neval\n(S'{CANARY}()'\ntR.".encode(),
    "builtins.getattr": b"cbuiltins\ngetattr\n(cos\nenviron\nS'clear'\ntR(tR.",
    "torch.load of another file": b"ctorch\nload\n(S'/etc/passwd'\ntR.",
    "torch.hub.load": b"ctorch.hub\nload\n(S'a/b'\nS'c'\ntR.",
    "a tensor of a function": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(NNNNtR.",
    "nothing but an end": b".",
    "empty": b"",
    "a protocol of the future": b"\x80\xffN.",
    "a list that holds itself": b"\x80\x02]q\x00h\x00a.",
    "a mapping that holds itself": b"\x80\x02}q\x00X\x05\x00\x00\x00modelh\x00s.",
    "a tuple of 2¹⁰⁰ parts": b"\x80\x02)" + b"2\x86" * 100 + b".",
    "a tuple 200,000 deep": b"\x80\x02)" + b"\x85" * DEEP + b".",
    "200,000 marks": b"\x80\x02" + b"(" * DEEP + b"t.",
    "a number of 10⁶ bytes": b"\x80\x02}X\x05\x00\x00\x00epoch\x8b" + _long(10**6, 4) + b"\x7f" * 10**6 + b"s.",
    "a number of 2³¹ bytes": b"\x80\x02\x8b" + _long(2**31 - 1, 4) + b"\x01.",
    "a negative length": b"\x80\x02\x8b" + _long(2**32 - 1, 4) + b"\x01.",
    "a text of 2⁶³ bytes": b"\x80\x04\x8d" + _long(2**63 - 1, 8) + b".",
    "bytes of 2⁴⁰": b"\x80\x04\x8e" + _long(2**40, 8) + b".",
    "a byte array of 10¹²": b"\x80\x05\x96" + _long(10**12, 8) + b".",
    "a frame of 2⁶³ bytes": b"\x80\x04\x95" + _long(2**63 - 1, 8) + b"N.",
    "a memo's place of 2³²": b"\x80\x02}r" + _long(2**32 - 1, 4) + b".",
    "a memo's place that is not there": b"\x80\x02h\x07.",
    "a set 200,000 deep": b"\x80\x04\x8f()" + b"\x85" * DEEP + b"\x90.",
    "a key 200,000 deep": b"\x80\x02}()" + b"\x85" * DEEP + b"K\x01u.",
    "a buffer from outside": b"\x80\x05\x97.",
    "text that is not UTF-8": b"\x80\x02}X\x02\x00\x00\x00\xff\xfeK\x01s.",
    "a number in letters": b"Ix\n.",
}


def safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A file of this header, given as text or as values."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data
