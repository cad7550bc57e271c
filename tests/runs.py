"""Small training runs for the tests: a recipe of seconds, and processes that can be killed."""

import json
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from opencrate.data import Augmentation
from opencrate.recipes import RECIPES, Model, Optim, Recipe, Schedule, named
from opencrate.training import Options, train
from opencrate.training.loop import Training

FORKS = multiprocessing.get_context("forkserver")  # a process that has imported everything and run nothing
FORKS.set_forkserver_preload(["opencrate.training", "tests.runs"])


def small_recipe(**changes) -> Recipe:
    """Two layers on the embedded digits, 9 steps an epoch; `optim`, `schedule` and `augment` take changed fields."""
    recipe = replace(
        named("digits", RECIPES),
        name="small",
        model=Model("crate_tiny_patch4_32", embed_dim=16, depth=2, num_heads=2, patch_size=4),
        augment=replace(Augmentation(crop="padded", flip=0.0), **changes.pop("augment", {})),
        optim=replace(Optim("lion", lr=1e-3, weight_decay=0.1, batch=144), **changes.pop("optim", {})),
        schedule=replace(Schedule(epochs=3, warmup_epochs=1), **changes.pop("schedule", {})),
        probe=8,
    )
    return replace(recipe, **changes)


def small_options(out: Path, **changes) -> Options:
    return replace(Options(out=out, device="cpu", log_steps=1, tensorboard=False, workers=0), **changes)


@contextmanager
def interrupted_at(number: int, monkeypatch):
    """A run within is asked to end at that step, as by Ctrl-C."""
    step = Training._step

    def interrupted(self, batches):
        if self.progress.step == number:
            self.stop_request.number = 2
        return step(self, batches)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            yield


def warm_up() -> None:
    """Let the server of processes import everything before a test takes the time."""
    process = FORKS.Process(target=int)
    process.start()
    process.join()


def start(recipe: Recipe, options: Options, rank: int = 0, world: int = 1, port: int = 0, last: int | None = None):
    """A process that trains, until step `last` if there is one, where it waits to be killed."""
    process = FORKS.Process(target=_train, args=(recipe, options, rank, world, port, last))
    process.start()
    return process


def run_processes(recipe: Recipe, options: Options, world: int, seconds: float = 100) -> None:
    """Train on several processes, as torchrun would start them, to the end, for which all have so many seconds.

    A thread of a process group that outlives the run may abort the process when Python ends: none may be left, but
    where torch's own caches keep the group (fsdp).
    """
    port = free_port()
    processes = [start(recipe, options, rank, world, port) for rank in range(world)]
    deadline = time.monotonic() + seconds
    try:
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        codes = [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.join()
    assert codes == [0] * world, codes


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _train(recipe: Recipe, options: Options, rank: int, world: int, port: int, last: int | None) -> None:
    torch.set_num_threads(1)
    if last is not None:
        step = Training._step
        Training._step = lambda self, batches: step(self, batches) if self.progress.step < last else time.sleep(600)
    if world > 1:
        os.environ |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    before = threads()
    train(recipe, options)
    assert world == 1 or options.parallel == "fsdp" or threads() == before, "threads are left"


def print_threads(arguments: list[str], tell: Callable[[str], None]) -> None:
    """For `launch`: how many threads a process may have."""
    print(os.environ["OMP_NUM_THREADS"], end=";")


def threads() -> int:
    """Of this process, C++'s among them."""
    return len(list(Path("/proc/self/task").iterdir()))


def metrics(folder: Path, kind: str) -> list[dict]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == kind]


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in metrics(folder, "train")]


def command(arguments: list, folder: Path, memory: int | None = None, wait: bool = True):
    """`opencrate …` in a process of its own; returns (exit code, what it printed), or the process if not to wait.

    `memory` is how many bytes it may take beyond what it has.
    """
    log = folder / f"command-{len(list(folder.glob('command-*.txt')))}.txt"
    process = FORKS.Process(target=_command, args=([str(a) for a in arguments], str(log), memory))
    process.start()
    if not wait:
        return process, log
    process.join(200)
    return process.exitcode, log.read_text()


def _command(arguments: list[str], log: str, memory: int | None) -> None:
    import resource

    from opencrate.cli import main

    file = os.open(log, os.O_CREAT | os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    torch.set_num_threads(1)
    if memory is not None:
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + memory, now + memory))
    main(arguments)


SMALL = [
    *("train", "digits", "--name", "small", "--model.embed-dim", "16", "--model.depth", "2", "--model.num-heads", "2"),
    *("--optim.batch", "144", "--schedule.warmup-epochs", "1", "--probe", "8", "--device", "cpu", "--log-steps", "1"),
    *("--no-tensorboard", "--save-steps", "3", "--optim.lr", "1e-3", "--augment.mixup", "0"),
]
