"""One training step: the gradient of a global batch, in micro-batches, and the optimiser's step.

The host reads the loss while the device is still busy with the backward pass, so that a step with a loss that is not
finite can be skipped without making the device wait. Requests to stop and to save travel with the loss, so that all
processes agree on them by one sum.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_

from ..data import Batch, Split
from ..distributed import World, autocast, synchronise_gradients
from ..tasks.task import Loss

WARM_UP = 3  # passes before a CUDA graph is recorded
NAMED = 5  # weights that an error names, at most


@dataclass(frozen=True)
class Outcome:
    """What all processes know about a step: the task's report, averaged over the global batch, and the requests."""

    report: dict[str, float]
    stop: bool = False
    save: bool = False

    @property
    def loss(self) -> float:
        return self.report["loss"]

    @property
    def finite(self) -> bool:
        return all(map(math.isfinite, self.report.values()))


class Stepper:
    """Trains a network on a task, one step at a time.

    Args:
        model: the network, distributed if there are several processes.
        split: how a global batch is divided into micro-batches.
        precision: bf16 or fp16 for products in half precision, fp32 for none.
        clip: largest norm of the gradient, 0 for no limit.
        graphs: record the passes as CUDA graphs where that is possible.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        task: Loss,
        split: Split,
        world: World,
        *,
        precision: str = "fp32",
        clip: float = 0.0,
        graphs: bool = False,
    ) -> None:
        self.model, self.optimizer, self.task, self.split, self.world = model, optimizer, task, split, world
        self.clip, self.gradients_checked = clip, False
        self.network = autocast(world.device, precision)(model.__call__)
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=precision == "fp16")
        can_record = world.device.type == "cuda" and world.size == 1 and precision != "fp16"
        # A part of the network that reads values on the host cannot be recorded.
        can_record = can_record and all(getattr(module, "cuda_graph_safe", True) for module in model.modules())
        self.passes: _Pass = _GraphedPass(self) if graphs and can_record else _Pass(self)

    def step(self, batches: Iterator[Batch], number: int, stop: bool = False, save: bool = False) -> Outcome:
        """Take this process's micro-batches of step `number` and update the weights, unless the loss is not finite."""
        self.passes.clear()
        reports: list[Tensor] = []
        for part in range(self.split.parts):
            batch = self.task.prepare(next(batches), number)
            is_last = part == self.split.parts - 1
            synchronise_gradients(self.model, now=is_last)
            reports.append(self.passes.forward(batch).clone())  # a graph writes its next report to the same memory
            if is_last:
                pending = self._send_report(torch.stack(reports).mean(0) / self.world.size, stop, save)
            self.passes.backward()
        if not self.gradients_checked:
            require_gradients(self.model)
            self.gradients_checked = True
        outcome = pending.read()
        if outcome.finite and not self._optimizer_step():
            return replace(outcome, report=outcome.report | {"loss": math.inf})
        return outcome

    def _send_report(self, report: Tensor, stop: bool, save: bool) -> "PendingReport":
        requests = report.new_zeros(2)
        requests[0].fill_(stop)  # `requests[0] = stop` would copy from the host's memory, and wait for it
        requests[1].fill_(save)
        return PendingReport(self.world.sum(torch.cat([requests, report])), self.passes.names)

    def _optimizer_step(self) -> bool:
        """Whether the weights were updated: not if the gradient is to be clipped and is not finite.

        With fp16 the scaler sees to that. Without clipping nothing checks the gradients, because the host would have to
        wait for them; the weights are checked before a checkpoint is written.
        """
        if self.clip:
            self.scaler.unscale_(self.optimizer)
            norm: Any = clip_grad_norm_(self.model.parameters(), self.clip)
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
            if not self.scaler.is_enabled() and not norm.isfinite():
                return False
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return True


def require_gradients(model: nn.Module) -> None:
    """Raise if a weight that is to be trained got no gradient in the backward pass that has just ended.

    Such a weight has no optimiser state, so that the run could not be resumed, and DistributedDataParallel waits for
    its gradient for ever.
    """
    names = [
        name.removeprefix("module.").removeprefix("network.")  # of DDP, of RegularisedNetwork
        for name, weight in model.named_parameters()
        if weight.requires_grad and weight.grad is None
    ]
    if not names:
        return
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    raise ValueError(
        f"these weights get no gradient: {', '.join(names[:NAMED])}{more};"
        " use them, remove them, or freeze them with requires_grad_(False)"
    )


class PendingReport:
    """A few numbers on their way from the device to the host."""

    def __init__(self, values: Tensor, names: tuple[str, ...]) -> None:
        self.names, self.event = names, None
        if values.is_cuda:
            self.values = torch.empty(values.shape, pin_memory=True)
            self.values.copy_(values, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()
        else:
            self.values = values

    def read(self) -> Outcome:
        if self.event is not None:
            self.event.synchronize()
        stop, save, *report = self.values.tolist()
        return Outcome(dict(zip(self.names, report, strict=True)), stop > 0, save > 0)


class _Pass:
    """Forward and backward, kernel by kernel."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self.names: tuple[str, ...] = ()  # of the report's numbers, known after the first forward pass

    def clear(self) -> None:
        """Remove the gradients of the previous step."""
        self.stepper.optimizer.zero_grad(set_to_none=True)

    def forward(self, batch: Batch) -> Tensor:
        """The task's report as one tensor."""
        loss, report = self.stepper.task.loss(self.stepper.network, batch)
        self.loss, self.names = loss / self.stepper.split.parts, tuple(report)
        return torch.stack([value.float() for value in report.values()])

    def backward(self) -> None:
        self.stepper.scaler.scale(self.loss).backward()


class _GraphedPass(_Pass):
    """The same, recorded once as two CUDA graphs and replayed, which takes almost none of the host's time.

    A graph reads and writes fixed memory: a batch is copied there, and gradients stay where they were recorded.
    """

    def __init__(self, stepper: Stepper) -> None:
        super().__init__(stepper)
        self.forward_graph: Any = None
        self.accumulates = stepper.split.parts > 1

    def clear(self) -> None:
        if self.accumulates:
            self.stepper.optimizer.zero_grad(set_to_none=False)

    def forward(self, batch: Batch) -> Tensor:
        if self.forward_graph is None:
            self._record(batch)
        for fixed, values in zip(self.batch, batch, strict=True):
            fixed.copy_(values)
        self.forward_graph.replay()
        return self.report

    def backward(self) -> None:
        self.backward_graph.replay()

    def _record(self, batch: Batch) -> None:
        inputs, targets = batch
        self.batch = inputs.clone(), targets.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.random.fork_rng(devices=[inputs.device]), torch.cuda.stream(stream):
            for _ in range(WARM_UP):  # compiles and fills caches
                super().forward(self.batch)
                super().backward()
        del self.loss  # and with it the autograd graph of the warm-up
        torch.cuda.current_stream().wait_stream(stream)
        # With one micro-batch the recorded pass writes the gradients, with several it adds to them.
        self.stepper.optimizer.zero_grad(set_to_none=not self.accumulates)
        self.forward_graph, self.backward_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # thread_local: the threads that load data go on using the device, which must not end the recording.
        recording: dict[str, Any] = {"stream": stream, "capture_error_mode": "thread_local"}
        with torch.cuda.graph(self.forward_graph, **recording):
            self.report = super().forward(self.batch)
        with torch.cuda.graph(self.backward_graph, pool=self.forward_graph.pool(), **recording):
            super().backward()
