"""Reading checkpoints: ours, a Hub repository's, or the paper's authors'.

Ours is timm's Hub layout: a folder with `model.safetensors` and `config.json`. The authors' is a `torch.save` of a
state dictionary, bare or under `state_dict` or `model`, with or without `module.` in its keys; what it does not tell is
assumed, and said to be. A file is not trusted: shapes are compared before a tensor is read, no pickle runs code
(`torch_files`), and whatever is wrong is one sentence, a ValueError. Operators of a user's own are registered by
modules that `config.json` names (`imports`): those of a local checkpoint are imported, by their dotted names and from
where Python or the current folder has them; those of a Hub repository never are.
"""

import logging
import math
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, cast

import timm
import torch
from pydantic import BaseModel, Field, FiniteFloat
from timm.models import PretrainedCfg, clean_state_dict
from torch import nn

from ..errors import one_line, shown
from ..imports import import_modules, require_module_names
from ..models.crate import CRATE
from ..models.registry import SIZES, VARIANTS
from ..run_folder import NETWORK_FOLDERS
from .intact import Described, described, read_config, read_intact
from .key_maps import StateDict, current_names, from_authors, is_authors, is_ours, square_patch
from .torch_files import HoldsCode, Stored, read_content, read_tensors

FILE_SUFFIXES = (".pth", ".pt", ".tar", ".bin")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_Pixels = Annotated[int, Field(ge=1, le=8192)]
log = logging.getLogger("opencrate")
_HUB_ID = re.compile(r"(hf-hub:)?[\w.-]+/[\w.-]+(@[\w./-]+)?")


