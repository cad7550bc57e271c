"""Multi-head subspace self-attention: the paper's compression, and its tied form.

    MSSA(Z | U_[K])      = γ Σ_k SSA(Z | U_k) U_kᵀ                                                  eq. Multi-Head-SSA
    MSSA(Z | U_[K], W)   = [SSA(Z | U_1), …, SSA(Z | U_K)] Wᵀ                                      eq. mssa_trainable_w

Departure: a network's logits are scaled by p^{-1/2}, and the skip around MSSA has weight 1 instead of 1 − κγ.
"""

from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from ..objective.rates import project, rate_scale
from ..shapes import Bases, Float, Tokens
from .attention import attend, attention_maps, lift, ssa
from .base import Certificate, SubspaceCompression, compressions

torch.fx.wrap("attend")  # symbolic tracing takes it as it is; torch.fx looks for it in the module that calls it


def mssa(
    Z: Tokens,
    U: Bases,
    W: Float[Tensor, "d kp"] | None = None,
    bias: Float[Tensor, "d"] | None = None,
    scale: float = 1.0,
    dropout: float = 0.0,
    attention: str = "auto",
) -> Tokens:
    """MSSA(Z | U_[K], W) with a free output map W; without W the heads stand side by side (K·p = d)."""
    heads = ssa(Z, U, scale, dropout, attention).transpose(-3, -2).flatten(-2)  # (…, n, k·p)
    return heads if W is None else F.linear(heads, W, bias)


def mssa_tied(
    Z: Tokens,
    U: Bases,
    eps: float = 0.5,
    scale: float = 1.0,
    dropout: float = 0.0,
    attention: str = "auto",
) -> Tokens:
    """MSSA(Z | U_[K]) = γ Σ_k SSA(Z | U_k) U_kᵀ: the output map is the subspaces themselves."""
    gamma = rate_scale(Z.shape[-2], U.shape[-1], eps)
    return gamma * lift(ssa(Z, U, scale, dropout, attention), U)


class AttentionCompression(SubspaceCompression):
    """A compression that compares tokens by softmax(p^{-1/2} V_k V_kᵀ). `attention` says how that is computed."""

    causal = False
    attention = "auto"

    def __init__(self, dim: int, num_heads: int, attn_drop: float = 0.0, **subspaces: Any) -> None:
        super().__init__(dim, num_heads, **subspaces)
        self.scale, self.attn_drop = self.head_dim**-0.5, attn_drop

    @property
    def dropout(self) -> float:
        return self.attn_drop if self.training else 0.0

    def maps(self, Y: Tensor) -> Tensor | None:
        return attention_maps(project(Y, self.U), self.scale, self.causal)

    def certificates(self) -> tuple[Certificate, ...]:
        """exp(scale · V Vᵀ), entry by entry, is positive semi-definite (Schur); its rows are divided by their sums."""
        if self.causal:
            return ()
        return (Certificate("attention maps average: their eigenvalues are real and lie in [0, 1]"),)


@compressions.register("mssa")
class MSSA(AttentionCompression):
    """[SSA(Y | U_k)]_k Wᵀ + b with a free output map W, as in the paper's networks."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        head_dim: int | None = None,
        bias: bool = True,
        causal: bool = False,
        **attention: Any,
    ) -> None:
        inner = num_heads * (dim // num_heads if head_dim is None else head_dim)
        # One head as wide as the tokens has no output map (the paper's Algorithm 3, `project_out`).
        W = None if num_heads == 1 and inner == dim else nn.Linear(inner, dim, bias)
        super().__init__(dim, num_heads, head_dim=head_dim, **attention)
        self.W, self.causal = W, causal
        if W is not None:
            W.reset_parameters()  # drawn after the bases, as by every version before, so that a seed keeps its network

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.W is not None:
            self.W.reset_parameters()

    def forward(self, Y: Tensor) -> Tensor:
        return self.of_first(Y, None)

    def of_first(self, Y: Tensor, queries: int | None, UT: Tensor | None = None) -> Tensor:
        """The moves of the first `queries` tokens, which are compressed with all the same.

        `UT` takes the place of the module's own where a norm was multiplied into it (speed/norm_folding.py).
        """
        V = F.linear(Y, self.UT if UT is None else UT).unflatten(-1, (self.num_heads, self.head_dim))  # (…, n, k, p)
        heads = attend(V, self.scale, self.dropout, self.attention, queries, self.causal)
        return self.output(self.without_muted(heads.transpose(-3, -2)))

    def output(self, heads: Tensor) -> Tensor:
        """The heads' results (…, k, n, p) → moves (…, n, d)."""
        side_by_side = heads.transpose(-3, -2).flatten(-2)
        return side_by_side if self.W is None else self.W(side_by_side)

    def step(self, y: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        if not self.causal:
            raise ValueError("only a causal network decodes token by token; use compress_args={'causal': True}")
        v = project(y, self.U)
        V = v if state is None else torch.cat([state, v], -2)  # query, key and value are one: one cached tensor a layer
        return self.output(F.scaled_dot_product_attention(v, V, V, scale=self.scale)), V


@compressions.register("mssa_tied")
class TiedMSSA(AttentionCompression):
    """γ Σ_k SSA(Y | U_k) U_kᵀ: the output map is the subspaces themselves."""

    def __init__(self, dim: int, num_heads: int, eps: float = 0.5, **attention: Any) -> None:
        super().__init__(dim, num_heads, **attention)
        self.eps = eps

    def forward(self, Y: Tensor) -> Tensor:
        return mssa_tied(Y, self.active_U, self.eps, self.scale, self.dropout, self.attention)
