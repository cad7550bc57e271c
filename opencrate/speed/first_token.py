"""The last layer for the class token alone, where the loss sees no other token."""

from torch import Tensor

from ..layers import Layer
from .norm_folding import NormFoldedMSSA


class FirstTokenLayer(Layer):
    """Z^L → the first token of Z^{L+1} in training; all tokens in evaluation, for whoever looks.

    The compression compares that token with all others; the sparsification treats every token by itself.
    """

    compress: NormFoldedMSSA

    def forward(self, Z: Tensor) -> Tensor:
        return self.sparsify(self.compress(Z, 1)) if self.training else super().forward(Z)
