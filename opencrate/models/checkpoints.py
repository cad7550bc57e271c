"""Checkpoints: read ours, a Hub repository's or the paper's authors'; write ours, a Hub repository or the authors'.

Ours is timm's Hub layout: a folder with `model.safetensors` and `config.json`, so that timm reads it too. The authors'
is a `torch.save` of a state dictionary, bare or under `state_dict` or `model`, with or without `module.` in its keys.

A pickle is read with `weights_only=True`, always: a file that needs to run code to be read is refused.
"""

import json
import math
import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import timm
import torch
from timm.models import PretrainedCfg, clean_state_dict, push_to_hf_hub, save_for_hf

from .crate import CRATE
from .layout import StateDict, from_authors, is_authors, is_ours, to_authors
from .registry import SIZES, VARIANTS, default_cfgs

__all__ = ["Checkpoint", "convert", "load", "push_to_hub", "read", "save_authors", "save_pretrained"]

_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_AUTHORS_SUFFIXES = (".pth", ".pt", ".tar", ".bin")
_FILE_SUFFIXES = (*_AUTHORS_SUFFIXES, ".safetensors")
_HUB_ID = re.compile(r"(hf-hub:)?[\w.-]+/[\w.-]+(@[\w./-]+)?")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and found whole: weights in our layout, and the network they belong to."""

    state: StateDict
    architecture: str
    config: dict[str, Any]
    origin: str
    assumed: tuple[str, ...] = ()
    pretrained_cfg: PretrainedCfg | None = None

    def describe(self) -> dict[str, str]:
        """What it is, line by line; `(assumed)` marks what this layout does not tell."""
        network = CRATE(**self.config, device=torch.device("meta"))
        config = network.config()
        size = next((name for name, size in SIZES.items() if size.items() <= config.items()), "custom")

        def told(key: str, text: object) -> str:
            return f"{text} (assumed)" if key in self.assumed else str(text)

        return {
            "size": f"{size}: {config['depth']} layers, dimension {config['embed_dim']}",
            "heads": told("num_heads", f"{config['num_heads']} of dimension {config['head_dim']}"),
            "image": " x ".join(map(str, [*config["img_size"], config["in_chans"]])),
            "patch": " x ".join(map(str, config["patch_size"])),
            "classes": str(config["num_classes"]),
            "pooling": told("global_pool", config["global_pool"] or "none"),
            "compression": _operator(config["compress"], config["compress_args"]),
            "sparsification": _operator(config["sparsify"], config["sparsify_args"]),
            "parameters": f"{sum(weight.numel() for weight in network.parameters()):,}",
            "from": self.origin,
        }

    def build(self) -> CRATE:
        """The network with these weights, in evaluation mode."""
        model = timm.create_model(self.architecture, pretrained_cfg=self.pretrained_cfg, **self.config)
        model.load_state_dict(self.state)
        return cast(CRATE, model.eval())


def load(path: str | Path, num_heads: int | None = None) -> CRATE:
    """The network in a folder, a file or a Hub repository (`owner/name`), in evaluation mode.

    The authors' layout does not tell the number of heads: for sizes that are not the paper's it must be given.
    """
    return read(path, num_heads).build()


def read(path: str | Path, num_heads: int | None = None) -> Checkpoint:
    """Read a checkpoint and check it, without building the network."""
    location = Path(path)
    if location.is_dir():
        found = _read_folder(location)
    elif location.is_file():
        found = _read_file(location, num_heads)
    elif _HUB_ID.fullmatch(str(path)) and location.suffix not in _FILE_SUFFIXES and not location.parent.is_dir():
        found = _read_hub(str(path).removeprefix("hf-hub:"))
    else:
        raise ValueError(f"{path} does not exist")
    if num_heads is not None and found.config["num_heads"] != num_heads:
        raise ValueError(f"{path} has {found.config['num_heads']} heads, not {num_heads}")
    _require_fit(found, str(path))
    return found


def save_pretrained(model: CRATE, directory: str | Path) -> Path:
    """Write `model.safetensors` and `config.json` into the folder, whole or not at all."""
    directory = Path(directory)
    if directory.is_file():
        raise ValueError(f"{directory} is a file: a checkpoint is written into a folder")
    _require_rebuildable(model)
    _refresh_pretrained_cfg(model)
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}-") as scratch:
        save_for_hf(model, scratch, model_args=model.config(), safe_serialization=True)
        for file in Path(scratch).iterdir():
            # safetensors makes a file that its owner alone may read
            shutil.copymode(Path(scratch) / "config.json", file)
        for file in Path(scratch).iterdir():
            file.replace(directory / file.name)
    return directory


def push_to_hub(model: CRATE, repo_id: str, **kwargs: Any) -> Any:
    """Write the network to a Hub repository; keyword arguments are those of `timm.models.push_to_hf_hub`."""
    _require_rebuildable(model)
    _refresh_pretrained_cfg(model)
    return push_to_hf_hub(model, repo_id, model_args=model.config(), safe_serialization=True, **kwargs)


def save_authors(model: CRATE, file: str | Path) -> Path:
    """Write the network as the authors' code would; what their layout cannot say is refused."""
    file, config = Path(file), model.config()
    _require_rebuildable(model)
    theirs = {"compress": "mssa", "sparsify": "ista", "sparsify_args": {"eta": 0.1, "lam": 0.1}, "norm_eps": 1e-5}
    for key, value in theirs.items():
        if config[key] != value:
            raise ValueError(f"the authors' layout has no place for {key}={config[key]!r}: their code has {value!r}")
    if config["num_classes"] == 0:
        raise ValueError("the authors' layout has no place for a network without a classifier")
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}-") as scratch:
        whole = Path(scratch) / file.name
        torch.save({"arch": _architecture(config), "state_dict": to_authors(model.state_dict())}, whole)
        whole.replace(file)
    return file


