"""The two halves of a CRATE layer, and the layer.

    Z^{l+1/2} = Z^l + MSSA(LN Z^l | U_[K]^l)          `compress`
    Z^{l+1}   = ISTA(LN Z^{l+1/2} | D^l)              `sparsify`

Departure from the paper's equations, and as in its Algorithm 2: LayerNorm stands before both halves. The skip of the
first half takes the tokens before it; the second has no skip but the one inside ISTA, which takes the tokens after it.
"""

from typing import cast

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from .objective.rates import project
from .operators.compression import Compression, attention_maps, mssa
from .operators.sparsification import Sparsification, ista, ista_matrix
from .speed.norm_folding import absorb, absorbs, normalise, normalise_for_good

__all__ = ["Compress", "Layer", "Sparsify"]


class Compress(nn.Module):
    """Z^l → Z^{l+1/2}: the tokens move as the compression moves LN Z^l."""

    def __init__(self, norm: nn.Module, step: Compression, proj_drop: float = 0.0, drop_path: float = 0.0) -> None:
        super().__init__()
        self.norm = norm
        self.step = step
        self.proj_drop = nn.Dropout(proj_drop)
        self.drop_path = DropPath(drop_path)

    def forward(self, Z: Tensor, queries: int | None = None) -> Tensor:
        """All tokens, or the first `queries` of them, which see all the same."""
        return Z[:, :queries] + self.drop_path(self.proj_drop(self.move(Z, queries)))

    def move(self, Z: Tensor, queries: int | None = None) -> Tensor:
        if self.training and not torch.jit.is_scripting() and self._absorbs(Z):
            return self._absorbed(Z, queries)
        Y = self.norm(Z)
        if queries is not None:
            return self.step(Y, queries)
        return self.step(Y) if self.step.is_increment else self.step(Y) - Y

    @torch.jit.unused
    def _absorbs(self, Z: Tensor) -> bool:
        own = type(self.step) is Compression and self.step.operator is mssa
        return own and absorbs(self.norm, Z, self.step.UT)

    @torch.jit.unused
    def _absorbed(self, Z: Tensor, queries: int | None) -> Tensor:
        """`step(norm(Z))` with the norm's scale and shift inside U."""
        norm = cast(nn.LayerNorm, self.norm)
        return self.step(normalise(Z, norm.eps), queries, absorb(norm, self.step.UT))

    @torch.jit.ignore
    def projections(self, Z: Tensor) -> Tensor:
        """U_kᵀ LN Z^l for every subspace, (b, k, n, p): what the compression compares."""
        return project(self.norm(Z), self.step.U)

    @torch.jit.ignore
    def attention(self, Z: Tensor) -> Tensor:
        """The attention maps of every subspace, (b, k, n, n)."""
        if not self.step.has_attention:
            raise ValueError(f"the compression {self.step.name} has no attention maps")
        return attention_maps(self.projections(Z), self.step.scale)


class Sparsify(nn.Module):
    """Z^{l+1/2} → Z^{l+1}: a sparse code of LN Z^{l+1/2}."""

    def __init__(self, norm: nn.Module, step: Sparsification) -> None:
        super().__init__()
        self.norm = norm
        self.step = step

    def forward(self, Z_half: Tensor) -> Tensor:
        if self.training and not torch.jit.is_scripting() and self._absorbs(Z_half):
            return self._absorbed(Z_half)
        return self.step(self.norm(Z_half))

    @torch.jit.unused
    def _absorbs(self, Z_half: Tensor) -> bool:
        return (
            type(self.step) is Sparsification and self.step.operator is ista and absorbs(self.norm, Z_half, self.step.D)
        )

    @torch.jit.unused
    def _absorbed(self, Z_half: Tensor) -> Tensor:
        """`step(norm(Z_half))` with the norm's scale and shift inside ISTA's one product."""
        norm, eta, lam = cast(nn.LayerNorm, self.norm), self.step.options["eta"], self.step.options["lam"]
        A = absorb(norm, ista_matrix(self.step.D, eta).mT).mT
        return torch.relu(normalise_for_good(Z_half, norm.eps) @ A - eta * lam)


class Layer(nn.Module):
    """Z^l → Z^{l+1}: compress, then sparsify."""

    def __init__(self, compress: Compress, sparsify: Sparsify) -> None:
        super().__init__()
        self.compress = compress
        self.sparsify = sparsify

    def forward(self, Z: Tensor, queries: int | None = None) -> Tensor:
        """Z^{l+1} of all tokens, or of the first `queries` where `has_queries`: the others' is then not computed."""
        return self.sparsify(self.compress(Z, queries))

    @property
    def has_queries(self) -> bool:
        """Whether some tokens can be had alone: the compression offers it, and ISTA treats every token by itself."""
        compress, sparsify = self.compress.step, self.sparsify.step
        return compress.has_queries and compress.is_increment and sparsify.name == "ista"

    @property
    def U(self) -> Tensor:
        """U_[K]^l, (k, d, p)."""
        return self.compress.step.U

    @property
    def D(self) -> Tensor:
        """D^l, (d, d)."""
        return self.sparsify.step.D
