"""Small families of networks, among them one that computes something else."""

import torch

from benchmarks.variants import Family

SMALL = {"img_size": 32, "depth": 2, "num_classes": 10}


class SmallFamily(Family):
    def __init__(self, size: str = "tiny", device: torch.device | None = None, **arguments) -> None:
        super().__init__(size, device or torch.device("cpu"), **{**SMALL, **arguments})


class BrokenFamily(SmallFamily):
    """Its `opencrate` has another threshold in its last layer."""

    def build(self, network, dtype=torch.float32):
        built = super().build(network, dtype)
        if network == "opencrate":
            built.blocks[-1].sparsify.operator.lam = 0.2
        return built
