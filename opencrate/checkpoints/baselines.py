"""Networks of timm that are no CRATE, in timm's own Hub layout: the baselines."""

import json
from pathlib import Path
from typing import Any

import timm
from torch import nn

from ..run_folder import NETWORK_FOLDERS
from .load import load


def load_any(path: str | Path) -> nn.Module:
    """A checkpoint of ours or the authors', or any folder in timm's Hub layout (a baseline), in evaluation mode."""
    folder = Path(path).expanduser()
    for inside in ("", *NETWORK_FOLDERS):  # the folder itself, or a run's
        if (folder / inside / "config.json").is_file():
            return _baseline(folder / inside) or load(folder / inside)
    return load(path)


def _baseline(folder: Path) -> nn.Module | None:
    """The network in a folder that timm wrote, if it is another than ours."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if str(config["architecture"]).startswith("crate_"):
            return None
    except (ValueError, KeyError, TypeError):
        return None  # `load` says what is wrong
    try:
        model: Any = timm.create_model(f"local-dir:{folder}", pretrained=True)
    except Exception as error:  # a damaged file fails anywhere in the readers
        raise ValueError(f"{folder} cannot be read as a checkpoint: {' '.join(str(error).split())}") from error
    model.built_with = config.get("model_args", {})
    return model.eval()
