"""The objective as a regulariser: the terms of a recipe's `Objective`, added to the loss of any task.

    objective      mean over layers l and samples of [ΔR(Z^{l+1}; U_[K]^l) − λ‖Z^{l+1}‖₁]/n    eq. sparse-rr
    orthogonal_U   mean over layers and heads of ‖U_kᵀU_k − I‖²_F/p
    orthogonal_D   mean over layers of ‖DᵀD − I‖²_F/d

Departures: ‖Z‖₀ has no gradient, so the objective has ‖Z‖₁ in its place; and it is taken per token (n of them), so that
its size does not depend on the size of the images. The tokens are those of the training pass at the end of a layer:
raw, with the class token, after dropout if there is any. Gradients reach the tokens and the bases U.

With `objective.weight` the layers are called one by one, so a network is compiled layer by layer; and the host waits
for the tokens of every chosen layer, so the step cannot be recorded as a CUDA graph. The orthogonality terms read
weights only and restrict nothing.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..data import Batch
from ..objective import l1, rate_reduction
from ..objective.rates import result_type
from ..recipes import Objective
from ..shapes import Float
from ..stack import is_stack
from .task import Loss, Network, Report


class Regularised(Loss):
    """The loss of a task with the terms of an `Objective`, for a `RegularisedNetwork`; the task's own is reported."""

    def __init__(self, task: Loss, objective: Objective) -> None:
        self.task, self.weights = task, objective.weights()

    def prepare(self, batch: Batch, step: int) -> Batch:
        return self.task.prepare(batch, step)

    def loss(self, model: Network, batch: Batch) -> tuple[Tensor, Report]:
        """The task's loss + Σ weight · term; the terms are reported before their weights."""
        terms: Report = {}

        def network(inputs: Tensor) -> Any:
            outputs, computed = model(inputs)
            terms.update(computed)
            return outputs

        loss, report = self.task.loss(network, batch)
        for name, weight in self.weights.items():
            loss = loss + weight * terms[name]
            report[name] = terms[name].detach()
        return loss, report


class RegularisedNetwork(nn.Module):
    """A network that returns the terms of an `Objective` beside its outputs, from one forward pass.

    This module is what has to be distributed: a call of the network inside it would bypass the wrapper that averages
    gradients over processes.
    """

    network: Any

    def __init__(self, network: nn.Module, objective: Objective) -> None:
        super().__init__()
        if not is_stack(network):
            kind = type(network).__name__
            raise ValueError(
                f"objective.weight, orthogonal_U and orthogonal_D need a network with layers to walk, got {kind}"
            )
        self.network, self.objective, self.cuda_graph_safe = network, objective, not objective.weight
        depth = len(self.network.layers)
        if objective.layers and max(objective.layers) > depth:
            raise ValueError(
                f"objective.layers names layer {max(objective.layers)}, but the network has {depth} layers"
            )
        self.chosen = frozenset(objective.layers or range(1, depth + 1))

    @property
    def measures_last_layer(self) -> bool:
        return self.objective.weight > 0 and len(self.network.layers) in self.chosen

    def forward(self, inputs: Tensor) -> tuple[Tensor, Report]:
        """The outputs, and every term that has a weight under its name: one number each, before that weight."""
        terms, layers = {}, self.network.layers
        if self.objective.weight:
            outputs, terms["objective"] = self._call_layers(inputs)
        else:
            outputs = self.network(inputs)
        with torch.autocast(inputs.device.type, enabled=False):
            if self.objective.orthogonal_U:
                terms["orthogonal_U"] = torch.stack([orthogonality(layer.U).mean() for layer in layers]).mean()
            if self.objective.orthogonal_D:
                terms["orthogonal_D"] = torch.stack([orthogonality(layer.D) for layer in layers]).mean()
        return outputs, terms

    def _call_layers(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The network's outputs, and the mean objective of the chosen layers."""
        values, Z = [], self.network.embed(inputs)
        for number, layer in enumerate(self.network.layers, start=1):
            Z = layer(Z)
            if number in self.chosen:
                values.append(objective_per_token(Z, layer.U, self.objective.eps, self.objective.lam).mean())
        return self.network.forward_head(Z), torch.stack(values).mean()


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
