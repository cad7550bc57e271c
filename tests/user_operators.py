"""Three operators as a user of the library would write them, registered by importing this module."""

import torch
from torch import nn

from opencrate.objective import lasso
from opencrate.operators import Compression, Sparsification, compressions, solve_lasso, sparsifications


@sparsifications.register("dictionary")
class Dictionary(Sparsification):
    """A code in an overcomplete D by ISTA from zero, added to the tokens through D1."""

    token_wise = True
    aim_name = "LASSO"

    def __init__(self, dim, expansion=4, eta=0.1, lam=0.1, steps=2):
        super().__init__()
        self.eta, self.lam, self.steps = eta, lam, steps
        self.D = nn.Parameter(torch.randn(dim, expansion * dim) * dim**-0.5)
        self.D1 = nn.Parameter(torch.randn(dim, expansion * dim) * dim**-0.5)

    def code(self, Y):
        return solve_lasso(Y, self.D, self.lam, self.steps, self.eta)

    def decode(self, code):
        return code @ self.D1.mT

    def aim(self, Y, code):
        return lasso(code, Y, self.D, self.lam)


@compressions.register("tssa")
class TSSA(Compression):
    """Attention in linear time by token statistics, with a learned temperature."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads, self.proj, self.W = num_heads, nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.temperature = nn.Parameter(torch.ones(num_heads, 1))

    @property
    def U(self):
        return self.proj.weight.view(self.num_heads, -1, self.proj.in_features).mT

    def forward(self, Y):
        V = self.proj(Y).unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)  # (b, k, n, p)
        share = (self.temperature * nn.functional.normalize(V, dim=-2).square().sum(-1)).softmax(-2)  # (b, k, n)
        second = (share / (share.sum(-1, keepdim=True) + 1e-8)).unsqueeze(-2) @ V.square()  # (b, k, 1, p)
        return self.W((-share.unsqueeze(-1) * V / (1 + second)).transpose(-3, -2).flatten(-2))


@sparsifications.register("attention_only")
class AttentionOnly(Sparsification):
    """No second half: the tokens stay as the compression leaves them."""

    normalised = False

    def __init__(self, dim):
        super().__init__()

    def forward(self, Y):
        return torch.zeros_like(Y)