def convert(source: str | Path, target: str | Path, num_heads: int | None = None) -> Path:
    """Read any checkpoint and write it in the other layout: the authors' for a file name, ours for a folder's."""
    model = load(source, num_heads)
    suffix = Path(target).suffix
    if suffix == ".safetensors":
        raise ValueError(
            f"{target}: our layout is a folder with model.safetensors and config.json; give the folder's name"
        )
    if suffix in _AUTHORS_SUFFIXES:
        return save_authors(model, target)
    return save_pretrained(model, target)


def _read_folder(directory: Path) -> Checkpoint:
    config_file = directory / "config.json"
    if not config_file.is_file():
        raise ValueError(f"{directory} holds no config.json, so it is no checkpoint")
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
        architecture, pretrained_cfg = config["architecture"], PretrainedCfg(**config.get("pretrained_cfg", {}))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{config_file} is not a checkpoint's configuration: {_sentence(error)}") from error
    if architecture not in VARIANTS:
        raise ValueError(f"{config_file} names the architecture {architecture!r}, which is not a CRATE")
    files = [directory / name for name in _WEIGHTS if (directory / name).is_file()]
    if not files:
        raise ValueError(f"{directory} holds none of {', '.join(_WEIGHTS)}")
    state = clean_state_dict(_read_tensors(files[0]))
    # A folder that timm wrote without our arguments has the architecture's, with its own number of classes.
    defaults = {**VARIANTS[architecture], "num_classes": config.get("num_classes", 1000)}
    arguments = {**defaults, **config.get("model_args", {})}
    return Checkpoint(
        state, architecture, arguments, origin=f"Hub layout, {files[0].name}", pretrained_cfg=pretrained_cfg
    )


def _read_hub(repo_id: str) -> Checkpoint:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    name, _, revision = repo_id.partition("@")
    try:
        for file in ("config.json", "model.safetensors"):
            local = hf_hub_download(name, file, revision=revision or None)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ValueError(
            f"{repo_id} is neither a file nor a folder here, nor a Hub repository that can be read: {_sentence(error)}"
        ) from error
    return replace(_read_folder(Path(local).parent), origin=f"Hub repository {repo_id}")


def _read_file(file: Path, num_heads: int | None) -> Checkpoint:
    if file.suffix == ".safetensors" and (file.parent / "config.json").is_file() and file.name in _WEIGHTS:
        return _read_folder(file.parent)
    content = _read_tensors(file)
    extras = {}
    for key in ("state_dict", "model"):
        if isinstance(content.get(key), dict):
            extras = {name: value for name, value in content.items() if name != key}
            content = content[key]
            break
    state = clean_state_dict({key: value for key, value in content.items() if isinstance(value, torch.Tensor)})
    if is_authors(state):
        state, origin = from_authors(state), "the authors' layout"
    elif is_ours(state):
        origin = "opencrate's keys, without a configuration"
    else:
        raise ValueError(f"{file} is not a CRATE checkpoint: it has no patch embedding and class token")
    config, assumed = _config_of(state, num_heads, str(file))
    for name in ("arch", "epoch", "best_acc1"):
        if isinstance(extras.get(name), (str, int, float, torch.Tensor)):
            value = extras[name]
            origin += f", {name} {value.item():.4g}" if isinstance(value, torch.Tensor) else f", {name} {value}"
    return Checkpoint(state, _architecture(config), config, origin, assumed)


