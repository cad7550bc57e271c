"""Which shards a split has, and how many samples each holds.

Sizes come from a file beside the shards (timm's _info.json, info.json or info.yaml, open_clip's sizes.json, the
index.json of webdataset); without one, every shard is read through once, and its size is kept in the user's cache,
~/.cache/opencrate/shards.
"""

import io
import json
import logging
import os
import re
import tempfile
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from ..settings import Dataset
from .pictures import VALIDATION_NAMES
from .remote import fetch, is_remote
from .tars import Index, Reader, Shard

__all__ = ["Sidecar", "expand", "find_shards", "with_sizes"]

log = logging.getLogger("opencrate")

SIDECARS = ("_info.json", "info.json", "info.yaml", "sizes.json", "index.json")


def expand(pattern: str) -> list[str]:
    """The names that a pattern stands for: a-{08..11}.tar, {a,b}.tar, and several patterns joined by ::."""
    if "::" in pattern:
        return [name for part in pattern.split("::") for name in expand(part)]
    found = re.search(r"\{([^{}]*)\}", pattern)
    if not found:
        return [pattern]
    if numbers := re.fullmatch(r"(\d+)\.\.(\d+)", found[1]):
        first, last = numbers.groups()
        width = max(len(first), len(last)) if first[0] == "0" or last[0] == "0" else 0
        inner = [f"{n:0{width}d}" for n in range(int(first), int(last) + 1)]
    else:
        inner = found[1].split(",") if "," in found[1] else []
    if not inner:
        raise ValueError(f"{found[0]} in {pattern!r} is neither a range, as {{0000..0146}}, nor a list, as {{a,b}}")
    return [name for text in inner for name in expand(pattern[: found.start()] + text + pattern[found.end() :])]


