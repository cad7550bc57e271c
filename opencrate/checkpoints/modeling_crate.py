"""CRATE for Hugging Face's transformers, in one file that needs neither opencrate nor timm.

    Z^{l+1/2} = Z^l + MSSA(LN Z^l | U_[K])                                                        `compress`
    Z^{l+1}   = ISTA(LN Z^{l+1/2} | D)                                                            `sparsify`

    MSSA(Y)   = [SSA_1, …, SSA_K] Wᵀ   with SSA_k = softmax(p^{-1/2} V_k V_kᵀ) V_k and V_k = Y U_k
    ISTA(Y)   = ReLU(Y A − ηλ)         with A = I + η(D − DᵀD)

Tokens are rows. Modules are named as in opencrate, so that one `model.safetensors` serves both; `model_args` in
config.json are the arguments of opencrate's CRATE. Images have the size that the network was saved with. Dropout and
stochastic depth are left out. White-Box Transformers via Sparse Rate Reduction, https://arxiv.org/abs/2306.01129.

SPDX-License-Identifier: MIT
"""

import math
from collections import OrderedDict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutput


class CRATEConfig(PretrainedConfig):
    """config.json, of which the network reads `model_args` and `num_labels`."""

    model_type = "crate"


class PatchEmbed(nn.Module):
    """Images (b, c, H, W) → embedded patches (b, n, d); a patch is flattened as (row, column, channel)."""

    def __init__(self, patch_size: list[int], in_chans: int, d: int, eps: float) -> None:
        super().__init__()
        self.patch_size = patch_size
        patch_dim = patch_size[0] * patch_size[1] * in_chans
        self.norm_patch = nn.LayerNorm(patch_dim, eps=eps)
        self.proj = nn.Linear(patch_dim, d)
        self.norm_token = nn.LayerNorm(d, eps=eps)

    def forward(self, images: Tensor) -> Tensor:
        height, width = self.patch_size
        patches = images.unflatten(-1, (-1, width)).unflatten(-3, (-1, height))  # (b, c, h, row, w, column)
        patches = patches.permute(0, 2, 4, 3, 5, 1).flatten(-3).flatten(1, 2)  # (b, n, row·column·c)
        return self.norm_token(self.proj(self.norm_patch(patches)))


class MSSA(nn.Module):
    """[SSA_1, …, SSA_K] Wᵀ. A tied W is γ [U_1, …, U_K] with γ = p/(nε²), instead of weights of its own."""

    def __init__(self, d: int, k: int, p: int, tied: bool, bias: bool = True, causal: bool = False, eps: float = 0.5):
        super().__init__()
        self.k, self.p, self.tied, self.causal, self.eps = k, p, tied, causal, eps
        self.UT = nn.Parameter(torch.empty(k * p, d))  # [U_1, …, U_K]ᵀ
        self.W = None if tied or (k == 1 and p == d) else nn.Linear(k * p, d, bias)

    def forward(self, Y: Tensor) -> Tensor:
        V = F.linear(Y, self.UT).unflatten(-1, (self.k, self.p)).transpose(1, 2)  # (b, k, n, p)
        heads = F.scaled_dot_product_attention(V, V, V, is_causal=self.causal, scale=self.p**-0.5)
        heads = heads.transpose(1, 2).flatten(2)  # (b, n, k·p)
        if self.tied:
            return self.p / (Y.shape[1] * self.eps**2) * heads @ self.UT
        return heads if self.W is None else self.W(heads)


class ISTA(nn.Module):
    """One proximal gradient step from Y toward a sparse, non-negative code in the dictionary D."""

    def __init__(self, d: int, eta: float, lam: float) -> None:
        super().__init__()
        self.eta, self.lam = eta, lam
        self.D = nn.Parameter(torch.empty(d, d))

    def forward(self, Y: Tensor) -> Tensor:
        A = torch.eye(len(self.D), dtype=Y.dtype, device=Y.device) + self.eta * (self.D - self.D.mT @ self.D)
        return F.relu(Y @ A - self.eta * self.lam)


class UnitNorm(nn.Module):
    """Every token scaled to length √d."""

    def __init__(self, d: int, eps: float) -> None:
        super().__init__()
        self.d, self.eps = d, eps

    def forward(self, Z: Tensor) -> Tensor:
        return F.normalize(Z, dim=-1, eps=self.eps) * self.d**0.5


NORMS = {"layernorm": nn.LayerNorm, "rmsnorm": nn.RMSNorm, "unit": UnitNorm}


class Layer(nn.Module):
    """Z^l → Z^{l+1}: compress, then sparsify."""

    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__()
        d, norm, eps = args["embed_dim"], NORMS[args["norm"]], args["norm_eps"]
        options = {key: value for key, value in args["compress_args"].items() if key != "basis"}
        mssa = MSSA(d, args["num_heads"], args["head_dim"], args["compress"] == "mssa_tied", **options)
        self.compress = nn.Sequential(OrderedDict(norm=norm(d, eps=eps), operator=mssa))
        self.sparsify = nn.Sequential(OrderedDict(norm=norm(d, eps=eps), operator=ISTA(d, **args["sparsify_args"])))

    def forward(self, Z: Tensor) -> Tensor:
        return self.sparsify(Z + self.compress(Z))


class CRATEForImageClassification(PreTrainedModel):
    """Images → tokens Z¹ → L layers → logits."""

    config_class = CRATEConfig
    main_input_name = "pixel_values"

    def __init__(self, config: CRATEConfig) -> None:
        super().__init__(config)
        args = config.model_args
        d, eps = args["embed_dim"], args["norm_eps"]
        n = math.prod(args["img_size"]) // math.prod(args["patch_size"])
        self.pool = args["global_pool"]
        self.patch_embed = PatchEmbed(args["patch_size"], args["in_chans"], d, eps)
        self.cls_token = nn.Parameter(torch.empty(1, 1, d))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + n, d))
        self.blocks = nn.Sequential(*(Layer(args) for _ in range(args["depth"])))
        self.norm = nn.LayerNorm(d, eps=eps)
        self.head = nn.Linear(d, config.num_labels)
        self.post_init()

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ImageClassifierOutput:
        patches = self.patch_embed(pixel_values)
        Z = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], dim=1) + self.pos_embed
        Z = self.blocks(Z)  # (b, n, d)
        if self.pool == "token":
            Z = Z[:, 0]
        elif self.pool == "avg":
            Z = Z.mean(dim=1)
        logits = self.head(self.norm(Z))
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return ImageClassifierOutput(loss=loss, logits=logits)
