"""Writing checkpoints: a folder in timm's Hub layout, a Hub repository, the authors' layout; no file half written."""

import copy
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from huggingface_hub import HfApi
from safetensors import SafetensorError
from timm.models import save_for_hf
from timm.utils import unwrap_model
from torch import nn

from ..files import reason_not_written, replacing, replacing_folder
from ..models.crate import CRATE
from ..models.registry import VARIANTS, default_cfgs
from ..operators import compressions, sparsifications
from .card import UNSTATED, Card, card_text, is_a_persons
from .for_transformers import config_entries, write_processor_and_code
from .intact import seal
from .key_maps import to_authors
from .load import FILE_SUFFIXES, load, nearest_architecture, require_whole


def save_pretrained(
    model: CRATE, directory: str | Path, card: Card | None = UNSTATED, transformers: bool = False
) -> Path:
    """Write `model.safetensors`, `config.json` and the model card `README.md`, unless `card` is None.

    A new folder appears whole, an old one has its files replaced, but not a README.md that a person wrote or edited.
    `transformers` adds what Hugging Face's transformers needs to load the folder without opencrate.
    """
    if not str(directory):
        raise ValueError("a checkpoint needs a folder of its own: give its name")
    directory = Path(directory).expanduser()
    if directory.is_file():
        raise ValueError(f"{directory} is a file: a checkpoint is written into a folder")
    return _save(_to_save(model), directory, card, transformers, f"local-dir:{directory.resolve().name}")


def _save(network: CRATE, directory: Path, card: Card | None, transformers: bool, source: str) -> Path:
    """`source` is what timm loads it from, for the card."""
    if card is not None and card.license:
        network.pretrained_cfg = {**(network.pretrained_cfg or {}), "license": card.license}
    entries = config_entries(network) if transformers else {}
    # transformers 4 asks a file with metadata for its format
    with network_folder(directory, **({"format": "pt"} if transformers else {})) as folder:
        save_for_hf(
            network,
            str(folder),
            model_args=network.config(),
            model_config={**entries, **operator_modules(network.config())},
            safe_serialization=True,
        )
        if transformers:
            write_processor_and_code(network, folder)
        if card is not None and not is_a_persons(directory / "README.md"):
            (folder / "README.md").write_text(card_text(network, card, source, transformers), encoding="utf-8")
    return directory


@contextmanager
def network_folder(directory: Path, **metadata: str) -> Iterator[Path]:
    """A folder for a network in timm's format, which gets its checksum and appears whole in `directory`."""
    try:
        with replacing_folder(directory, last="config.json") as folder:
            yield folder
            seal(folder / "model.safetensors", **metadata)
            # safetensors makes a file that its owner alone may read
            shutil.copymode(folder / "config.json", folder / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise OSError(f"the network could not be written to {directory}: {reason_not_written(error)}") from error


def push_to_hub(
    model: CRATE,
    repo_id: str,
    card: Card = UNSTATED,
    transformers: bool = False,
    private: bool = False,
    token: str | None = None,
    **upload: Any,
) -> Any:
    """Upload what `save_pretrained` writes to a Hub repository, which is made if there is none.

    A card that a person wrote or edited there stays. `upload` goes to huggingface_hub's `upload_folder`: `revision`,
    `create_pr`, `commit_message`, …
    """
    network = _to_save(model)
    if transformers:
        config_entries(network)  # what is refused makes no repository
    api = HfApi(token=token, library_name="opencrate")
    repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id  # with its owner
    with TemporaryDirectory() as scratch:
        folder, revision = Path(scratch), upload.get("revision")
        if api.file_exists(repo_id, "README.md", revision=revision):
            shutil.copyfile(api.hf_hub_download(repo_id, "README.md", revision=revision), folder / "README.md")
        _save(network, folder, card, transformers, f"hf_hub:{repo_id}")
        upload = {"commit_message": "Add model", **upload}
        return api.upload_folder(repo_id=repo_id, folder_path=folder, **upload)


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
    config, record = network.config(), dict(network.pretrained_cfg or {})
    require_whole(network.state_dict(), config, "what is to be saved")
    for half in ("compress", "sparsify"):
        specs = [getattr(layer, half).operator.spec for layer in network.blocks]
        if any(spec != specs[0] for spec in specs):
            raise ValueError(
                f"what is to be saved has layers that {half} in different ways, which no configuration tells"
            )
    record.pop("license", None)  # the weights' licence is the caller's to state
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
