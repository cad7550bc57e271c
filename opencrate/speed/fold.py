"""Folding: a CRATE for inference, in which all that does not depend on the picture is part of a plain linear layer.

With LN z = scale ⊙ N(z) + shift, where N(z) is z centred and divided by its standard deviation,

    V         = N(Z^l) diag(scale) U + shift U                       `U`
    Z^{l+1/2} = Z^l + SSA(V) Wᵀ + bias                               `W`, which for mssa_tied is γU without a bias
    Z^{l+1}   = ReLU(N(Z^{l+1/2}) diag(scale) A + shift A − ηλ)      `A`, for ista I + η(D − DᵀD)

Likewise the LayerNorm of patches goes into their projection, the last one into the classifier, and the class token and
its position are one constant. The constant terms are in the products too (norm_folding.py). Weights are folded
in float64 and rounded once.

Where only the class token is classified, the last layer compresses and sparsifies no other.
"""

from collections import OrderedDict
from copy import deepcopy
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn

from ..layers import Layer
from ..objective.rates import rate_scale
from ..operators.attention import attend
from ..operators.ista import ISTA, ista_matrix
from ..operators.mssa import MSSA, TiedMSSA
from ..operators.prox_mm import ProxMM, TightProxMM
from ..stems.patches import PatchEmbed, cut, with_class_token, with_empty_first
from .norm_folding import OFFSET, absorb, computes_as, with_constant

if TYPE_CHECKING:
    from ..models.crate import CRATE


class FoldedCRATE(nn.Module):
    """What `CRATE.fold` returns: layers of `nn.Linear` with fixed weights, and the outputs of the network in eval.

    For features instead of logits, fold a network without a classifier (`num_classes=0`). Other runtimes do not have
    our attention kernel: before an export in half precision from a GPU, choose `attention="sdpa"`.
    """

    pretrained_cfg: dict[str, Any] | None = None
    default_cfg: dict[str, Any] | None = None

    def __init__(self, model: "CRATE") -> None:
        super().__init__()
        self.num_classes, self.global_pool = model.num_classes, model.global_pool
        self.num_features = self.head_hidden_size = self.embed_dim = model.embed_dim
        self.num_prefix_tokens = model.num_prefix_tokens
        self.pretrained_cfg, self.default_cfg = model.pretrained_cfg, model.default_cfg
        self.embed = FoldedEmbed(model.patch_embed, model.cls_token, model.pos_embed)
        n = None if self.embed.dynamic_img_size else self.embed.positions.shape[1]
        self.layers = nn.ModuleList(FoldedLayer(cast(Layer, layer), n) for layer in model.blocks)
        self.head = _folded_head(model.norm, model.head)
        self.to(model.cls_token.dtype).to(model.cls_token.device).requires_grad_(False).eval()

    def forward_features(self, images: Tensor) -> Tensor:
        """Images → all of the last layer's tokens Z^{L+1} (b, n, d), also where `forward` computes the first alone."""
        return self._tokens(images)

    def forward_head(self, Z: Tensor) -> Tensor:
        """Z^{L+1} → logits; without a classifier, the pooled and normalised tokens."""
        if self.global_pool == "token":
            Z = Z[:, 0]
        elif self.global_pool == "avg":
            Z = Z.mean(dim=1)
        return self.head(Z)

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self._tokens(images, queries=1 if self.global_pool == "token" else None))

    def _tokens(self, images: Tensor, queries: int | None = None) -> Tensor:
        Z = self.embed(images)
        *layers, last = self.layers
        for layer in layers:
            Z = layer(Z)
        return last(Z, queries)


def fold(model: "CRATE") -> FoldedCRATE:
    """A copy of the network for inference, on its device and in its type; the network itself is left as it is."""
    with torch.no_grad():
        return FoldedCRATE(model)


class FoldedEmbed(nn.Module):
    """Images (b, c, H, W) → tokens Z¹ (b, n, d).

    A patch is flattened in the order (channel, row, column), which reads a picture in longer runs than the network's
    order. The LayerNorm behind the projection keeps its scale and shift: what follows it is not linear.
    """

    positions: Tensor

    def __init__(self, embed: PatchEmbed, cls_token: Tensor, pos_embed: Tensor) -> None:
        super().__init__()
        self.img_size, self.patch_size, self.in_chans = embed.img_size, embed.patch_size, embed.in_chans
        self.grid_size, self.dynamic_img_size = embed.grid_size, embed.dynamic_img_size
        filters, bias = deepcopy(embed).to("cpu", torch.float64).filters()
        self.proj = _normalised_linear(embed.norm_patch.eps, with_constant(filters.flatten(1), bias))
        self.norm_token = deepcopy(embed.norm_token)
        positions = _exact(pos_embed).clone()
        positions[:, :1] += _exact(cls_token)
        self.register_buffer("positions", positions)  # the first is the class token at its position

    def forward(self, images: Tensor) -> Tensor:
        patches = cut(images, self.in_chans, self.img_size, self.patch_size, self.dynamic_img_size)
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(-3)  # (b, h, w, c·row·column)
        embedded = self.proj(with_empty_first(patches.flatten(1, 2)))
        positions = self.positions
        if self.dynamic_img_size:
            positions = resample_abs_pos_embed(
                positions, new_size=patches.shape[1:3], old_size=self.grid_size, num_prefix_tokens=1
            )
        return with_class_token(self.norm_token(embedded).to(embedded.dtype), positions.to(embedded.dtype))


