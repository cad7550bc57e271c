"""Compression: one step that lowers R^c(Z; U_[K]), exactly or by attention.

    SSA(Z | U_k)         = softmax(V_k V_kᵀ) V_k   with V_k = Z U_k                      eq. SSA
    MSSA(Z | U_[K])      = γ Σ_k SSA(Z | U_k) U_kᵀ                                       eq. Multi-Head-SSA
    MSSA(Z | U_[K], W)   = [SSA(Z | U_1), …, SSA(Z | U_K)] Wᵀ                            eq. mssa_trainable_w
    Z − κ∇R^c(Z)         ≈ (1 − κγ) Z + κγ MSSA(Z | U_[K])                               eq. gd-mcr-parts

Tokens are rows, so the paper's softmax over columns is one over rows. Departures: the equations have `scale = 1`;
networks use p^{-1/2}, as the paper's Algorithm 3 does. The skip of a network's layer has weight 1 and takes the tokens
before LayerNorm: to them it adds `mssa(LN Z)`, or the move `step(LN Z) − LN Z` of the other operators.
"""

from typing import Any, Literal, get_args

import torch
import torch.fx
import torch.nn.functional as F
from timm.models import register_notrace_function
from torch import Tensor, nn

from ..errors import require_positive, suggestion
from ..objective.rates import project, rate_scale
from ..shapes import Float
from .symmetric_attention import is_supported, symmetric_attention
from .table import OperatorTable, Options

__all__ = [
    "ATTENTIONS",
    "COMPRESSIONS",
    "Attention",
    "Compression",
    "attend",
    "attention_maps",
    "gradient_step",
    "lift",
    "mixture_step",
    "mssa",
    "mssa_tied",
    "neumann_step",
    "register",
    "softmax_step",
    "ssa",
    "ssa_reference",
]

COMPRESSIONS = OperatorTable(
    "compression", weight="U", supplied=("W", "bias", "scale", "dropout", "attention", "queries")
)
register = COMPRESSIONS.register

Attention = Literal["auto", "symmetric", "sdpa", "reference"]
ATTENTIONS: tuple[str, ...] = get_args(Attention)
"""How softmax(scale · V_k V_kᵀ) V_k is computed: by our kernel for one input, by torch's for three, as it is written;
`auto` is our kernel on CUDA in half precision for LARGE inputs, where it was found faster at every length, and torch's
elsewhere."""
LARGE = 2**22  # entries of V: below, launching takes longer than the work, and torch's is launched sooner


def attention_maps(V: Float[Tensor, "*batch k n p"], scale: float = 1.0) -> Float[Tensor, "*batch k n n"]:
    """softmax(scale · V_k V_kᵀ): row i says with which tokens token i is compressed, in each subspace."""
    return (scale * V @ V.mT).softmax(-1)


def lift(V: Float[Tensor, "*batch k n p"], U: Float[Tensor, "k d p"]) -> Float[Tensor, "*batch n d"]:
    """Σ_k V_k U_kᵀ: back from the subspaces into the space of the tokens."""
    k, d, p = U.shape
    return V.transpose(-3, -2).flatten(-2) @ U.transpose(1, 2).reshape(k * p, d)


def ssa_reference(
    Z: Float[Tensor, "*batch n d"], U: Float[Tensor, "k d p"], scale: float = 1.0
) -> Float[Tensor, "*batch k n p"]:
    """The definition of SSA, as it stands in the paper."""
    V = project(Z, U)
    return attention_maps(V, scale) @ V


@register_notrace_function
def attend(
    V: Tensor, scale: float = 1.0, dropout: float = 0.0, attention: str = "auto", queries: int | None = None
) -> Tensor:
    """softmax(scale · V_k V_kᵀ) V_k of projected tokens V (…, n, k, p), the layout in which a projection writes them.

    `attention` is one of ATTENTIONS; `dropout` drops entries of the attention maps, which our kernel does not do.
    `queries` asks for the first so many tokens only, which torch's attention computes.
    """
    if torch.jit.is_scripting():  # it compiles this branch alone
        return _by_sdpa(V, scale, dropout, queries)
    else:  # noqa: RET505
        return _attend(V, scale, dropout, attention, queries)