class _Record(BaseModel):
    """What is used of timm's record of a network, `pretrained_cfg`."""

    input_size: tuple[_Pixels, _Pixels, _Pixels] = (3, 224, 224)
    mean: list[FiniteFloat] = []
    std: list[FiniteFloat] = []
    crop_pct: Annotated[FiniteFloat, Field(gt=0)] = 1.0
    interpolation: str = ""
    fixed_input_size: bool = False
    num_classes: int = 0
    label_names: list[str] | None = None


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint that was read and is whole: weights in our layout, and the network they belong to."""

    state: dict[str, Any]  # described at first, read when they are known to fit
    file: Path
    architecture: str
    config: dict[str, Any]
    origin: str
    assumed: tuple[str, ...] = ()
    pretrained_cfg: PretrainedCfg | None = None
    imports: tuple[str, ...] = ()  # modules that register its operators

    def describe(self) -> dict[str, str]:
        """What it is, line by line; `(assumed)` marks what this layout does not tell."""
        rows = describe_network(CRATE(**self.config, device=torch.device("meta")))
        marked = {row: f"{rows[row]} (assumed)" for row, key in _TOLD_BY.items() if key in self.assumed}
        return {**rows, **marked, "from": self.origin}

    def build(self) -> CRATE:
        """The network with these weights, in evaluation mode."""
        # Built on `meta`, so that no random number is drawn and the weights keep their type.
        model = timm.create_model(self.architecture, pretrained_cfg=self.pretrained_cfg, device="meta", **self.config)
        model.load_state_dict(self.state, assign=True)
        return cast(CRATE, model.eval())


_TOLD_BY = {  # the configuration's entry behind a row of `describe`
    "heads": "num_heads",
    "image": "img_size",
    "patch": "img_size",
    "pooling": "global_pool",
    "compression": "compress",
    "sparsification": "sparsify",
}


def describe_network(network: CRATE) -> dict[str, str]:
    """Its sizes and operators, line by line."""
    config = network.config()
    size = next((name for name, size in SIZES.items() if size.items() <= config.items()), "custom")
    return {
        "size": f"{size}: {config['depth']} layers, dimension {config['embed_dim']}",
        "heads": f"{config['num_heads']} of dimension {config['head_dim']}",
        "image": " x ".join(map(str, [*config["img_size"], config["in_chans"]])),
        "patch": " x ".join(map(str, config["patch_size"])),
        "classes": str(config["num_classes"]),
        "pooling": config["global_pool"] or "none",
        "compression": _operator(config["compress"], config["compress_args"]),
        "sparsification": _operator(config["sparsify"], config["sparsify_args"]),
        "parameters": f"{sum(weight.numel() for weight in network.parameters()):,}",
    }


def load(path: str | Path, num_heads: int | None = None) -> CRATE:
    """The network in a folder, a file or a Hub repository (`owner/name`), in evaluation mode.

    Weights saved in half precision come as float32. The authors' layout does not tell the number of heads: for sizes
    that are not the paper's it must be given.
    """
    model = read(path, num_heads).build()
    return model.float() if any(weight.dtype.itemsize < 4 for weight in model.parameters()) else model


def load_any(path: str | Path) -> nn.Module:
    """What `load` opens, or another network in a folder that timm wrote (a baseline), in evaluation mode."""
    folder = _network_in(Path(path).expanduser())
    if not (folder / "config.json").is_file():
        return load(path)
    config = read_config(folder)
    if config["architecture"].startswith("crate_"):
        return load(folder)
    try:
        model: Any = timm.create_model(f"local-dir:{folder}", pretrained=True)
    except Exception as error:  # a damaged file fails anywhere in the readers
        raise ValueError(f"{folder} cannot be read as a checkpoint: {' '.join(str(error).split())}") from error
    model.built_with = config.get("model_args", {})
    return model.eval()


def read(path: str | Path, num_heads: int | None = None) -> Checkpoint:
    """Read a checkpoint and check it, without building the network."""
    location = Path(path).expanduser()
    if location.is_dir() and str(path):
        checkpoint = _read_folder(_network_in(location))
    elif location.is_file():
        checkpoint = _read_file(location, num_heads)
    elif (
        _HUB_ID.fullmatch(str(path))
        and location.suffix not in (*FILE_SUFFIXES, ".safetensors")
        and not location.parent.is_dir()
    ):
        checkpoint = _read_hub(str(path).removeprefix("hf-hub:"))
    else:
        raise ValueError(f"{path} {'is not a file' if str(path) and location.exists() else 'does not exist'}")
    if num_heads is not None and checkpoint.config["num_heads"] != num_heads:
        raise ValueError(f"{path} has {checkpoint.config['num_heads']} heads, not {num_heads}")
    if location.exists():  # never for a Hub repository: what a stranger wrote names no code to run
        import_modules(checkpoint.imports)
    require_whole(checkpoint.state, checkpoint.config, str(path), checkpoint.imports)
    return replace(checkpoint, state=_read_weights(checkpoint.file, checkpoint.state))


def _network_in(folder: Path) -> Path:
    """The folder itself or, in that of a run, its last network or its best so far."""
    folders = (folder / inside for inside in ("", *NETWORK_FOLDERS))
    return next((inside for inside in folders if (inside / "config.json").is_file()), folder)


def _read_folder(directory: Path, weights: Path | None = None) -> Checkpoint:
    config, config_file = read_config(directory), directory / "config.json"
    architecture = config["architecture"]
    try:
        # A folder that timm wrote has classes, pooling and, from timm 1.0.31 on, the arguments that were given; the
        # rest is the architecture's.
        arguments: dict[str, Any] = {key: config[key] for key in ("num_classes", "global_pool") if key in config}
        arguments.update(config.get("model_args", {}))
        record = config.get("pretrained_cfg", {})
        record = {**record, **_Record.model_validate(record).model_dump(exclude_unset=True)}
        pretrained_cfg = replace(PretrainedCfg(**record), architecture=architecture)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{config_file} is not a checkpoint's configuration: {_sentence(error)}") from error
    if architecture not in VARIANTS:
        raise ValueError(f"{config_file} names the architecture {shown(architecture)}, which is not a CRATE")
    files = [directory / name for name in _WEIGHTS if (directory / name).is_file()] if weights is None else [weights]
    if not files:
        raise ValueError(f"{directory} holds none of {', '.join(_WEIGHTS)}")
    return Checkpoint(
        _named_weights(_read_content(files[0])),
        files[0],
        architecture,
        {**VARIANTS[architecture], **arguments},
        origin=f"Hub layout, {files[0].name}",
        assumed=tuple(key for key in ("num_heads", "compress", "sparsify") if key not in arguments),
        pretrained_cfg=pretrained_cfg,
        imports=_imports(config, config_file),
    )


def _imports(content: dict[Any, Any], file: Path) -> tuple[str, ...]:
    """The modules that a checkpoint names for its operators."""
    names = content.get("imports", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{file}: imports must be a list of modules, got {shown(names)}")
    try:
        require_module_names(names)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    return tuple(names)


def _read_hub(repo_id: str) -> Checkpoint:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    name, _, revision = repo_id.partition("@")
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.ERROR)  # its retries end in our sentence
    try:
        for file in ("config.json", "model.safetensors"):
            local = hf_hub_download(name, file, revision=revision or None)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ValueError(
            f"{repo_id} is neither a file nor a folder here, nor a Hub repository that can be read: {_sentence(error)}"
        ) from error
    finally:
        log.setLevel(level)
    return replace(_read_folder(Path(local).parent), origin=f"Hub repository {repo_id}")


def _read_file(file: Path, num_heads: int | None) -> Checkpoint:
    if file.name in ("config.json", *_WEIGHTS) and (file.parent / "config.json").is_file():
        return _read_folder(file.parent, None if file.name == "config.json" else file)
    content = _read_content(file)
    wrapped = [content[key] for key in ("state_dict", "model") if isinstance(content.get(key), dict)]
    extras = content if wrapped else {}
    state = _named_weights(wrapped[0] if wrapped else content)
    assumed: tuple[str, ...] = ("img_size", "global_pool")
    if is_authors(state):
        origin = "the authors' layout"
        try:
            state = from_authors(state)
        except ValueError as error:
            raise ValueError(f"{file} is not a CRATE checkpoint: {error}") from error
    elif is_ours(state):
        origin = "opencrate's keys, without a configuration"
        assumed += ("compress", "sparsify")
    else:
        keys = ", ".join(list(state)[:3]) or "none"
        raise ValueError(f"{file} is not a CRATE checkpoint: the first weights in it are {one_line(keys)}")
    config = extras.get("config")  # ours, if `save_authors` or a run wrote the file
    if isinstance(config, dict) and config.keys() >= VARIANTS[min(VARIANTS)].keys():
        assumed = ()
    else:
        config, assumed = _config_of(state, num_heads, str(file)), assumed + ("num_heads",) * (num_heads is None)
    for name in ("arch", "epoch", "best_acc1"):
        value = extras.get(name)
        if isinstance(value, Stored) and value.shape.numel() == 1:
            value = f"{_read_weights(file, {name: value})[name].item():.4g}"
        if isinstance(value, str | float) or (isinstance(value, int) and abs(value) < 2**63):
            origin += f", {name} {one_line(str(value), 60)}"
    return Checkpoint(
        state, file, nearest_architecture(config), config, origin, assumed, imports=_imports(extras, file)
    )


def _read_content(file: Path) -> dict[Any, Any]:
    """What a file of weights holds; tensors are described, and read by `_read_weights`."""
    try:
        content = described(file) if file.suffix == ".safetensors" else read_content(file)
    except HoldsCode as error:
        raise ValueError(f"{file} holds code ({one_line(str(error), 80)}); only weights are read") from error
    except ValueError as error:
        raise ValueError(
            f"{file} cannot be read as a checkpoint: it is damaged, or holds no weights ({error})"
        ) from error
    if not isinstance(content, dict):
        kind = "Tensor" if isinstance(content, Stored) else type(content).__name__
        raise ValueError(f"{file} is not a CRATE checkpoint: it holds a {kind}, not named weights")
    return content


def _read_weights(file: Path, weights: dict[str, Any]) -> StateDict:
    """The weights that a file describes, which must be those that were written."""
    try:
        state = read_intact(file, weights) if file.suffix == ".safetensors" else read_tensors(file, weights)
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    if broken := next((name for name, weight in state.items() if not weight.isfinite().all()), None):
        log.warning("%s: the weight %s has values that are not finite", file, broken)
    return state


def _named_weights(content: dict[Any, Any]) -> dict[str, Any]:
    """The weights in it by their names, without what wrappers put before these."""
    weights = {
        name: value
        for name, value in content.items()
        if isinstance(name, str) and isinstance(value, Stored | Described) and value.is_floating_point()
    }
    for _ in range(4):
        weights = clean_state_dict(weights)
    return current_names(weights)


def _config_of(state: StateDict, num_heads: int | None, path: str) -> dict[str, Any]:
    """The network that the shapes tell, if the picture and its patches are square, in 3 channels or 1.

    Without `num_heads` it is the paper's network of these sizes.
    """
    try:
        embed_dim, patch_dim = state["patch_embed.proj.weight"].shape
        patches = state["pos_embed"].shape[1] - 1
        depth = len({key.split(".")[1] for key in state if key.startswith("blocks.")})
        inner = state["blocks.0.compress.operator.UT"].shape[0]
        num_classes = state["head.weight"].shape[0] if "head.weight" in state else 0
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"{path} is not a whole CRATE checkpoint: {_sentence(error)}") from error
    grid, patch = math.isqrt(max(patches, 0)), square_patch(patch_dim)
    if grid < 1 or grid**2 != patches or patch is None:
        raise ValueError(f"{path} has {patches} patches of {patch_dim} values: not a square grid of square patches")
    in_chans, patch_size = patch
    if num_heads is None:
        known = [size for size in SIZES.values() if (size["depth"], size["embed_dim"]) == (depth, embed_dim)]
        if not known:
            raise ValueError(
                f"{path} has depth {depth} and dimension {embed_dim}, none of the paper's sizes: give num_heads"
            )
        num_heads = known[0]["num_heads"]
    if num_heads < 1 or inner % num_heads:
        raise ValueError(f"{path} has subspaces of {inner} dimensions in all, which {num_heads} heads do not divide")
    return {
        "img_size": grid * patch_size,
        "patch_size": patch_size,
        "in_chans": in_chans,
        "num_classes": num_classes,
        "global_pool": "token",
        "embed_dim": embed_dim,
        "depth": depth,
        "num_heads": num_heads,
        "head_dim": inner // num_heads,
    }


def require_whole(state: StateDict, config: dict[str, Any], path: str, imports: tuple[str, ...] = ()) -> None:
    """Compare the weights with the network that the configuration makes, before any is built."""
    layers, depth = len({name.split(".")[1] for name in state if name.startswith("blocks.")}), config.get("depth")
    if isinstance(depth, int) and depth > max(layers, 1):  # a network of a billion layers would take a while to build
        raise ValueError(f"{path} is not a whole network: it has weights for {layers} of {shown(depth, 30)} layers")
    try:
        expected = CRATE(**config, device=torch.device("meta")).state_dict()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        missing = [name for name in imports if name not in sys.modules]
        hint = f"; import {' and '.join(missing)} first, if you trust it" if missing else ""
        raise ValueError(f"{path} describes no network that can be built: {_sentence(error)}{hint}") from error
    problems = [f"{key} is missing" for key in expected.keys() - state.keys()]
    problems += [f"{one_line(key, 80)} is not a weight of it" for key in state.keys() - expected.keys()]
    problems += [
        f"{key} has shape {shown(tuple(tensor.shape))} instead of {tuple(expected[key].shape)}"
        for key, tensor in state.items()
        if key in expected and tensor.shape != expected[key].shape
    ]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ValueError(f"{path} is not a whole network: {sorted(problems)[0]}{more}")


def nearest_architecture(config: dict[str, Any]) -> str:
    """The registered name that comes nearest; the configuration overrides what differs."""

    def differences(name: str) -> int:
        return sum(config[key] not in (value, [value, value]) for key, value in VARIANTS[name].items())

    return min(VARIANTS, key=differences)


def _operator(name: str, options: dict[str, Any]) -> str:
    settings = ", ".join(f"{option}={value}" for option, value in options.items())
    return f"{name} ({settings})" if settings else name


def _sentence(error: Exception) -> str:
    """Another library's error, for the end of a sentence of ours."""
    text = str(error).strip()
    return one_line(f"{type(error).__name__}: {text.splitlines()[0]}", 120) if text else type(error).__name__