class FoldedLayer(nn.Module):
    """Z^l → Z^{l+1}: of all tokens, or of the first `queries`, which are compressed with all the same."""

    def __init__(self, layer: Layer, n: int | None) -> None:
        super().__init__()
        compress, sparsify = cast(Any, layer.compress.operator), layer.sparsify.operator
        W = _output_map(compress, n)
        self.num_heads, self.head_dim, self.scale = compress.num_heads, compress.head_dim, compress.scale
        self.attention, self.causal = compress.attention, compress.causal
        self.U = _behind(layer.compress.norm, _exact(compress.UT))
        self.W = W
        A, threshold = _one_product(sparsify, n)
        self.A = _behind(layer.sparsify.norm, A.mT, -threshold)

    def forward(self, Z: Tensor, queries: int | None = None) -> Tensor:
        V = self.U(Z).unflatten(-1, [self.num_heads, self.head_dim])  # (b, n, k, p)
        heads = attend(V, self.scale, attention=self.attention, queries=queries, causal=self.causal).flatten(-2)
        Z = Z[:, :queries]
        Z_half = Z + heads if self.W is None else self.W(heads).add_(Z)
        return self.A(Z_half).relu_()


class Normalise(nn.Module):
    """N(z) + OFFSET: LayerNorm with the same scale and shift for every entry."""

    scale: Tensor
    shift: Tensor

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps
        self.register_buffer("scale", torch.ones(dim), persistent=False)
        self.register_buffer("shift", torch.full((dim,), OFFSET), persistent=False)

    def forward(self, Z: Tensor) -> Tensor:
        return F.layer_norm(Z, (self.dim,), self.scale, self.shift, self.eps)

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps}"


def _exact(tensor: Tensor) -> Tensor:
    """In float64, on the CPU because not every device has it."""
    return tensor.detach().to("cpu", torch.float64)


def _linear(weight: Tensor) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")  # draws no random numbers
    linear.weight = nn.Parameter(weight.contiguous())
    return linear


def _normalised_linear(eps: float, weight: Tensor) -> nn.Sequential:
    return nn.Sequential(OrderedDict(norm=Normalise(weight.shape[1], eps), linear=_linear(weight)))


def _behind(norm: nn.Module, weight: Tensor, bias: Tensor | float = 0.0) -> nn.Sequential:
    """A linear map of LN z, as a product with N(z) + OFFSET."""
    norm = deepcopy(cast(nn.LayerNorm, norm)).to("cpu", torch.float64)
    return _normalised_linear(norm.eps, absorb(norm, weight, bias))


def _folded_head(norm: nn.Module, head: nn.Module) -> nn.Module:
    if isinstance(norm, nn.LayerNorm) and isinstance(head, nn.Linear):
        return _behind(norm, _exact(head.weight), 0.0 if head.bias is None else _exact(head.bias))
    return nn.Sequential(OrderedDict(norm=deepcopy(norm), linear=deepcopy(head)))


def _output_map(operator: nn.Module, n: int | None) -> nn.Linear | None:
    """W of an attention [SSA_1, …, SSA_K] Wᵀ."""
    if getattr(operator, "muted", None) is not None:
        raise ValueError("a network with heads switched off does not fold")
    if isinstance(operator, MSSA) and computes_as(operator, MSSA):
        return deepcopy(operator.W)
    if isinstance(operator, TiedMSSA) and computes_as(operator, TiedMSSA):
        gamma = rate_scale(_known(n, operator.name), operator.head_dim, operator.eps)
        return _linear(gamma * _exact(operator.UT).mT)
    raise ValueError(f"the compression {_name(operator)} does not fold; mssa and mssa_tied do")


def _one_product(operator: nn.Module, n: int | None) -> tuple[Tensor, float]:
    """The matrix A and the threshold t of a sparsification that is ReLU(Z A − t)."""
    if isinstance(operator, ISTA) and computes_as(operator, ISTA):
        return ista_matrix(_exact(operator.D), operator.eta), operator.eta * operator.lam
    if isinstance(operator, ProxMM) and any(computes_as(operator, known) for known in (ProxMM, TightProxMM)):
        alpha = rate_scale(_known(n, operator.name), len(operator.D), operator.eps)
        L = operator.curvature(alpha)
        return (1 + alpha / (1 + alpha) / L) * _exact(operator.D), operator.lam / L
    raise ValueError(f"the sparsification {_name(operator)} does not fold; ista, prox_mm and prox_mm_tight do")


def _name(operator: nn.Module) -> str:
    return str(getattr(operator, "name", type(operator).__name__))


def _known(n: int | None, operator: str) -> int:
    if n is None:
        raise ValueError(
            f"{operator} depends on the number of tokens, which dynamic_img_size leaves open: it does not fold"
        )
    return n
