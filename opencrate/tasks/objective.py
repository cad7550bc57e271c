"""The objective as a tool for training: a network that returns, beside its logits, the terms which a recipe's
`Objective` adds to the loss.

    objective      mean over layers l and samples of [ΔR(Z^{l+1}; U_[K]^l) − λ‖Z^{l+1}‖₁]/n    eq. sparse-rr
    orthogonal_U   mean over layers and heads of ‖U_kᵀU_k − I‖²_F/p
    orthogonal_D   mean over layers of ‖DᵀD − I‖²_F/d

Departures: ‖Z‖₀ has no gradient, so the objective has ‖Z‖₁ in its place; and it is taken per token (n of them), so that
it stays of one size for pictures of other sizes. The tokens are those that the training pass computes at the end of a
layer: raw, the class token among them, with dropout if there is any. Gradients reach the tokens and the bases U.

What this asks of a step: the layers are walked one by one, so that a compiled network is compiled layer by layer; a
chosen last layer is computed for all tokens, not for the class token alone; and the host waits for the tokens of every
chosen layer, so that such a step is no CUDA graph. The orthogonality terms see weights alone and ask for nothing.
"""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from ..layers import Layer
from ..models import CRATE
from ..objective import l1, rate_reduction
from ..objective.rates import result_type
from ..recipes import Objective
from ..shapes import Float

__all__ = ["Regularised", "objective_per_token", "orthogonality"]


class Regularised(nn.Module):
    """A CRATE and the terms of an `Objective`, in one forward pass: what is to be distributed is this module.

    Called by its attributes instead, the network would go past the wrapper that averages gradients over processes.
    """

    def __init__(self, network: nn.Module, objective: Objective) -> None:
        super().__init__()
        if not isinstance(network, CRATE):
            kind = type(network).__name__
            raise ValueError(f"objective.weight, orthogonal_U and orthogonal_D are for a CRATE, and this is a {kind}")
        depth = len(network.blocks)
        if objective.layers and max(objective.layers) > depth:
            raise ValueError(f"objective.layers names layer {max(objective.layers)}, and the network has {depth}")
        self.network, self.objective = network, objective
        self.chosen = frozenset(objective.layers or range(1, depth + 1))

    def forward(self, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits, and every term that has a weight under its name: one number each, before that weight."""
        terms, layers = {}, cast("Iterable[Layer]", self.network.blocks)
        if self.objective.weight:
            logits, terms["objective"] = self._walk(images)
        else:
            logits = self.network(images)
        with torch.autocast(images.device.type, enabled=False):
            if self.objective.orthogonal_U:
                terms["orthogonal_U"] = torch.stack([orthogonality(layer.U).mean() for layer in layers]).mean()
            if self.objective.orthogonal_D:
                terms["orthogonal_D"] = torch.stack([orthogonality(layer.D) for layer in layers]).mean()
        return logits, terms

    def _walk(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The network's forward pass, and the objective of the chosen layers on its way."""
        network, values = self.network, []
        Z = network.embed(images)
        for number, layer in enumerate(cast("Iterable[Layer]", network.blocks), start=1):
            Z = layer(Z)
            if number in self.chosen:
                values.append(objective_per_token(Z, layer.U, self.objective.eps, self.objective.lam).mean())
        return network.forward_head(Z), torch.stack(values).mean()


def objective_per_token(
    Z: Float[Tensor, "*batch n d"], U: Float[Tensor, "k d p"], eps: float, lam: float
) -> Float[Tensor, "*batch"]:
    """[ΔR(Z; U_[K]) − λ‖Z‖₁]/n: larger is better. NaN for tokens that are not finite, so that the step is skipped."""
    if not Z.isfinite().all():
        return Z.new_full(Z.shape[:-2], torch.nan, dtype=result_type(Z))
    return (rate_reduction(Z, U, eps) - lam * l1(Z)) / Z.shape[-2]


def orthogonality(frames: Float[Tensor, "*k d p"]) -> Float[Tensor, "*k"]:
    """‖FᵀF − I‖²_F/p of every frame: 0 where its columns are orthonormal, 1 where they are 0."""
    gram = frames.mT @ frames
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return (gram - identity).square().sum((-2, -1)) / gram.shape[-1]