def _by_sdpa(V: Tensor, scale: float, dropout: float, queries: int | None) -> Tensor:
    heads = V.transpose(-3, -2)  # (…, k, n, p)
    asked = heads if queries is None else heads[..., :queries, :]
    return F.scaled_dot_product_attention(asked, heads, heads, dropout_p=dropout, scale=scale).transpose(-3, -2)


def _attend(V: Tensor, scale: float, dropout: float, attention: str, queries: int | None) -> Tensor:
    require_attention(attention)
    if attention == "auto":
        fast = is_supported(V) and V.dtype != torch.float32 and dropout == 0 and queries is None and V.numel() >= LARGE
        attention = "symmetric" if fast else "sdpa"
    if attention == "sdpa":
        return _by_sdpa(V, scale, dropout, queries)
    if attention == "symmetric":
        if dropout > 0:
            raise ValueError(f"symmetric attention knows no dropout, got {dropout}: take attention='sdpa'")
        return symmetric_attention(V.reshape(-1, *V.shape[-3:]), scale).view(V.shape)[..., :queries, :, :]
    heads = V.transpose(-3, -2)
    maps = (scale * heads[..., :queries, :] @ heads.mT).softmax(-1)
    return (F.dropout(maps, dropout) @ heads).transpose(-3, -2)


torch.fx.wrap("attend")  # symbolic tracing takes it as it is, without looking at the device


def require_attention(attention: str) -> None:
    if attention not in ATTENTIONS:
        raise ValueError(f"unknown attention {attention!r}{suggestion(attention, ATTENTIONS)}")


def ssa(
    Z: Float[Tensor, "*batch n d"],
    U: Float[Tensor, "k d p"],
    scale: float = 1.0,
    dropout: float = 0.0,
    attention: str = "auto",
    queries: int | None = None,
) -> Float[Tensor, "*batch k m p"]:
    """SSA(Z | U_k) for every k, by `attend`: of all tokens, or of the first `queries`."""
    return attend(project(Z, U).transpose(-3, -2), scale, dropout, attention, queries).transpose(-3, -2)


@register(increment=True)
def mssa(
    Z: Float[Tensor, "*batch n d"],
    U: Float[Tensor, "k d p"],
    W: Float[Tensor, "d kp"] | None = None,
    bias: Float[Tensor, "d"] | None = None,
    scale: float = 1.0,
    dropout: float = 0.0,
    attention: str = "auto",
    queries: int | None = None,
) -> Float[Tensor, "*batch m d"]:
    """MSSA(Z | U_[K], W) with a free output map W; without W the heads stand side by side (K·p = d).

    Of all n tokens, or of the first m = `queries`, which are compressed with all the same.
    """
    heads = ssa(Z, U, scale, dropout, attention, queries).transpose(-3, -2).flatten(-2)  # (…, m, k·p)
    return heads if W is None else F.linear(heads, W, bias)


@register(increment=True)
def mssa_tied(
    Z: Float[Tensor, "*batch n d"],
    U: Float[Tensor, "k d p"],
    eps: float = 0.5,
    scale: float = 1.0,
    dropout: float = 0.0,
    attention: str = "auto",
) -> Float[Tensor, "*batch n d"]:
    """MSSA(Z | U_[K]) = γ Σ_k SSA(Z | U_k) U_kᵀ: the output map is the subspaces themselves."""
    gamma = rate_scale(Z.shape[-2], U.shape[-1], eps)
    return gamma * lift(ssa(Z, U, scale, dropout, attention), U)