@dataclass
class Sidecar:
    """What files beside the shards tell: sizes by address and who says so, splits, classes."""

    sizes: dict[str, tuple[int, str]] = field(default_factory=dict)
    splits: dict[str, list[str]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()

    def add(self, content: Any, folder: str, source: str) -> None:
        """timm's splits with filenames and shard_lengths, webdataset's shardlist, or open_clip's sizes by name."""
        sizes: dict[str, Any] = {}
        if "splits" in content:
            for name, split in content["splits"].items():
                if split.get("alt_label"):
                    log.warning("%s: the labels of the split %s are others, which are not supported", source, name)
                else:
                    self.splits[name] = [_join(folder, shard) for shard in split["filenames"]]
                    sizes.update(zip(split["filenames"], split.get("shard_lengths") or (), strict=False))
        elif "shardlist" in content:
            sizes = {row["url"]: row["nsamples"] for row in content["shardlist"]}
        else:
            sizes = {shard: size for shard, size in content.items() if shard.endswith(".tar")}
        self.sizes.update({_join(folder, shard): (int(size), source) for shard, size in sizes.items()})
        self.classes = self.classes or tuple(map(str, content.get("classes") or content.get("class_names") or ()))


def _join(folder: str, name: str) -> str:
    return name if is_remote(name) or name.startswith("/") else f"{folder}/{name}"


def find_shards(root: str, split: str) -> tuple[list[str], Sidecar]:
    """By pattern, if the split's name holds .tar; else by the name of a split that a sidecar tells, or of a folder."""
    root = root.rstrip("/") if is_remote(root) else str(Path(root).expanduser())
    if not is_remote(root) and not Path(root).is_dir():
        raise ValueError(f"{root} is not a folder: give the one with the shards, --data.root FOLDER")
    sidecar = Sidecar()
    _read_sidecars(root, sidecar)
    names = _matching(root, split) if ".tar" in split else _named(root, split, sidecar)
    addresses = [_join(root, name) for name in names]
    for folder in dict.fromkeys(address.rsplit("/", 1)[0] for address in addresses):
        if folder != root:
            _read_sidecars(folder, sidecar)
    return addresses, sidecar


def _matching(root: str, pattern: str) -> list[str]:
    names = []
    for name in expand(pattern):
        if not any(c in name for c in "*?["):
            names.append(name)
        elif is_remote(root) or is_remote(name):
            raise ValueError(f"{name} cannot be searched for at a remote address: give a range such as {{0000..0146}}")
        else:
            found = sorted(str(path) for path in Path(root).glob(name))
            if not found:
                raise ValueError(f"{root} has no shards {name}")
            names += found
    return names


def _named(root: str, split: str, sidecar: Sidecar) -> list[str]:
    for name in (split, *(VALIDATION_NAMES if split in VALIDATION_NAMES else ())):
        if name in sidecar.splits:
            return sidecar.splits[name]
        if not is_remote(root):
            for pattern in (f"{name}/*.tar", f"{name}-*.tar", f"*-{name}-*.tar"):
                if found := sorted(str(path) for path in Path(root).glob(pattern)):
                    return found
    raise ValueError(f"{root} does not tell the shards of {split!r}: give a pattern such as {split}-{{0000..0146}}.tar")


def _read_sidecars(folder: str, sidecar: Sidecar) -> None:
    for name in SIDECARS:
        source = f"{folder}/{name}"
        content = io.BytesIO()
        try:
            if is_remote(folder):
                fetch(source, content)
            else:
                content.write(Path(source).read_bytes())
        except (FileNotFoundError, PermissionError):
            continue
        text = content.getvalue().decode(errors="replace")
        try:
            sidecar.add(yaml.safe_load(text) if name.endswith(".yaml") else json.loads(text), folder, source)
        except (ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
            raise ValueError(f"{source} does not tell the sizes of shards in a known form") from error


def with_sizes(addresses: list[str], sidecar: Sidecar, data: Dataset, indexes: dict[int, Index]) -> list[Shard]:
    """The shards, sizes from what is told of them, then from the cache, at last from reading them."""
    shards = [Shard(address, *sidecar.sizes.get(address, (-1, ""))) for address in addresses]
    for shard in shards:
        if not is_remote(shard.address) and not Path(shard.address).is_file():
            raise FileNotFoundError(f"the shard {shard.address} does not exist")
    unknown = [i for i, shard in enumerate(shards) if shard.samples < 0]
    if not unknown:
        return shards
    cache = _cache_file(data.root)
    known = _read_cache(cache)
    stamps = {i: _stamp(shards[i].address) for i in unknown}
    entries = {i: known.get(shards[i].address, [None, 0]) for i in unknown}
    missing = [i for i in unknown if entries[i][0] != stamps[i]]
    if missing:
        log.info("counting the samples of %d shards of %s, once", len(missing), data.root)
        with Reader(shards, indexes, data.num_classes) as reader:
            for i, size in zip(missing, reader.pool.map(reader.count, missing), strict=True):
                entries[i] = [stamps[i], size]
        _write_cache(cache, {**known, **{shards[i].address: entries[i] for i in missing}})
    for i, (_, size) in entries.items():
        shards[i] = Shard(shards[i].address, size, str(cache))
    return shards


def _stamp(address: str) -> list[int]:
    """What changes when a local shard does; of a remote one nothing is known but its address."""
    if is_remote(address):
        return []
    stat = Path(address).stat()
    return [stat.st_size, stat.st_mtime_ns]


def _cache_file(root: str) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    key = root if is_remote(root) else str(Path(root).expanduser().resolve())
    return base / "opencrate" / "shards" / f"{sha256(key.encode()).hexdigest()[:16]}.json"


def _read_cache(cache: Path) -> dict[str, Any]:
    try:
        content = json.loads(cache.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_cache(cache: Path, content: dict[str, Any]) -> None:
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=cache.parent, delete=False) as file:
            json.dump(content, file)
        Path(file.name).replace(cache)
    except OSError as error:
        log.warning("the sizes of the shards cannot be kept in %s: %s", cache, error.strerror)
