"""The work of a variant in each task, as calls that can be timed.

training    a step of the training loop (`training.step.Stepper`): forward, cross-entropy, backward, Lion, and the
            loss read while the backward pass runs; on pictures that are on the device already
inference   a forward pass without gradients, batch after batch
latency     a forward pass of one picture until it is finished; on a GPU also as a recorded CUDA graph
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, cycle
from typing import Literal

import torch
from torch import Tensor, nn

from opencrate.data import Dataset, Split
from opencrate.distributed import World, autocast
from opencrate.recipes import Model, Optim, Recipe
from opencrate.training.building import build_optimizer, build_task
from opencrate.training.step import Stepper

from .timing import Call, record_graph

Precision = Literal["bf16", "fp32"]


@dataclass
class Workload:
    """A variant ready to be timed: its calls by name, and the bytes that it holds between calls."""

    calls: dict[str, Call]
    held_bytes: Callable[[], int]


def training_steps(
    network: nn.Module, images: list[Tensor], targets: list[Tensor], precision: Precision, graphed: bool = False
) -> Workload:
    batch, device = len(images[0]), images[0].device
    recipe = Recipe(
        name="bench",
        model=Model("crate"),  # only the optimiser is built from this recipe
        data=Dataset(size=images[0].shape[-1]),
        optim=Optim(lr=1e-5, batch=batch),  # small, because the labels are random
        precision=precision,
    )
    optimizer, task, world = build_optimizer(recipe, network), build_task(recipe), World(0, 1, device)
    stepper = Stepper(network, optimizer, task, Split(batch), world, precision=precision, graphs=graphed)
    batches, numbers = cycle(zip(images, targets, strict=True)), count()

    def step() -> None:
        if not stepper.step(batches, next(numbers)).finite:
            raise FloatingPointError("the loss is not finite")

    def held_bytes() -> int:
        moments = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
        gradients = [weight.grad for weight in network.parameters() if weight.grad is not None]
        return storage_bytes([*network.parameters(), *network.buffers(), *gradients, *moments])

    return Workload({"step": step}, held_bytes)


def forward_passes(network: nn.Module, images: list[Tensor], precision: Precision, latency: bool) -> Workload:
    """Forward passes: for `latency` each is waited for, and on a GPU also recorded; else they may overlap."""
    device, batches = images[0].device, cycle(images)

    def forward(pictures: Tensor) -> None:
        with torch.no_grad(), autocast(device, precision):
            network(pictures)

    calls: dict[str, Call] = {"pass": lambda: forward(next(batches))}
    if latency and device.type == "cuda":
        fixed = images[0].clone()
        replay = record_graph(lambda: forward(fixed))

        def replayed() -> None:
            fixed.copy_(next(batches))
            replay()

        calls = {name: _synchronised(call, device) for name, call in {**calls, "recorded pass": replayed}.items()}
    return Workload(calls, lambda: storage_bytes([*network.parameters(), *network.buffers()]))


def _synchronised(call: Call, device: torch.device) -> Call:
    def wait() -> None:
        call()
        torch.cuda.synchronize(device)

    return wait


def storage_bytes(tensors: list[Tensor]) -> int:
    """Bytes of the tensors' storage; storage that several share is counted once."""
    return sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}.values())