@register
def softmax_step(
    Z: Float[Tensor, "*batch n d"],
    U: Float[Tensor, "k d p"],
    kappa: float = 0.5,
    eps: float = 0.5,
    scale: float = 1.0,
    dropout: float = 0.0,
    attention: str = "auto",
) -> Float[Tensor, "*batch n d"]:
    """(1 − κγ) Z + κγ MSSA(Z | U_[K]), the paper's approximation of the gradient step with the factors it needs."""
    require_positive("kappa", kappa)
    kappa_gamma = kappa * rate_scale(Z.shape[-2], U.shape[-1], eps)
    return (1 - kappa_gamma) * Z + kappa_gamma * mssa_tied(Z, U, eps, scale, dropout, attention)


@register(recorded=False)
def gradient_step(
    Z: Float[Tensor, "*batch n d"], U: Float[Tensor, "k d p"], kappa: float = 0.5, eps: float = 0.5
) -> Float[Tensor, "*batch n d"]:
    """Z − κγ Σ_k V_k (I + γ V_kᵀ V_k)⁻¹ U_kᵀ, the step along the exact ∇R^c(Z; U_[K]), in double precision."""
    require_positive("kappa", kappa)
    gamma = rate_scale(Z.shape[-2], U.shape[-1], eps)
    V = project(Z.double(), U.double())
    if V.shape[-2] < V.shape[-1]:  # the same with the smaller matrix: V (I + γVᵀV)⁻¹ = (I + γVVᵀ)⁻¹ V
        residual = _inverse_of_one_plus(gamma * V @ V.mT) @ V
    else:
        residual = V @ _inverse_of_one_plus(gamma * V.mT @ V)
    return (Z - kappa * gamma * lift(residual, U.double())).to(Z.dtype)


def _inverse_of_one_plus(A: Tensor) -> Tensor:
    """(I + A)⁻¹, whose derivative is two products; that of a Cholesky factor is one triangular system after another.

    The objective's own gradient takes such factors, and in two rounds: it is for tokens of any size, this one for those
    that leave a LayerNorm.
    """
    return torch.linalg.inv_ex(A + torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)).inverse


@register
def neumann_step(
    Z: Float[Tensor, "*batch n d"], U: Float[Tensor, "k d p"], kappa: float = 0.5, eps: float = 0.5
) -> Float[Tensor, "*batch n d"]:
    """Z − κγ Σ_k (V_k − γ V_k V_kᵀ V_k) U_kᵀ: the inverse (I + γ V_k V_kᵀ)⁻¹ by its first-order Neumann series.

    The series converges only where γ‖V_k V_kᵀ‖ < 1 (docs/ERRATA.md).
    """
    require_positive("kappa", kappa)
    gamma = rate_scale(Z.shape[-2], U.shape[-1], eps)
    V = project(Z, U)
    return Z - kappa * gamma * lift(V - gamma * V @ (V.mT @ V), U)


@register
def mixture_step(
    Z: Float[Tensor, "*batch n d"],
    U: Float[Tensor, "k d p"],
    sigma: float = 1.0,
    scale: float = 1.0,
    dropout: float = 0.0,
    attention: str = "auto",
) -> Float[Tensor, "*batch n d"]:
    """Σ_k π_k(z_i) SSA(Z | U_k)_i U_kᵀ with π(z) = softmax_k(‖U_kᵀ z‖²/(2σ²)): every token chooses among the heads.

    The aggregation of eq. mog-score-as-attention, left by the paper for future work; for one token it is that denoiser.
    """
    require_positive("sigma", sigma)
    membership = (project(Z, U).square().sum(-1) / (2 * sigma**2)).softmax(-2)  # (…, k, n)
    return lift(membership.unsqueeze(-1) * ssa(Z, U, scale, dropout, attention), U)


