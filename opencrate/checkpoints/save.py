"""Writing checkpoints: a folder in timm's Hub layout, a Hub repository, the authors' layout; no file half written."""

import copy
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from timm.models import push_to_hf_hub, save_for_hf
from timm.utils import unwrap_model
from torch import nn

from ..files import reason_not_written, replacing, replacing_folder
from ..models.crate import CRATE
from ..models.registry import VARIANTS, default_cfgs
from ..operators import compressions, sparsifications
from .intact import seal
from .key_maps import to_authors
from .load import FILE_SUFFIXES, load, nearest_architecture, require_whole


def save_pretrained(model: CRATE, directory: str | Path) -> Path:
    """Write `model.safetensors` and `config.json`: a new folder appears whole, an old one has its files replaced."""
    if not str(directory):
        raise ValueError("a checkpoint needs a folder of its own: give its name")
    directory = Path(directory).expanduser()
    if directory.is_file():
        raise ValueError(f"{directory} is a file: a checkpoint is written into a folder")
    network = _to_save(model)
    with network_folder(directory) as folder:
        save_for_hf(
            network,
            str(folder),
            model_args=network.config(),
            model_config=operator_modules(network.config()),
            safe_serialization=True,
        )
    return directory


@contextmanager
def network_folder(directory: Path) -> Iterator[Path]:
    """A folder for a network in timm's format, which gets its checksum and appears whole in `directory`."""
    try:
        with replacing_folder(directory, last="config.json") as folder:
            yield folder
            seal(folder / "model.safetensors")
            # safetensors makes a file that its owner alone may read
            shutil.copymode(folder / "config.json", folder / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise OSError(f"the network could not be written to {directory}: {reason_not_written(error)}") from error


def push_to_hub(model: CRATE, repo_id: str, **kwargs: Any) -> Any:
    """Write the network to a Hub repository; keyword arguments are those of `timm.models.push_to_hf_hub`."""
    network = _to_save(model)
    kwargs["model_config"] = {**(kwargs.get("model_config") or {}), **operator_modules(network.config())}
    return push_to_hf_hub(network, repo_id, model_args=network.config(), safe_serialization=True, **kwargs)


def save_authors(model: CRATE, file: str | Path) -> Path:
    """Write the network as the authors' code would; what their code cannot do is refused.

    Their file does not tell heads and pooling, which are arguments of their code; `config` beside the weights, which
    they do not read, tells them to `load`.
    """
    network, file = _to_save(model), Path(file).expanduser()
    config = network.config()
    if file.is_dir():
        raise ValueError(f"{file} is a folder: the authors' layout is a file")
    if file.suffix not in FILE_SUFFIXES:
        raise ValueError(f"{file}: a file in the authors' layout ends in {', '.join(FILE_SUFFIXES)}")
    theirs = {
        "compress": "mssa",
        "compress_args": compressions.options("mssa"),
        "sparsify": "ista",
        "sparsify_args": sparsifications.options("ista"),
        "norm": "layernorm",
        "norm_eps": nn.LayerNorm(1).eps,
    }
    for key, value in theirs.items():
        if config[key] != value:
            raise ValueError(f"the authors' layout has no place for {key}={config[key]!r}: their code has {value!r}")
    if config["num_classes"] == 0 or config["global_pool"] == "":
        raise ValueError("the authors' layout has no place for a network without a classifier or without pooling")
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"arch": nearest_architecture(config), "config": config, "state_dict": to_authors(network.state_dict())}
    with replacing(file) as open_file:
        torch.save(content, open_file)
    return file


def convert(source: str | Path, target: str | Path, num_heads: int | None = None, force: bool = False) -> Path:
    """Read any checkpoint and write it in the authors' layout, for a file's name, or in ours, for a folder's.

    A file, or a folder with something in it, is overwritten only with `force`.
    """
    suffix, place = Path(target).suffix, Path(target).expanduser()
    if Path(source).expanduser().resolve() == place.resolve():
        raise ValueError(f"{target} is what would be read: give another name")
    if suffix[1:].isalpha() and suffix not in FILE_SUFFIXES and not place.is_dir():
        known = ", ".join(FILE_SUFFIXES)
        raise ValueError(f"{target}: give a folder's name for our layout, or a file's ({known}) for the authors'")
    if not force and (any(place.iterdir()) if place.is_dir() else place.exists()):
        raise ValueError(f"{target} exists: give another name, or --force to overwrite it")
    model = load(source, num_heads)
    return save_authors(model, target) if suffix in FILE_SUFFIXES else save_pretrained(model, target)


def _to_save(model: CRATE) -> CRATE:
    """A copy that shares all weights, without wrappers, whose record for timm says what the network is now.

    A head or an input size may have changed. What its configuration would not build again is refused: a network with
    a part pruned away, or with layers of different kinds.
    """
    network = copy.copy(unwrap_model(model))
    if not isinstance(network, CRATE):
        raise ValueError(f"can only save a CRATE, got {type(network).__name__}")
    if network.cls_token.is_meta:
        raise ValueError("what is to be saved is on the device meta and has no values")
    config, record = network.config(), network.pretrained_cfg or {}
    require_whole(network.state_dict(), config, "what is to be saved")
    for half in ("compress", "sparsify"):
        specs = [getattr(layer, half).operator.spec for layer in network.blocks]
        if any(spec != specs[0] for spec in specs):
            raise ValueError(
                f"what is to be saved has layers that {half} in different ways, which no configuration tells"
            )
    architecture = record.get("architecture")
    architecture = architecture if architecture in VARIANTS else nearest_architecture(config)
    network.pretrained_cfg = {
        **(record or default_cfgs[architecture].default.to_dict()),
        "architecture": architecture,
        "num_classes": network.num_classes,
        "input_size": (config["in_chans"], *config["img_size"]),
    }
    return network


def operator_modules(config: dict[str, Any]) -> dict[str, list[str]]:
    """The entry of a checkpoint that names the modules of a user's own operators; none for those of this package."""
    operators = (compressions.named(config["compress"]), sparsifications.named(config["sparsify"]))
    modules = {operator.__module__ for operator in operators}
    own = sorted(name for name in modules if name.partition(".")[0] not in ("opencrate", "__main__"))
    return {"imports": own} if own else {}
