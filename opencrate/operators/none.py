"""No sparsification: a network of attention alone."""

import torch
from torch import Tensor

from .base import Sparsification, sparsifications


@sparsifications.register("none")
class NoSparsification(Sparsification):
    """The tokens stay as they are."""

    normalised = False
    token_wise = True

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, Y: Tensor) -> Tensor:
        return torch.zeros_like(Y)