class Compression(nn.Module):
    """Holds U_[K] (and W where the operator has one) and applies the compression of that name to tokens (…, n, d).

    U is kept as `UT` (k·p, d), the layout that a matrix product reads without a copy: rows k·p … (k+1)·p − 1 are U_kᵀ.
    """

    def __init__(
        self,
        name: str,
        dim: int,
        num_heads: int,
        head_dim: int,
        options: Options | None = None,
        attn_drop: float = 0.0,
        attention: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_attention(attention)
        self.name, self.attention = name, attention
        self.operator = COMPRESSIONS.named(name)
        self.options = COMPRESSIONS.options(name, options)
        self.is_increment = name in COMPRESSIONS.increments
        self.is_recorded = name not in COMPRESSIONS.unrecorded
        self.num_heads, self.head_dim = num_heads, head_dim
        self.scale = head_dim**-0.5
        self.has_attention = COMPRESSIONS.takes(name, "scale")
        self.has_dropout = COMPRESSIONS.takes(name, "dropout")
        self.has_choice = COMPRESSIONS.takes(name, "attention")
        self.has_queries = COMPRESSIONS.takes(name, "queries")
        self.has_bias = COMPRESSIONS.takes(name, "bias")
        self.attn_drop = attn_drop
        self.UT = nn.Parameter(torch.empty(num_heads * head_dim, dim, device=device, dtype=dtype))
        # One head as wide as the tokens has no output map (the paper's Algorithm 3, `project_out`).
        free = COMPRESSIONS.takes(name, "W") and not (num_heads == 1 and head_dim == dim)
        self.W = nn.Linear(num_heads * head_dim, dim, self.has_bias, device=device, dtype=dtype) if free else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.UT, a=5**0.5)
        if self.W is not None:
            self.W.reset_parameters()

    @property
    def U(self) -> Tensor:
        """The bases U_[K], (k, d, p): a view of the parameter."""
        return self._bases(self.UT)

    def _bases(self, UT: Tensor) -> Tensor:
        return UT.view(self.num_heads, self.head_dim, -1).transpose(1, 2)

    def forward(self, Z: Tensor, queries: int | None = None, UT: Tensor | None = None) -> Tensor:
        """The operator on all tokens, or on the first `queries` of them if it has such an argument.

        `UT` takes the place of the module's own, where something else was multiplied into it.
        """
        UT = self.UT if UT is None else UT
        return self._scripted_mssa(Z, queries, UT) if torch.jit.is_scripting() else self._apply_operator(Z, queries, UT)

    @torch.jit.unused
    def _apply_operator(self, Z: Tensor, queries: int | None, UT: Tensor) -> Tensor:
        arguments: dict[str, Any] = dict(self.options)
        if queries is not None:
            arguments["queries"] = queries
        if self.has_attention:
            arguments["scale"] = self.scale
        if self.has_dropout:
            arguments["dropout"] = self.attn_drop if self.training else 0.0
        if self.has_choice:
            arguments["attention"] = self.attention
        if self.W is not None:
            arguments["W"] = self.W.weight
            if self.has_bias:
                arguments["bias"] = self.W.bias
        return self.operator(Z, self._bases(UT), **arguments)

    def _scripted_mssa(self, Z: Tensor, queries: int | None, UT: Tensor) -> Tensor:
        """`mssa` for TorchScript, which reads neither shape annotations nor calls by keyword dictionary."""
        if self.name != "mssa":
            raise RuntimeError("TorchScript knows the compression mssa alone: use torch.export")
        V = F.linear(Z, UT).unflatten(-1, [self.num_heads, self.head_dim])
        dropout = self.attn_drop if self.training else 0.0
        heads = attend(V, self.scale, dropout, self.attention, queries).flatten(-2)
        return heads if self.W is None else self.W(heads)

    def extra_repr(self) -> str:
        options = ", ".join(f"{option}={value}" for option, value in self.options.items())
        return ", ".join(filter(None, [self.name, f"num_heads={self.num_heads}", f"head_dim={self.head_dim}", options]))
