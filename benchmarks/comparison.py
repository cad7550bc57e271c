"""One size, one task: build the variants, check that their results agree, and time those that do in turns.

Compiled means `training.building.compile_model`: torch.compile of the entire network with its defaults.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from opencrate.training.building import compile_model

from .agreement import Errors, Judge
from .timing import Timing, alternate, device_clock, failure_reason, matrix_product, peak_memory, release_memory
from .variants import Family
from .workloads import Precision, Workload, forward_passes, storage_bytes, training_steps

CEILING = "ceiling"
INPUTS = 3  # batches, used in turns
CHECKED_PICTURES = {"bf16": 32, "fp32": 2}  # computed in float64; in bf16 some ReLUs switch, so that more are needed
Log = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """What the variants do (training, inference or latency), and whether time and memory are measured."""

    name: str
    batch: int
    time: bool = True
    memory: bool = False


@dataclass
class Row:
    """The result of a variant."""

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
        self.rows = {name: Row(name) for name in variants if _is_possible(name, task, family.device)}
        self.images, self.targets = _inputs(task.batch, family)
        self.judges: dict[str, Judge] = {}
        self.workloads: dict[str, Workload] = {}
        self.ceiling: tuple[Timing, int] | None = None  # the time of a matrix product, and its operations

    def run(self, seconds: float, rounds: int, log: Log) -> list[Row]:
        for row in self.rows.values():
            began = time.perf_counter()
            try:
                self._prepare(row)
            except Exception as error:  # whatever a compiler, a driver or an allocator may raise
                row.fail(failure_reason(error))
            row.ready_after = time.perf_counter() - began
            outcome = row.why or f"agrees, ready after {row.ready_after:.1f} s"
            log(f"{self.family.size} {self.task.name}, {row.variant}: {outcome}")
        if self.task.time:
            self._measure_time(seconds, rounds)
        if self.task.memory:
            self._measure_memory()
        self.workloads.clear()
        torch.compiler.reset()  # a function keeps a limited number of compiled versions
        release_memory(self.family.device)
        return list(self.rows.values())

    def _prepare(self, row: Row) -> None:
        """Build the variant; if its results agree, it has a workload to be timed."""
        name, _, mode = row.variant.partition("-")
        in_training = self.task.name == "training"
        judge = self._judge("vit" if name == "vit" else "pseudocode")
        network = self.family.build(name).train(in_training)
        if mode != "eager":
            compile_model(network)
        row.errors = judge.errors(network)
        row.why = judge.objection(row.errors, self.tolerance)
        if row.why:
            row.status = "disagrees"
        elif in_training:
            graphed = mode == "graphed"
            self.workloads[row.variant] = training_steps(network, self.images, self.targets, self.precision, graphed)
        else:
            latency = self.task.name == "latency"
            self.workloads[row.variant] = forward_passes(network, self.images, self.precision, latency)

    def _judge(self, plain: str) -> Judge:
        """Compares with the float64 results of a plain network, which is built once."""
        family = self.family
        if plain not in self.judges:
            self.judges[plain] = Judge(
                family.build(plain, torch.float64),
                family.build(plain),
                self.images[0],
                self.targets[0],
                self.precision,
                count=min(self.task.batch, CHECKED_PICTURES[self.precision]),
                training=self.task.name == "training",
            )
        return self.judges[plain]

    def _measure_time(self, seconds: float, rounds: int) -> None:
        """The matrix product takes turns with the variants, so that both see the machine at the same clock rates."""
        device = self.family.device
        for what in ("step", "pass", "recorded pass"):
            calls = {name: workload.calls[what] for name, workload in self.workloads.items() if what in workload.calls}
            if calls and self.task.name != "latency":
                calls[CEILING], operations = matrix_product(device, self.precision)
            timings, failures = alternate(calls, seconds, rounds, device_clock(device))
            failures.pop(CEILING, None)
            if CEILING in timings:
                self.ceiling = (timings.pop(CEILING), operations)
            for name, timing in timings.items():
                self.rows[name].timings[what] = timing
            for name, why in failures.items():
                self.rows[name].fail(why)
                del self.workloads[name]

    def _measure_memory(self) -> None:
        """Peak memory of a call: what it allocates, the variant's own weights and states, and one batch of pictures.

        Memory of the other variants and batches is not counted. A recorded step keeps its memory between calls, so
        that its peak cannot be measured; it needs as much as the compiled one.
        """
        for name, workload in self.workloads.items():
            if name.endswith("graphed"):
                continue
            try:
                taken = peak_memory(next(iter(workload.calls.values())), self.family.device)
            except Exception as error:  # as above
                self.rows[name].fail(failure_reason(error))
            else:
                own = workload.held_bytes() + storage_bytes(self.images[:1])
                self.rows[name].peak = None if taken is None else taken + own


def _is_possible(variant: str, task: Task, device: torch.device) -> bool:
    network, _, mode = variant.partition("-")
    if mode == "graphed":
        return task.name == "training" and device.type == "cuda"
    return not (network == "folded" and task.name == "training")


def _inputs(batch: int, family: Family) -> tuple[list[Tensor], list[Tensor]]:
    size, generator = family.crate.patch_embed.img_size, torch.Generator(family.device).manual_seed(1)
    drawn: dict[str, Any] = {"generator": generator, "device": family.device}
    images = [torch.randn(batch, 3, *size, **drawn) for _ in range(INPUTS)]
    return images, [torch.randint(family.crate.num_classes, (batch,), **drawn) for _ in range(INPUTS)]
