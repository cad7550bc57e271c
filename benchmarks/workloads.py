"""What a variant does in each task, as calls that can be timed.

training    a step of the training loop (`training.step.Stepper`): forward, cross-entropy, backward, Lion, and the
            loss read while the backward pass runs; on pictures that are on the device already
inference   a forward pass without gradients, batch after batch
latency     one picture, waited for; on a GPU also as a recorded CUDA graph, for all variants alike
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

from .timing import Call, recorded

__all__ = ["Contestant", "answering", "memory_of", "training"]

Precision = Literal["bf16", "fp32"]


@dataclass
class Contestant:
    """A variant ready to run: what is timed, under its name, and the bytes that it holds between calls."""

    calls: dict[str, Call]
    held: Callable[[], int]


def training(
    network: nn.Module, images: list[Tensor], targets: list[Tensor], precision: Precision, graphed: bool = False
) -> Contestant:
    batch, device = len(images[0]), images[0].device
    recipe = Recipe(
        name="bench",
        model=Model("crate"),  # what is built from it here is the optimiser alone
        data=Dataset(size=images[0].shape[-1]),
        optim=Optim(lr=1e-5, batch=batch),  # small, for the labels are noise
        precision=precision,
    )
    optimizer, task, world = build_optimizer(recipe, network), build_task(recipe), World(0, 1, device)
    stepper = Stepper(network, optimizer, task, Split(batch), world, precision=precision, graphs=graphed)
    batches, numbers = cycle(zip(images, targets, strict=True)), count()

    def step() -> None:
        if not stepper.step(batches, next(numbers)).finite:
            raise FloatingPointError("the loss is not finite")

    def held() -> int:
        moments = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
        gradients = [weight.grad for weight in network.parameters() if weight.grad is not None]
        return memory_of([*network.parameters(), *network.buffers(), *gradients, *moments])

    return Contestant({"step": step}, held)


def answering(network: nn.Module, images: list[Tensor], precision: Precision, waiting: bool) -> Contestant:
    """Forward passes: `waiting` for each, and recorded too where that is possible, or one behind the other."""
    device, batches = images[0].device, cycle(images)

    def answer(pictures: Tensor) -> None:
        with torch.no_grad(), autocast(device, precision):
            network(pictures)

    calls: dict[str, Call] = {"pass": lambda: answer(next(batches))}
    if waiting and device.type == "cuda":
        fixed = images[0].clone()
        replay = recorded(lambda: answer(fixed))

        def replayed() -> None:
            fixed.copy_(next(batches))
            replay()

        calls = {name: _waited_for(call, device) for name, call in {**calls, "recorded pass": replayed}.items()}
    return Contestant(calls, lambda: memory_of([*network.parameters(), *network.buffers()]))


def _waited_for(call: Call, device: torch.device) -> Call:
    def wait() -> None:
        call()
        torch.cuda.synchronize(device)

    return wait


def memory_of(tensors: list[Tensor]) -> int:
    """Bytes of the memory behind the tensors, each piece counted once."""
    return sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}.values())
