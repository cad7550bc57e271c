"""From bytes to tokens: an embedding for every value, and learned positions."""

import torch
from torch import Tensor, nn


class ByteEmbed(nn.Module):
    """Bytes (b, n) of at most `length` → tokens Z¹ (b, n, d); `start` is the position of the first."""

    def __init__(self, dim: int, length: int) -> None:
        super().__init__()
        self.values = nn.Embedding(256, dim)
        self.positions = nn.Parameter(torch.empty(length, dim))
        nn.init.normal_(self.values.weight, std=dim**-0.5)
        nn.init.normal_(self.positions, std=dim**-0.5)

    def forward(self, text: Tensor, start: int = 0) -> Tensor:
        end = start + text.shape[-1]
        if end > len(self.positions):
            raise ValueError(f"a text of {end} bytes is longer than the {len(self.positions)} positions of the network")
        return self.values(text) + self.positions[start:end]
