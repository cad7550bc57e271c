"""One step of training: the gradient of a global batch, in micro-batches, and the optimiser's move.

The loss is read on the host while the device is still busy with the backward pass, so that a step with a loss that is
not finite can be skipped without making the device wait. What the processes must agree on (to stop, to save) travels
with the loss, in one sum.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from timm.data import Mixup
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from ..data import Batch, Split
from ..data.feeds.loading import seeded
from ..distributed import World, autocast, synchronise_gradients
from ..recipes import Recipe

__all__ = ["Outcome", "Stepper"]

WARM_UP = 3  # passes before a graph is recorded


@dataclass(frozen=True)
class Outcome:
    """What all processes know of a step: mean loss, correct predictions (none with mixup), requests to stop or save.

    The loss is the cross-entropy, so that runs compare; what the recipe's objective adds to it is in `terms`.
    """

    loss: float
    correct: float | None
    stop: bool
    save: bool
    terms: dict[str, float] = field(default_factory=dict)  # before their weights

    @property
    def finite(self) -> bool:
        return bool(np.isfinite([self.loss, *self.terms.values()]).all())


class Stepper:
    """Holds what a step needs; `step` does one. With an objective, the network is one that returns its terms too."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        recipe: Recipe,
        split: Split,
        world: World,
        graphs: bool = False,
    ) -> None:
        self.model, self.optimizer, self.recipe, self.split, self.world = model, optimizer, recipe, split, world
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=recipe.precision == "fp16")
        self.mixup = _mixup(recipe)
        self.weights = recipe.objective.weights()
        graphs = graphs and world.device.type == "cuda" and world.size == 1 and recipe.precision != "fp16"
        graphs = graphs and not recipe.objective.weight  # the rates of tokens are looked at by the host
        graphs = graphs and all(getattr(module, "is_recorded", True) for module in model.modules())
        self.passes: _Pass = _GraphedPass(self) if graphs else _Pass(self)

    def step(self, batches: Iterator[Batch], number: int, stop: bool = False, save: bool = False) -> Outcome:
        """Take this process's micro-batches of step `number` and move the weights, unless the loss is not finite."""
        self.passes.clear()
        tally = torch.zeros(4 + len(self.weights), device=self.world.device)  # stop, save, loss, correct, terms
        for part in range(self.split.parts):
            images, targets = self.mix(*next(batches), number)
            last = part == self.split.parts - 1
            with synchronise_gradients(self.model, now=last):
                tally[2:] += self.passes.forward(images, targets)
                if last:
                    known = self._announce(tally, stop, save)
                self.passes.backward()
        outcome = known.read()
        if outcome.finite and not self._move():
            return replace(outcome, loss=math.inf)
        return outcome

    def mix(self, images: Tensor, targets: Tensor, number: int) -> Batch:
        """timm's mixup and cutmix; all processes draw the same mixture for step `number`."""
        if self.mixup is None:
            return images, targets
        with seeded(self.recipe.seed, number, 2):
            mixed: Batch = self.mixup(images, targets)
        return mixed

    def loss(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The micro-batch's share of what is minimised, and (loss, correct, terms) as a report."""
        with autocast(self.world.device, self.recipe.precision):
            output = self.model(images)
        logits, terms = output if self.weights else (output, {})
        smoothing = 0.0 if self.mixup else self.recipe.label_smoothing  # timm's mixup smooths the labels itself
        loss = cross_entropy(logits.float(), targets, label_smoothing=smoothing) / self.split.parts
        correct = (logits.argmax(-1) == targets).sum() if targets.dim() == 1 else torch.zeros_like(loss)
        report = [loss.detach() / self.world.size, correct.detach().float()]
        for name, weight in self.weights.items():
            term = terms[name] / self.split.parts
            loss = loss + weight * term
            report.append(term.detach() / self.world.size)
        return loss, torch.stack(report)

    def _announce(self, tally: Tensor, stop: bool, save: bool) -> "_Announcement":
        tally[0].fill_(stop)  # `tally[0] = stop` would copy from the host's memory, and wait for it
        tally[1].fill_(save)
        return _Announcement(self.world.sum(tally), self.mixup is None, tuple(self.weights))

    def _move(self) -> bool:
        """Whether the optimiser moved: not if the gradient that is to be clipped is not finite.

        With fp16 the scaler sees to that. Without clipping nobody looks at gradients, for the host would have to wait
        for them; what a checkpoint would keep of them is looked at when it is written.
        """
        if self.recipe.optim.clip:
            self.scaler.unscale_(self.optimizer)
            norm: Any = clip_grad_norm_(self.model.parameters(), self.recipe.optim.clip)
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
            if not self.scaler.is_enabled() and not norm.isfinite():
                return False
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return True


class _Announcement:
    """A few numbers on their way from the device to the host."""

    def __init__(self, tally: Tensor, counted: bool, terms: tuple[str, ...]) -> None:
        self.counted, self.terms, self.event = counted, terms, None
        if tally.is_cuda:
            self.values = torch.empty(tally.shape, pin_memory=True)
            self.values.copy_(tally, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()
        else:
            self.values = tally

    def read(self) -> Outcome:
        if self.event is not None:
            self.event.synchronize()
        stop, save, loss, correct, *terms = self.values.tolist()
        named = dict(zip(self.terms, terms, strict=True))
        return Outcome(loss, correct if self.counted else None, stop > 0, save > 0, named)


class _Pass:
    """Forward and backward, kernel by kernel."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper

    def clear(self) -> None:
        """Forget the gradients of the step before."""
        self.stepper.optimizer.zero_grad(set_to_none=True)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        self.scalar, report = self.stepper.loss(images, targets)
        return report

    def backward(self) -> None:
        self.stepper.scaler.scale(self.scalar).backward()


class _GraphedPass(_Pass):
    """The same, recorded once as two CUDA graphs and replayed, for which the host needs next to no time.

    They read and write fixed memory: a batch is copied there, and gradients are found where they were recorded.
    """

    def __init__(self, stepper: Stepper) -> None:
        super().__init__(stepper)
        self.forward_graph: Any = None
        self.adds = stepper.split.parts > 1

    def clear(self) -> None:
        if self.adds:
            self.stepper.optimizer.zero_grad(set_to_none=False)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        if self.forward_graph is None:
            self._record(images, targets)
        self.images.copy_(images)
        self.targets.copy_(targets)
        self.forward_graph.replay()
        return self.report

    def backward(self) -> None:
        self.backward_graph.replay()

    def _record(self, images: Tensor, targets: Tensor) -> None:
        self.images, self.targets = images.clone(), targets.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.random.fork_rng(devices=[images.device]), torch.cuda.stream(stream):
            for _ in range(WARM_UP):  # compiles and fills caches
                super().forward(self.images, self.targets)
                super().backward()
        del self.scalar  # and with it what autograd remembers of the warm-up
        torch.cuda.current_stream().wait_stream(stream)
        # With one micro-batch the recorded pass writes the gradients, with several it adds to them.
        self.stepper.optimizer.zero_grad(set_to_none=not self.adds)
        self.forward_graph, self.backward_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # The threads that bring pictures go on: what they ask of the device is not to end the recording.
        others: dict[str, Any] = {"stream": stream, "capture_error_mode": "thread_local"}
        with torch.cuda.graph(self.forward_graph, **others):
            self.report = super().forward(self.images, self.targets)
        with torch.cuda.graph(self.backward_graph, pool=self.forward_graph.pool(), **others):
            super().backward()


def _mixup(recipe: Recipe) -> Mixup | None:
    if not recipe.augment.mixes:
        return None
    return Mixup(
        mixup_alpha=recipe.augment.mixup,
        cutmix_alpha=recipe.augment.cutmix,
        label_smoothing=recipe.label_smoothing,
        num_classes=recipe.data.num_classes,
    )
