"""Checkpoints: our folders, files in the authors' layout and ours, a Hub repository's files."""

import io
import json
import struct
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file, save_file

from opencrate import load, save_pretrained
from opencrate.checkpoints import read, save_authors

from ..networks import small
from .crafting import (
    DEEP,
    HUGE,
    JSON_TEXTS,
    PICKLES,
    VALUES,
    Change,
    Files,
    changed,
    contents,
    doubled,
    files_in,
    json_values,
    moving,
    odd_files,
    safetensors,
    setting,
    written,
)
from .harness import Make, Target
from .mutations import ESCAPE, mutate_content

CONFIG, WEIGHTS = "config.json", "model.safetensors"


@cache
def _saved() -> Files:
    with tempfile.TemporaryDirectory() as folder:
        return files_in(save_pretrained(_network(), Path(folder) / "network"))


@cache
def _saved_file(**arguments: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return save_authors(_network(**arguments), Path(folder) / "model.pth").read_bytes()


def _network(**arguments: Any) -> Any:
    return small(**{"depth": 1, "embed_dim": 8, "num_heads": 2, "img_size": 8, **arguments})


FOLDER = written(_saved)


def file(name: str = "model.pth.tar", **arguments: Any) -> Make:
    def make(place: Path) -> Path:
        (place / name).write_bytes(_saved_file(**arguments))
        return place / name

    return make


def _read(path: Path) -> str:
    load(path)
    return "\n".join(read(path).describe().values())


def _read_hub(path: Path) -> str:
    """As from the Hub, with files that a stranger put there."""
    with mock.patch("huggingface_hub.hf_hub_download", lambda repo, name, revision: str(path / name)):
        return _read("somebody/something")


def _mutate_config(path: Path, chance: Random) -> None:
    (path / CONFIG).write_bytes(mutate_content(CONFIG, (path / CONFIG).read_bytes(), chance))


# config.json

ARGUMENTS = ("img_size", "patch_size", "num_classes", "embed_dim", "depth", "num_heads", "compress", "sparsify_args")
RECORD = ("input_size", "mean", "label_names")
CONFIGS: dict[str, Change] = {
    "a network of 2⁶² parameters": setting(CONFIG, "model_args.embed_dim", 2**31),
    "2⁴⁰ classes": setting(CONFIG, "model_args.num_classes", 2**40),
    "pictures of 10⁹ pixels a side": setting(CONFIG, "model_args.img_size", 10**9),
    "ten sizes": setting(CONFIG, "model_args.img_size", [8] * 10),
    "patches larger than pictures": setting(CONFIG, "model_args.patch_size", 64),
    "2³¹ channels": setting(CONFIG, "model_args.in_chans", 2**31),
    "a million iterations of ISTA": setting(CONFIG, "model_args.sparsify_args", {"steps": 10**6}),
    "an unknown option of an operator": setting(CONFIG, "model_args.compress_args", {ESCAPE: 1}),
    "a weight's device": setting(CONFIG, "model_args.device", "cuda:99"),
    "a weight's type": setting(CONFIG, "model_args.dtype", "float64"),
    "an argument of Python's": setting(CONFIG, "model_args.__class__", "x"),
    "self as an argument": setting(CONFIG, "model_args.self", 1),
    "an architecture of timm's": setting(CONFIG, "architecture", "vit_tiny_patch16_224"),
    "an architecture at the Hub": setting(CONFIG, "architecture", "hf-hub:somebody/something"),
    "weights at an address": setting(CONFIG, "pretrained_cfg.url", "http://127.0.0.1:9/model.safetensors"),
    "weights in a file": setting(CONFIG, "pretrained_cfg.file", "/etc/passwd"),
    "weights by a loader": setting(CONFIG, "pretrained_cfg.custom_load", "os.system"),
    "weights at the Hub": setting(CONFIG, "pretrained_cfg.hf_hub_id", "somebody/something"),
    "an unknown field of the record": setting(CONFIG, "pretrained_cfg.nothing", 1),
    "a hundred thousand names of classes": setting(CONFIG, "pretrained_cfg.label_names", [ESCAPE] * 10**5),
    "modules that are paths": setting(CONFIG, "imports", ["../evil", "/tmp/evil.py"]),
    "modules that are code": setting(CONFIG, "imports", ["os; import sys"]),
    "modules with escape codes": setting(CONFIG, "imports", [ESCAPE * 100]),
    "a module in the checkpoint": setting(CONFIG, "imports", ["network.evil"]),
    "a module of a very long name": setting(CONFIG, "imports", ["a" * 10**5]),
    "a relative module": setting(CONFIG, "imports", [".evil"]),
    "modules that are no text": setting(CONFIG, "imports", [1, None]),
    "two depths": doubled(CONFIG, "model_args", '{"depth": 1, "depth": 1000000}'),
    "two architectures": doubled(CONFIG, "architecture", '"\\u001b[31m"'),
    "a size of 5,000 digits": doubled(CONFIG, "model_args", f'{{"embed_dim": {"1" * 4000}}}'),
    "a size of too many digits": doubled(CONFIG, "model_args", f'{{"embed_dim": {HUGE}}}'),
    "no architecture": setting(CONFIG, "architecture", ...),
}

# model.safetensors


def _weights(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Other weights, written by the format's own writer."""

    def replace(path: Path) -> None:
        weights = load_file(path / WEIGHTS)
        change(weights)
        save_file(weights, path / WEIGHTS)

    return replace


def _header(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Another header, before the same bytes."""

    def replace(path: Path) -> None:
        content = (path / WEIGHTS).read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        change(header)
        (path / WEIGHTS).write_bytes(safetensors(header, content[8 + length :]))

    return replace


def _of(name: str, **fields: Any) -> Change:
    return _header(lambda header: header[name].update(fields))


def _filled(value: float) -> Change:
    return _weights(lambda weights: [weight.fill_(value) for weight in weights.values()])


def _typed(dtype: torch.dtype) -> Change:
    return _weights(lambda weights: weights.update({name: weight.to(dtype) for name, weight in weights.items()}))


SAFETENSORS: dict[str, Change] = {
    "weights that are not numbers": _filled(float("nan")),
    "infinite weights": _filled(float("inf")),
    "weights of 8 bits": _typed(torch.float8_e4m3fn),
    "weights in bfloat16": _typed(torch.bfloat16),
    "weights in float64": _typed(torch.float64),
    "complex weights": _typed(torch.complex64),
    "whole numbers as weights": _typed(torch.int64),
    "a million layers": _weights(
        lambda weights: weights.update({f"blocks.{10**6}.norm.weight": torch.zeros(1), "x" * 10**5: torch.zeros(1)})
    ),
    "names with escape codes": _weights(lambda weights: weights.update({ESCAPE * 100: torch.zeros(1)})),
    "a name that is empty": _weights(lambda weights: weights.update({"": torch.zeros(1)})),
    "no weights": _weights(lambda weights: weights.clear()),
    "ten thousand weights": _weights(lambda weights: weights.update({f"{i}": torch.zeros(1) for i in range(10**4)})),
    "weights of no values": _weights(lambda weights: weights.update(cls_token=torch.zeros(1, 0, 8))),
    "a shape of 2⁶³ values": _of("norm.weight", shape=[2**63 - 1]),
    "a shape whose size overflows": _of("norm.weight", shape=[2**32, 2**32]),
    "a shape below zero": _of("norm.weight", shape=[-8]),
    "a shape of a thousand axes": _of("norm.weight", shape=[1] * 999 + [8]),
    "offsets beyond the file": _of("norm.weight", data_offsets=[0, 2**40]),
    "offsets the wrong way": _of("norm.weight", data_offsets=[32, 0]),
    "offsets of another weight": _of("norm.weight", data_offsets=[0, 32]),
    "an unknown type": _of("norm.weight", dtype="F99"),
    "a type that is a list": _of("norm.weight", dtype=["F32"]),
    "a wrong checksum": _header(lambda header: header["__metadata__"].update(sha256=ESCAPE)),
    "metadata that is no text": _header(lambda header: header.update(__metadata__={"a": [1]})),
    "a mebibyte of metadata": _header(lambda header: header["__metadata__"].update(x="y" * 2**20)),
}
FILES = {
    "a header of 2⁶⁴ bytes": safetensors(b"", length=2**64 - 1),
    "a header of 90 MB that is not there": safetensors(b"{}", length=90 * 10**6),
    "a header of spaces": safetensors(b" " * 10**6),
    "a header 100,000 deep": safetensors(b'{"a":' * 10**5),
    "a header with a key twice": safetensors(b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},' * 2 + b"}"),
    "a header that is no JSON": safetensors(b"\x00" * 100),
    "a pickle": PICKLES["a call"],
    "a zip file": b"PK\x05\x06" + bytes(18),
    "empty": b"",
}

# torch's files


def _zipped(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        for name, inside in members.items():
            archive.writestr(name, inside)
    return content.getvalue()


def _members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _remade(change: Callable[[dict[str, bytes]], Any], compression: int = zipfile.ZIP_STORED) -> Change:
    """The zip file with other members."""

    def replace(path: Path) -> None:
        members = _members(path.read_bytes())
        path.write_bytes(_zipped(change(members) or members, compression))

    return replace


def _saving(change: Callable[[dict[str, Any]], Any], new: bool = True) -> Change:
    """Another content, saved by torch."""

    def replace(path: Path) -> None:
        content = torch.load(path, weights_only=False)
        torch.save(change(content) or content, path, _use_new_zipfile_serialization=new)

    return replace


def _state(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda content: content["state_dict"].update({name: value})


def _first(members: dict[str, bytes], suffix: str) -> str:
    return next(name for name in members if name.endswith(suffix))


def _bytes(change: Callable[[bytes], bytes]) -> Change:
    return lambda path: path.write_bytes(change(path.read_bytes()))


QKV = "transformer.layers.0.0.fn.qkv.weight"
TORCH: dict[str, Change] = {
    "weights that are not numbers": _saving(
        lambda content: [weight.fill_(float("nan")) for weight in content["state_dict"].values()] and None
    ),
    "one value expanded to 10¹⁵": _saving(_state(QKV, torch.zeros(1).expand(10**15))),
    "one value expanded to its shape": _saving(_state(QKV, torch.zeros(1).expand(8, 8))),
    "a weight of many axes": _saving(_state(QKV, torch.zeros([1] * 60))),
    "a weight without axes": _saving(_state("mlp_head.0.weight", torch.tensor(1.0))),
    "sparse weights": _saving(_state(QKV, torch.zeros(8, 8).to_sparse())),
    "weights on another device": _saving(_state(QKV, torch.zeros(8, 8, device="meta"))),
    "complex weights": _saving(_state(QKV, torch.zeros(8, 8, dtype=torch.complex64))),
    "weights of 8 bits": _saving(_state(QKV, torch.zeros(8, 8).to(torch.float8_e5m2))),
    "names with escape codes": _saving(_state(ESCAPE * 100, torch.zeros(1))),
    "names of 10⁵ characters": _saving(_state("x" * 10**5, torch.zeros(1))),
    "names that are numbers": _saving(_state(7, torch.zeros(1))),
    "a million layers": _saving(_state(f"transformer.layers.{10**6}.0.norm.weight", torch.zeros(8))),
    "a layer of 5,000 digits": _saving(_state(f"transformer.layers.{HUGE}.0.norm.weight", torch.zeros(8))),
    "wrappers in wrappers": _saving(lambda content: {"model": {"state_dict": {"model": content}}}),
    "module. a thousand times": _saving(
        lambda content: {"module." * 1000 + name: weight for name, weight in content["state_dict"].items()}
    ),
    "no weights": _saving(lambda content: {"state_dict": {}}),
    "a list": _saving(lambda content: [content]),
    "a tensor": _saving(lambda content: torch.ones(1)),
    "the older format": _saving(lambda content: None, new=False),
    "the older format without an end": _bytes(lambda content: content[: len(content) // 2]),
    "an epoch of escape codes": _saving(lambda content: content.update(epoch=ESCAPE * 100, arch=ESCAPE)),
    "an epoch of 10⁶ digits": _saving(lambda content: content.update(epoch=1 << 10**6)),
    "an accuracy that is not a number": _saving(lambda content: content.update(best_acc1=torch.tensor(float("nan")))),
    "an accuracy of many values": _saving(lambda content: content.update(best_acc1=torch.zeros(1).expand(10**12))),
    "a configuration of huge sizes": _saving(lambda content: content["config"].update(embed_dim=2**40, depth=2**40)),
    "a configuration of no sizes": _saving(lambda content: content.update(config={ESCAPE: 1})),
    "a configuration of texts": _saving(lambda content: content.update(config=dict.fromkeys(content["config"], "x"))),
    "a configuration of nothing": _saving(lambda content: content.update(config=dict.fromkeys(content["config"]))),
    "modules that are paths": _saving(lambda content: content.update(imports=["../evil"])),
    "modules that are no list": _saving(lambda content: content.update(imports=ESCAPE)),
    "no pickle": _remade(lambda members: {"a": b"b"}),
    "members of the same name": lambda path: _double(path),
    "a path as its folder": _remade(lambda members: {f"../../{name}": inside for name, inside in members.items()}),
    "an absolute path as its folder": _remade(lambda members: {f"/tmp/{n}": inside for n, inside in members.items()}),
    "a member that is too short": _remade(lambda members: members.update({_first(members, "data/0"): b"1234"})),
    "a member that is missing": _remade(lambda members: members.pop(_first(members, "data/0")) and None),
    "a bomb of zeros": _remade(lambda members: members.update({"model/data/999": bytes(10**8)}), zipfile.ZIP_DEFLATED),
    "a bomb in LZMA": _remade(lambda members: members.update({"model/data/999": bytes(10**7)}), zipfile.ZIP_LZMA),
    "a pickle of zeros": _remade(lambda members: {"m/data.pkl": bytes(10**8)}, zipfile.ZIP_DEFLATED),
    "twenty thousand members": _remade(lambda members: members.update({f"{i}": b"" for i in range(20_000)})),
    "the other byte order": _remade(lambda members: members.update({_first(members, "byteorder"): b"big"})),
    "a member that is encrypted": _bytes(lambda content: _encrypted(content)),
    "a wrong checksum": _bytes(lambda content: content.replace(content[200:204], b"\x00\x01\x02\x03", 1)),
    "a directory of 2³² entries": _bytes(lambda content: content[:-14] + b"\xff" * 14),
    "a text before it": _bytes(lambda content: b"#!/bin/sh\n" + content),
    "a tar file": _bytes(lambda content: b"model".ljust(257, b"\0") + b"ustar\x0000" + bytes(700)),
    "empty": _bytes(lambda content: b""),
    "half of it": _bytes(lambda content: content[: len(content) // 2]),
}


def _encrypted(content: bytes) -> bytes:
    """The first member says that it needs a password."""
    at = content.index(b"PK\x01\x02") + 8
    return content[:at] + b"\x01" + content[at + 1 :]


def _double(path: Path) -> None:
    members = _members(path.read_bytes())
    name = _first(members, "data.pkl")
    with zipfile.ZipFile(path, "a") as archive, mock.patch("warnings.warn"):
        archive.writestr(name, PICKLES["a call"])


def _pickled(name: str) -> dict[str, Make]:
    """Each pickle where torch's format of today has it, and those that are short alone."""
    zipped = {f"zipped pickle: {of}": _zipped({"model/data.pkl": pickle}) for of, pickle in PICKLES.items()}
    return contents(
        file(name), "", zipped | {f"pickle: {of}": pickle for of, pickle in PICKLES.items() if len(pickle) < DEEP}
    )


HUB: dict[str, Change] = {
    name: CONFIGS[name] for name in ("weights by a loader", "weights at an address", "a module in the checkpoint")
} | {
    "modules of the package": setting(CONFIG, "imports", ["opencrate.cli"]),
    "modules of Python's": setting(CONFIG, "imports", ["antigravity"]),
    "an architecture at the Hub": CONFIGS["an architecture at the Hub"],
    "a pickle for weights": moving(WEIGHTS, "pytorch_model.bin"),
    "names of classes with escape codes": setting(CONFIG, "pretrained_cfg.label_names", [ESCAPE] * 5),
}

TARGETS = (
    Target(
        "checkpoint folder",
        _read,
        {"network": FOLDER},
        {
            **changed(FOLDER, SAFETENSORS),
            **contents(FOLDER, WEIGHTS, FILES),
            **odd_files(FOLDER, WEIGHTS),
            **odd_files(FOLDER, CONFIG),
        },
    ),
    Target(
        "config.json",
        _read,
        {"network": FOLDER},
        {
            **changed(FOLDER, CONFIGS),
            **contents(FOLDER, CONFIG, JSON_TEXTS),
            **json_values(FOLDER, CONFIG, ("architecture", "model_args", "pretrained_cfg", "imports"), VALUES),
            **json_values(FOLDER, CONFIG, [f"model_args.{name}" for name in ARGUMENTS]),
            **json_values(FOLDER, CONFIG, [f"pretrained_cfg.{name}" for name in RECORD]),
        },
        _mutate_config,
    ),
    Target(
        "checkpoint file",
        _read,
        {"authors": file(), "pooled": file("model.pt", global_pool="avg")},
        {**changed(file(), TORCH), **_pickled("model.pth")},
    ),
    Target("Hub repository", _read_hub, {"network": FOLDER}, {**changed(FOLDER, HUB), **odd_files(FOLDER, WEIGHTS)}),
)