def _read_tensors(file: Path) -> dict[str, Any]:
    try:
        if file.suffix == ".safetensors":
            content: Any = safetensors.torch.load_file(file)
        else:
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file fails anywhere in the readers
        if code := re.search(r"GLOBAL (\S+)", str(error)):
            raise ValueError(f"{file} holds code ({code[1]}); only weights are read") from error
        raise ValueError(f"{file} cannot be read as a checkpoint: it is damaged, or holds no weights") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} is not a CRATE checkpoint: it holds a {type(content).__name__}, not named weights")
    return content


def _config_of(state: StateDict, num_heads: int | None, path: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The network that the shapes tell, and what they do not tell and had to be assumed."""
    try:
        embed_dim, patch_dim = state["patch_embed.proj.weight"].shape
        patches = state["pos_embed"].shape[1] - 1
        depth = len({key.split(".")[1] for key in state if key.startswith("blocks.")})
        inner = state["blocks.0.compress.step.UT"].shape[0]
        num_classes = state["head.weight"].shape[0] if "head.weight" in state else 0
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"{path} is not a whole CRATE checkpoint: {_sentence(error)}") from error
    grid = math.isqrt(patches)
    channels = [c for c in (3, 1, 4) if patch_dim % c == 0 and math.isqrt(patch_dim // c) ** 2 == patch_dim // c]
    if grid**2 != patches or not channels:
        raise ValueError(f"{path} has {patches} patches of {patch_dim} values: not a square grid of square patches")
    patch_size = math.isqrt(patch_dim // channels[0])
    assumed = ["global_pool"]
    if num_heads is None:
        known = [size for size in SIZES.values() if (size["depth"], size["embed_dim"]) == (depth, embed_dim)]
        if not known:
            raise ValueError(
                f"{path} has depth {depth} and dimension {embed_dim}, none of the paper's sizes: give num_heads"
            )
        num_heads = known[0]["num_heads"]
        assumed.append("num_heads")
    if num_heads < 1 or inner % num_heads:
        raise ValueError(f"{path} has subspaces of {inner} dimensions in all, which {num_heads} heads do not divide")
    config = {
        "img_size": grid * patch_size,
        "patch_size": patch_size,
        "in_chans": channels[0],
        "num_classes": num_classes,
        "global_pool": "token",
        "embed_dim": embed_dim,
        "depth": depth,
        "num_heads": num_heads,
        "head_dim": inner // num_heads,
    }
    return config, tuple(assumed)


def _require_fit(found: Checkpoint, path: str) -> None:
    """Compare the weights with the network that the configuration makes, before any is built."""
    try:
        expected = CRATE(**found.config, device=torch.device("meta")).state_dict()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} describes no network that can be built: {_sentence(error)}") from error
    problems = [f"{key} is missing" for key in expected.keys() - found.state.keys()]
    problems += [f"{key} is not a weight of it" for key in found.state.keys() - expected.keys()]
    problems += [
        f"{key} has shape {tuple(tensor.shape)} instead of {tuple(expected[key].shape)}"
        for key, tensor in found.state.items()
        if key in expected and tensor.shape != expected[key].shape
    ]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ValueError(f"{path} is not a whole network: {sorted(problems)[0]}{more}")


def _require_rebuildable(model: CRATE) -> None:
    """A network that lost a part (`prune_norm`) is not what its configuration would build."""
    _require_fit(Checkpoint(model.state_dict(), "", model.config(), origin=""), "what is to be saved")


def _architecture(config: dict[str, Any]) -> str:
    """The registered name that comes nearest; the configuration overrides what differs."""

    def differences(name: str) -> int:
        return sum(config[key] not in (value, [value, value]) for key, value in VARIANTS[name].items())

    return min(VARIANTS, key=differences)


def _operator(name: str, options: dict[str, Any]) -> str:
    settings = ", ".join(f"{option}={value}" for option, value in options.items())
    return f"{name} ({settings})" if settings else name


def _refresh_pretrained_cfg(model: CRATE) -> None:
    """Let timm's record of the network say what it is now: a head or an input size may have changed."""
    known = model.pretrained_cfg
    config = model.config()
    record = dict(known) if known else default_cfgs[_architecture(config)].default.to_dict()
    record["architecture"] = record.get("architecture") or _architecture(config)
    record.update(num_classes=model.num_classes, input_size=(config["in_chans"], *config["img_size"]))
    model.pretrained_cfg = model.default_cfg = record


def _sentence(error: Exception) -> str:
    """The first line of another library's error, for the end of a sentence of ours."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
