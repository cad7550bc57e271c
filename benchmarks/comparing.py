"""One size, one task: build the variants, ask whether they agree, and let those that do take turns.

Compiled means `engine.building.compile_model`, which is torch.compile of the whole network with its defaults, for all
variants alike.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from opencrate.training.building import compile_model

from .agreement import Errors, Judge
from .timing import Timing, alternate, clock_of, matrix_product, peak_of, reason, released
from .variants import Family, pseudocode
from .workloads import Contestant, Precision, answering, memory_of, training

__all__ = ["Comparison", "Row", "Task"]

CEILING = "ceiling"
INPUTS = 3  # batches that take turns
JUDGED = {"bf16": 32, "fp32": 2}  # pictures that float64 follows: in bf16 ReLUs switch, and gradients with them jump
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """What the variants do (training, inference or latency), and what of it is measured: the time, the memory."""

    name: str
    batch: int
    timed: bool = True
    weighed: bool = False


@dataclass
class Row:
    """What came of a variant."""

    variant: str
    status: str = "measured"  # or: disagrees, failed
    why: str = ""
    errors: Errors | None = None
    ready_after: float = 0.0
    timings: dict[str, Timing] = field(default_factory=dict)
    peak: int | None = None

    def fail(self, why: str) -> None:
        self.status, self.why, self.timings, self.peak = "failed", why, {}, None


class Comparison:
    """The variants of one size, in one task."""

    def __init__(
        self, task: Task, family: Family, variants: tuple[str, ...], precision: Precision, tolerance: float
    ) -> None:
        self.task, self.family, self.precision, self.tolerance = task, family, precision, tolerance
        self.rows = {name: Row(name) for name in variants if _takes_part(name, task, family.device)}
        self.images, self.targets = _inputs(task.batch, family)
        self.judges: dict[str, Judge] = {}
        self.contestants: dict[str, Contestant] = {}
        self.ceiling: tuple[Timing, int] | None = None  # of a matrix product, and its operations

    def run(self, seconds: float, rounds: int, tell: Tell) -> list[Row]:
        for row in self.rows.values():
            began = time.perf_counter()
            try:
                self._admit(row)
            except Exception as error:  # whatever a compiler, a driver or an allocator may raise
                row.fail(reason(error))
            row.ready_after = time.perf_counter() - began
            outcome = row.why or f"agrees, ready after {row.ready_after:.1f} s"
            tell(f"{self.family.size} {self.task.name}, {row.variant}: {outcome}")
        if self.task.timed:
            self._time(seconds, rounds)
        if self.task.weighed:
            self._weigh()
        self.contestants.clear()
        torch.compiler.reset()  # a function keeps a limited number of compiled versions
        released(self.family.device)
        return list(self.rows.values())

    def _admit(self, row: Row) -> None:
        """Build the variant, and let it take part if its results agree."""
        name, _, mode = row.variant.partition("-")
        in_training = self.task.name == "training"
        judge = self._judge_of(name)
        network = self.family.build(name).train(in_training)
        if mode != "eager":
            compile_model(network)
        row.errors = judge.errors(network)
        row.why = judge.objection(row.errors, self.tolerance)
        if row.why:
            row.status = "disagrees"
        elif in_training:
            graphed = mode == "graphed"
            self.contestants[row.variant] = training(network, self.images, self.targets, self.precision, graphed)
        else:
            waiting = self.task.name == "latency"
            self.contestants[row.variant] = answering(network, self.images, self.precision, waiting)

    def _judge_of(self, network: str) -> Judge:
        plain, family = self.family.judge_of(network), self.family
        if plain not in self.judges:
            self.judges[plain] = Judge(
                family.build(plain, torch.float64),
                family.build(plain),
                self.images[0],
                self.targets[0],
                self.precision,
                count=min(self.task.batch, JUDGED[self.precision]),
                training=self.task.name == "training",
            )
        return self.judges[plain]

    def _time(self, seconds: float, rounds: int) -> None:
        """The ceiling takes turns with the variants, so that their share of it is that of the same minute."""
        device = self.family.device
        for what in ("step", "pass", "recorded pass"):
            calls = {name: entry.calls[what] for name, entry in self.contestants.items() if what in entry.calls}
            if calls and self.task.name != "latency":
                calls[CEILING], operations = matrix_product(device, self.precision)
            timings, failures = alternate(calls, seconds, rounds, clock_of(device))
            failures.pop(CEILING, None)
            if CEILING in timings:
                self.ceiling = (timings.pop(CEILING), operations)
            for name, timing in timings.items():
                self.rows[name].timings[what] = timing
            for name, why in failures.items():
                self.rows[name].fail(why)
                del self.contestants[name]

    def _weigh(self) -> None:
        """Peak memory of a call: what it takes, the variant's own weights and states, and one batch of pictures.

        What the other variants and the other batches hold at the time is not counted. A recorded step keeps its memory
        between calls, so there is nothing to see; it takes what the compiled one does.
        """
        for name, contestant in self.contestants.items():
            if name.endswith("graphed"):
                continue
            try:
                taken = peak_of(next(iter(contestant.calls.values())), self.family.device)
            except Exception as error:  # as above
                self.rows[name].fail(reason(error))
            else:
                own = contestant.held() + memory_of(self.images[:1])
                self.rows[name].peak = None if taken is None else taken + own


def _takes_part(variant: str, task: Task, device: torch.device) -> bool:
    network, _, mode = variant.partition("-")
    if network == "pseudocode" and not pseudocode():
        return False
    if mode == "graphed":
        return task.name == "training" and device.type == "cuda"
    return not (network == "folded" and task.name == "training")


def _inputs(batch: int, family: Family) -> tuple[list[Tensor], list[Tensor]]:
    size, generator = family.crate.patch_embed.img_size, torch.Generator(family.device).manual_seed(1)
    drawn: dict[str, Any] = {"generator": generator, "device": family.device}
    images = [torch.randn(batch, 3, *size, **drawn) for _ in range(INPUTS)]
    return images, [torch.randint(family.crate.num_classes, (batch,), **drawn) for _ in range(INPUTS)]
