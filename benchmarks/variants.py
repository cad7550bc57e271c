"""The networks of one size: CRATEs that share their weights, and the timm ViT nearest to them in parameters."""

import math
from copy import deepcopy
from typing import Any

import timm
import torch
from torch import nn

from opencrate.checkpoints.key_maps import to_authors
from opencrate.models import CRATE
from opencrate.models.registry import SIZES
from opencrate.speed import training_forms

from .pseudocode import PaperCRATE

VITS = ("vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224")
JITTER = 0.1  # added to weights that start as ones or zeros, so that leaving one out changes the outputs


def count_parameters(network: nn.Module) -> int:
    return sum(weight.numel() for weight in network.parameters())


def nearest_vit(parameters: int, **arguments: Any) -> str:
    """timm's ViT whose number of parameters is nearest, by ratio."""
    with torch.device("meta"):
        counts = {name: count_parameters(timm.create_model(name, **arguments)) for name in VITS}
    return min(VITS, key=lambda name: abs(math.log(counts[name] / parameters)))


class Family:
    """The networks of one size on one device."""

    def __init__(self, size: str, device: torch.device, seed: int = 0, **arguments: Any) -> None:
        """`arguments` (img_size, num_classes, depth) change both CRATE and ViT."""
        torch.manual_seed(seed)
        self.size, self.device = size, device
        self.crate = CRATE(**{**SIZES[size], **arguments})
        self.vit_name = nearest_vit(count_parameters(self.crate), **arguments)
        self.vit: nn.Module = timm.create_model(self.vit_name, **arguments)
        _jitter(self.crate)
        _jitter(self.vit)

    def build(self, network: str, dtype: torch.dtype = torch.float32) -> nn.Module:
        """A new pseudocode, opencrate, folded or vit, with the family's weights."""
        built: nn.Module
        if network == "vit":
            built = deepcopy(self.vit)
        elif network == "pseudocode":
            built = self._pseudocode()
        else:
            built = deepcopy(self.crate).to(self.device)
            built = built.eval().fold() if network == "folded" else training_forms(built, first_token=True)
        return built.to(self.device, dtype)

    def _pseudocode(self) -> nn.Module:
        config = self.crate.config()
        network: nn.Module = PaperCRATE(
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
