"""The processes of a run: rank, device, collective operations, DDP and FSDP. The network knows nothing of them."""

import gc
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
ORPHAN_SECONDS = 2.0  # that a process has left when the one that started it is gone
THREAD_EXIT_SECONDS = 0.1  # to free a tensor takes microseconds, once Python's lock is free


@dataclass(frozen=True)
class World:
    """One of `size` processes, on its device."""

    rank: int
    size: int
    device: torch.device

    @property
    def main(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes in the order of their ranks, on rank 0; an empty list on the others."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.gather_object(value, values if self.main else None)
        return values if self.main else []

    def on_main(self, action: Callable[[], T]) -> T:
        """Runs on rank 0 and broadcasts the result; an exception is raised on every rank."""
        if self.size == 1:
            return action()
        outcome: list[Any] = [None, None]
        if self.main:
            try:
                outcome[0] = action()
            except (ValueError, OSError) as error:
                outcome[1] = error
            except Exception as error:  # of a type that other processes may be unable to unpickle
                outcome[1] = RuntimeError(f"{type(error).__name__}: {error}")
        dist.broadcast_object_list(outcome)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]


@contextmanager
def joined(device: str = "auto") -> Iterator[World]:
    """Join the process group if torchrun started this process; leave it at the end.

    A thread of the group that still has a tensor to free when Python exits aborts a process that has finished, and
    torchrun starts it again. So the threads end here or, where torch's own caches keep the group (fsdp), get some time.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank, local = (int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK"))
    chosen = device_named(device, local)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if size == 1:
        yield World(0, 1, chosen)
        return
    stop_watching = _end_with_parent()
    backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(minutes=10))
    try:
        yield World(rank, size, chosen)
    finally:
        stop_watching()
        dist.destroy_process_group()
        gc.collect()  # the wrapped network is a reference cycle that holds the group, too
        time.sleep(THREAD_EXIT_SECONDS)


def _end_with_parent() -> Callable[[], None]:
    """End this process soon after the one that started it, also if that one was killed; returns how to stop watching.

    It gets SIGTERM, so that it may end with a checkpoint, and little time for that.
    """
    parent, done = os.getppid(), threading.Event()

    def watch() -> None:
        while os.getppid() == parent:
            if done.wait(0.2):
                return
        signal.setitimer(signal.ITIMER_REAL, ORPHAN_SECONDS + 0.5)  # ends it also while torch holds Python's lock
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ORPHAN_SECONDS)
        for child in multiprocessing.active_children():
            child.kill()
        os.kill(os.getpid(), signal.SIGKILL)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()

    def stop() -> None:
        done.set()
        if os.getppid() == parent:
            watcher.join()

    return stop


def device_named(name: str, local_rank: int = 0) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"device {name!r} is not supported; use auto, cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} is not available: torch finds no CUDA device; use cpu")
    if name == "cuda":
        device = torch.device("cuda", local_rank)
    if device.type == "cuda" and device.index >= torch.cuda.device_count():
        raise ValueError(f"device {device} does not exist: this machine has {torch.cuda.device_count()} GPUs")
    return device


def distribute(model: nn.Module, parallel: str, world: World) -> nn.Module:
    """Distribute the network over the processes: a full copy on each (ddp), or every layer in shards (fsdp)."""
    if world.size == 1:
        return model
    if parallel == "ddp":
        ids = [world.device.index] if world.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
    mesh = dist.init_device_mesh(world.device.type, (world.size,))
    for layer in getattr(model, "blocks", ()):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)  # in place: the module gets a class that is both
    return model


def synchronise_gradients(model: nn.Module, now: bool) -> None:
    """Whether the next passes average gradients over the processes: only the last micro-batch of a step has to."""
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = now  # what `no_sync` sets for a while
    elif isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(now)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """A context or decorator with matrix products in half precision; without effect for fp32."""
    return torch.autocast(device.type, DTYPES.get(precision), enabled=precision in DTYPES)
