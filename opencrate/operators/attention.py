"""Self-attention with one input, which compares the tokens inside each subspace.

    SSA(Z | U_k)  = softmax(scale · V_k V_kᵀ) V_k   with V_k = Z U_k                                       eq. SSA

Tokens are rows, so the paper's softmax over columns is one over rows. Departure: the equation has `scale = 1`; networks
use p^{-1/2}, as the paper's Algorithm 3 does.
"""

from typing import Literal, get_args

import torch
import torch.fx
import torch.nn.functional as F
from timm.models import register_notrace_function
from torch import Tensor

from ..errors import suggestion
from ..objective.rates import project
from ..shapes import Bases, Float, Projections, Tokens
from .kernels.symmetric_attention import is_supported, symmetric_attention

Attention = Literal["auto", "symmetric", "sdpa", "reference"]
ATTENTIONS: tuple[str, ...] = get_args(Attention)
"""How softmax(scale · V_k V_kᵀ) V_k is computed: by our kernel for one input, by torch's for three, or as written.
`auto` is our kernel on CUDA in half precision for LARGE inputs, where it is faster at every length, and torch's
elsewhere."""
LARGE = 2**22  # entries of V; below, launching takes longer than the work, and torch's kernel is launched sooner


def attention_maps(
    V: Projections, scale: float = 1.0, causal: bool = False, queries: int | None = None
) -> Float[Tensor, "*batch k m n"]:
    """softmax(scale · V_k V_kᵀ): row i says with which tokens token i is compressed, in each subspace.

    Of all tokens, or of the first `queries`; `causal` lets token i see tokens j ≤ i only.
    """
    logits = scale * V[..., :queries, :] @ V.mT
    if causal:
        logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), -torch.inf)
    return logits.softmax(-1)


def lift(V: Projections, U: Bases) -> Tokens:
    """Σ_k V_k U_kᵀ: back from the subspaces into the space of the tokens."""
    k, d, p = U.shape
    return V.transpose(-3, -2).flatten(-2) @ U.transpose(1, 2).reshape(k * p, d)


def ssa_reference(Z: Tokens, U: Bases, scale: float = 1.0, causal: bool = False) -> Projections:
    """The definition of SSA, as it stands in the paper."""
    V = project(Z, U)
    return attention_maps(V, scale, causal) @ V


@register_notrace_function
def attend(
    V: Tensor,
    scale: float = 1.0,
    dropout: float = 0.0,
    attention: str = "auto",
    queries: int | None = None,
    causal: bool = False,
) -> Tensor:
    """softmax(scale · V_k V_kᵀ) V_k of projected tokens V (…, n, k, p), the layout in which a projection writes them.

    `attention` is one of ATTENTIONS; `dropout` drops entries of the attention maps, which our kernel does not do.
    `queries` asks for the first so many tokens only, which torch's attention computes. `causal` lets token i see tokens
    j ≤ i only.
    """
    require_attention(attention)
    if attention == "auto":
        fast = is_supported(V) and V.dtype != torch.float32 and dropout == 0 and queries is None and V.numel() >= LARGE
        attention = "symmetric" if fast else "sdpa"
    if attention == "symmetric":
        if dropout > 0:
            raise ValueError(f"symmetric attention has no dropout, got {dropout}; use attention='sdpa'")
        return symmetric_attention(V.reshape(-1, *V.shape[-3:]), scale, causal).view(V.shape)[..., :queries, :, :]
    heads = V.transpose(-3, -2)  # (…, k, n, p)
    if attention == "sdpa":
        asked = heads if queries is None else heads[..., :queries, :]
        result = F.scaled_dot_product_attention(asked, heads, heads, dropout_p=dropout, is_causal=causal, scale=scale)
        return result.transpose(-3, -2)
    maps = attention_maps(heads, scale, causal, queries)
    return (F.dropout(maps, dropout) @ heads).transpose(-3, -2)


torch.fx.wrap("attend")  # symbolic tracing takes it as it is, without looking at the device


def require_attention(attention: str) -> None:
    if attention not in ATTENTIONS:
        raise ValueError(f"unknown attention {attention!r}{suggestion(attention, ATTENTIONS)}")


def ssa(
    Z: Tokens,
    U: Bases,
    scale: float = 1.0,
    dropout: float = 0.0,
    attention: str = "auto",
    queries: int | None = None,
    causal: bool = False,
) -> Float[Tensor, "*batch k m p"]:
    """SSA(Z | U_k) for every k, by `attend`: of all tokens, or of the first `queries`."""
    V = project(Z, U).transpose(-3, -2)
    return attend(V, scale, dropout, attention, queries, causal).transpose(-3, -2)
