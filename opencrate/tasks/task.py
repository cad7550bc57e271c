"""A task is what a network is trained for: it turns a batch into a loss, and a validation split into metrics."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from ..data import Batch, Feed
from ..distributed import World, autocast

EVALUATION_BATCH = 512

Network = Callable[..., Any]
"""A network as a task calls it: inputs in, outputs out. It need not be the `nn.Module` itself."""

Report = dict[str, Tensor]
"""One number for each name, without gradient."""


class Loss(ABC):
    """What a step minimises."""

    def prepare(self, batch: Batch, step: int) -> Batch:
        """The micro-batch that training step `step` sees, for example after mixup; the same draws on every process."""
        return batch

    @abstractmethod
    def loss(self, model: Network, batch: Batch) -> tuple[Tensor, Report]:
        """The loss to be minimised, and means over the batch to report; one of them is called "loss"."""


class Task(Loss):
    """The engine trains any task; it knows neither images nor classes nor cross-entropy."""

    headline: ClassVar[tuple[str, ...]]
    """The metrics that a run's result shows; the first decides which network is the best."""

    higher_is_better = True
    """Whether the first headline metric is to rise."""

    chance_loss: float
    """The loss in nats of a network that has learned nothing."""

    counted: ClassVar[str]
    """What a total counts and the others are divided by: "pictures", "bytes"."""

    @abstractmethod
    def totals(self, model: Network, batch: Batch) -> Report:
        """Sums over a validation batch, one of which is called "loss"; targets of −1 do not count."""

    def metrics(self, totals: dict[str, float]) -> dict[str, float]:
        """The metrics of a split, from the totals of all batches and processes: means, and over how many."""
        count = int(totals[self.counted])
        if count == 0:
            raise ValueError(f"none of the {self.counted} of the validation split could be read")
        return {name: total / count for name, total in totals.items()} | {self.counted: count}

    def is_better(self, metrics: dict[str, float], best: dict[str, float]) -> bool:
        """Whether `metrics` beat those of the best network so far, which are empty at first."""
        name = self.headline[0]
        if name not in best:
            return True
        return metrics[name] > best[name] if self.higher_is_better else metrics[name] < best[name]

    @torch.inference_mode()
    def evaluate(
        self, model: nn.Module, feed: Feed, world: World, precision: str = "fp32", batch: int = EVALUATION_BATCH
    ) -> dict[str, float]:
        """The metrics of a network on a split: every sample counts once, on any number of processes."""
        was_training = model.training
        network = autocast(world.device, precision)(model.__call__)  # what is computed from its output is not
        sums: Report = {}
        model.eval()
        try:
            # Eager: the last batch is smaller, and compiling for it would take longer than it saves.
            with torch.compiler.set_stance("force_eager"):
                for part in _evaluation_batches(model, feed, world, batch):
                    for name, value in self.totals(network, part).items():
                        sums[name] = sums.get(name, 0) + value.double()
        finally:
            model.train(was_training)
        if not sums:
            raise ValueError("the validation split is empty")
        totals = world.sum(torch.stack(list(sums.values()))).tolist()
        return self.metrics(dict(zip(sums, totals, strict=True)))


def _evaluation_batches(model: nn.Module, feed: Feed, world: World, batch: int) -> Iterator[Batch]:
    """This process's batches, and fillers that do not count.

    Every process needs one batch to know the names of the totals, and a forward pass through a sharded network takes
    all processes, so that all need the same number of batches.
    """
    done, share = 0, -(-len(feed) // world.size)
    for inputs, targets in feed.evaluate(batch, world.rank, world.size):
        done += 1
        yield inputs, targets
    rounds = -(-share // batch) if isinstance(model, FSDPModule) else min(share, 1)
    for _ in range(done, rounds):
        inputs, targets = next(iter(feed.evaluate(1)))
        yield inputs, torch.full_like(targets, -1)


_FORMATS = {
    "top1": "top-1 {:.2f} %",
    "bits_per_byte": "{:.3f} bits per byte",
    "loss": "loss {:.3f}",
    "objective": "objective {:.3f}",
    "accuracy": "acc {:5.1%}",
    "images_per_second": "{:,.0f} img/s",
}


def describe_metrics(metrics: dict[str, float]) -> str:
    """The metrics that people read, on one line."""
    return "  ".join(text.format(metrics[name]) for name, text in _FORMATS.items() if name in metrics)
