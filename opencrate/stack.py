"""A stack of layers that knows neither pictures nor words, and what passes through it.

A network is a stem, layers and a head: it has `embed` (inputs → tokens Z¹) and `layers`. `trajectory` walks the same
half-steps as the forward pass and hands out what passes between them; there are no hooks.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from .layers import HalfStep, Layer, build_norm
from .operators.base import Sparsification, compressions, sparsifications


def build_layers(
    dim: int,
    depth: int,
    num_heads: int,
    head_dim: int | None = None,
    compress: str = "mssa",
    sparsify: str = "ista",
    compress_args: Mapping[str, Any] | None = None,
    sparsify_args: Mapping[str, Any] | None = None,
    norm: str = "layernorm",
    norm_eps: float = 1e-5,
    attn_drop: float = 0.0,
    proj_drop: float = 0.0,
    drop_path: Iterable[float] = (),
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Sequential:
    """`depth` layers of these operators, by their registered names, with fresh weights."""
    shape: dict[str, Any] = {"dim": dim, "num_heads": num_heads, "head_dim": head_dim, "attn_drop": attn_drop}
    where: dict[str, Any] = {"device": device, "dtype": dtype}

    def half_step(kind: Any, name: str, options: Mapping[str, Any] | None, drop_path: float) -> HalfStep:
        normalised = kind.named(name).normalised
        before = build_norm(norm, dim, norm_eps, **where) if normalised else nn.Identity()
        operator = kind.build(name, options, **where, **shape)
        return HalfStep(before, operator, nn.Sequential(nn.Dropout(proj_drop), DropPath(drop_path)))

    rates = list(drop_path) or [0.0] * depth
    return nn.Sequential(
        *[
            Layer(
                half_step(compressions, compress, compress_args, rate),
                half_step(sparsifications, sparsify, sparsify_args, rate),
            )
            for rate in rates
        ]
    )


class Network(nn.Module):
    """stem + layers + head. timm's CRATE is one of these with timm's contract around it."""

    def __init__(self, stem: nn.Module, layers: nn.Sequential, head: nn.Module) -> None:
        super().__init__()
        self.stem, self.layers, self.head = stem, layers, head

    def embed(self, inputs: Tensor) -> Tensor:
        return self.stem(inputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(inputs)))


@dataclass(frozen=True, eq=False)
class Step:
    """What passes through a layer; `number` counts from 1, as in the paper."""

    number: int
    layer: Layer
    Z: Tensor
    Z_half: Tensor
    Z_next: Tensor
    code: Tensor | None  # what is sparse, (b, n, m), if the sparsification says so

    @property
    def projections(self) -> Tensor:
        """U_kᵀ LN Z^l (b, k, n, p), computed when it is asked for."""
        return self._of_compression("projections", "subspaces to project onto")

    @property
    def maps(self) -> Tensor:
        """The compression's own attention maps (b, k, n, n), computed when they are asked for."""
        return self._of_compression("maps", "attention maps")

    def follows_from_code(self) -> bool:
        """Whether Z^{l+1} is what the sparsification decodes from its code, and its forward pass is no other."""
        half: Any = self.layer.sparsify
        if self.code is None:
            return False
        if not _has_own_forward(half.operator):
            return True
        decoded = half.skip(self.Z_half, half.operator.decode(self.code))
        return torch.allclose(decoded, self.Z_next, rtol=1e-3, atol=1e-5)

    def _of_compression(self, role: str, what: str) -> Tensor:
        half: Any = self.layer.compress
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.Z.is_inference()):  # of a recording
            result = getattr(half.operator, role)(half.norm(self.Z))
        if result is None:
            raise ValueError(f"the compression {half.operator.name} has no {what}")
        return result


def trajectory(network: Any, inputs: Tensor) -> Iterator[Step]:
    """Yield Z^l, Z^{l+1/2} and Z^{l+1} (b, n, d) of every layer, and the sparse code.

    It runs as the network is set (train or eval) and as gradients are set: wrap it in `torch.inference_mode()` to look
    only.
    """
    require_stack("trajectory", network)
    Z = network.embed(inputs)
    for number, layer in enumerate(network.layers, start=1):
        Z_half = layer.compress(Z)
        Z_next, code = _sparsified(layer.sparsify, Z_half)
        yield Step(number, layer, Z, Z_half, Z_next, code)
        Z = Z_next


def _sparsified(half: HalfStep, Z_half: Tensor) -> tuple[Tensor, Tensor | None]:
    """The half-step's result with its code, which is computed once."""
    operator: Any = half.operator
    code = operator.code(half.norm(Z_half)) if operator.has("code") else None
    if code is None or _has_own_forward(operator):
        return half(Z_half), code
    return half.skip(Z_half, operator.decode(code)), code


def _has_own_forward(operator: Any) -> bool:
    """Whether its forward pass is not `decode(code(Y))`, as a sparsification's is."""
    return type(operator).forward is not Sparsification.forward


def is_stack(network: Any) -> bool:
    """Whether a network can be walked: it embeds inputs as tokens, and has layers."""
    layers = getattr(network, "layers", ())
    return hasattr(network, "embed") and len(layers) > 0 and all(isinstance(layer, Layer) for layer in layers)


def require_stack(what: str, network: nn.Module) -> None:
    if not is_stack(network):
        raise ValueError(f"{what} needs a network with `embed` and `layers`, got {type(network).__name__}")
