"""What is compared: the networks of one size, all CRATEs with the same weights, and the ViT nearest to them.

The pseudocode is no part of the package: it is read from the checkout's benchmarks/, and an installed package has none.
"""

import importlib.util
import math
import sys
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import timm
import torch
from torch import nn

from opencrate.checkpoints.key_maps import to_authors
from opencrate.models import CRATE
from opencrate.models.registry import SIZES
from opencrate.speed import training_forms

__all__ = ["Family", "nearest_vit", "pseudocode"]

PSEUDOCODE = Path(__file__).parent / "pseudocode.py"
VITS = ("vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224")
JITTER = 0.1  # on weights that start as ones or zeros, so that leaving one out is noticed


def pseudocode() -> ModuleType | None:
    """The transcription of the paper's Algorithms 1–3; none outside a checkout."""
    name = "opencrate_pseudocode"
    if name not in sys.modules and PSEUDOCODE.is_file():
        spec = importlib.util.spec_from_file_location(name, PSEUDOCODE)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # where torch.compile looks for a function's module
        spec.loader.exec_module(module)
    return sys.modules.get(name)


def parameters_of(network: nn.Module) -> int:
    return sum(weight.numel() for weight in network.parameters())


def nearest_vit(parameters: int, **arguments: Any) -> str:
    """timm's ViT whose number of parameters is nearest, by ratio."""
    with torch.device("meta"):
        counts = {name: parameters_of(timm.create_model(name, **arguments)) for name in VITS}
    return min(VITS, key=lambda name: abs(math.log(counts[name] / parameters)))


class Family:
    """The networks of one size, on the device, in float32 unless asked otherwise."""

    def __init__(self, size: str, device: torch.device, seed: int = 0, **arguments: Any) -> None:
        """`arguments` change both networks: img_size, num_classes, depth."""
        torch.manual_seed(seed)
        self.size, self.device = size, device
        self.crate = CRATE(**{**SIZES[size], **arguments})
        self.vit_name = nearest_vit(parameters_of(self.crate), **arguments)
        self.vit: nn.Module = timm.create_model(self.vit_name, **arguments)
        _jitter(self.crate)
        _jitter(self.vit)

    def build(self, network: str, dtype: torch.dtype = torch.float32) -> nn.Module:
        """A network of its own, with the family's weights."""
        built: nn.Module
        if network == "vit":
            built = deepcopy(self.vit)
        elif network == "pseudocode":
            built = self._transcribed()
        elif network in ("opencrate", "folded"):
            built = training_forms(deepcopy(self.crate).to(self.device), first_token=True)
            if network == "folded":
                built = self.crate.fold().to(self.device)
        else:  # the definition, where there is no pseudocode
            built = CRATE(**{**self.crate.config(), "attention": "reference"})
            built.load_state_dict(self.crate.state_dict())
        return built.to(self.device, dtype)

    def judge_of(self, network: str) -> str:
        """The plain network whose float64 results decide whether this one's are right."""
        if network == "vit":
            return "vit"
        return "pseudocode" if pseudocode() else "definition"

    def _transcribed(self) -> nn.Module:
        module, config = pseudocode(), self.crate.config()
        if module is None:
            raise ValueError(f"the paper's pseudocode is not at {PSEUDOCODE}")
        network: nn.Module = module.PaperCRATE(
            image_size=tuple(config["img_size"]),
            patch_size=tuple(config["patch_size"]),
            num_classes=config["num_classes"],
            dim=config["embed_dim"],
            depth=config["depth"],
            heads=config["num_heads"],
            dim_head=config["head_dim"],
        )
        network.load_state_dict(to_authors(self.crate.state_dict()))
        return network


def _jitter(network: nn.Module) -> None:
    with torch.no_grad():
        for weight in network.parameters():
            if weight.dim() == 1:
                weight.add_(JITTER * torch.randn_like(weight))
