"""The start of a run: its recipe and its origin are written to its folder, which takes no other recipe."""

import os
import platform
import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision

from ..files import write_atomically, write_json
from ..recipes import Recipe, differences, recipe_text
from ..run_folder import NETWORK_FOLDERS, RunFolder
from ..run_recipe import recipe_of


def begin(folder: RunFolder, recipe: Recipe, options: dict[str, Any], resume: bool) -> None:
    """Write recipe.yaml and add this start to run.json; a folder that holds a run with another recipe is refused."""
    if resume and not (folder.has_begun() or folder.recipe.is_file()):
        raise ValueError(f"there is no run to resume in {folder.path}")
    if folder.has_begun() and folder.recipe.is_file():
        if changed := differences(recipe_of(folder), recipe):
            raise ValueError(
                f"{folder.path} holds a run with another recipe ({', '.join(changed[:3])}"
                f"{', …' if len(changed) > 3 else ''}): give this one a folder of its own, --out"
            )
    else:  # a new run, or one that never reached a checkpoint
        write_atomically(folder.recipe, recipe_text(recipe))
    for name in NETWORK_FOLDERS:  # temporary folders of a process that was killed while it saved a network
        for leftover in [*folder.path.glob(f".{name}-*"), *folder.path.glob(f"{name}/.{name}-*")]:
            shutil.rmtree(leftover, ignore_errors=True)
    if not folder.result.is_file():  # a start after the end computes nothing, so it made nothing of the run
        write_json(folder.record, [*folder.starts(), provenance(recipe.seed, options)])


def provenance(seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """Where results come from: command, versions, revision, seed, hardware."""
    from .. import __version__

    cuda = torch.cuda.is_available()
    return {
        "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "command": shlex.join(sys.orig_argv),
        "seed": seed,
        "options": options,
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "versions": {
            "opencrate": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "timm": timm.__version__,
            "cuda": torch.version.cuda if cuda else None,
        },
        "git": _revision(),
        "hardware": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
        },
    }


def _revision() -> str | None:
    """The git revision of this package, with a + if its files have changed since; none outside a repository."""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
