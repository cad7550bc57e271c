"""Under torchrun: a worker that dies is started again, and the run ends as one that was never touched."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from opencrate.recipes import recipe_text
from tests.runs import losses, small_recipe

TORCHRUN = [*("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3"), "-m"]
EPOCHS, STEPS = 8, 9  # steps of an epoch
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A file with a recipe of which every part is random: dropout, mixup, shifts; and a moving average."""
    recipe = small_recipe(optim={"ema": 0.9}, augment={"mixup": 0.2}, schedule={"epochs": EPOCHS})
    file = tmp_path_factory.mktemp("recipe") / "small.yaml"
    file.write_text(recipe_text(replace(recipe, model=replace(recipe.model, proj_drop_rate=0.1))))
    return file


@pytest.fixture(scope="module")
def untouched(tmp_path_factory, recipe):
    """A run that `--processes 2` started, which is torchrun's with two processes."""
    return to_the_end(tmp_path_factory.mktemp("untouched"), recipe, [], ["--processes", "2"])


@pytest.mark.timeout(240)
def test_processes_are_started_by_torchrun(untouched):
    (start,) = json.loads((untouched / "run.json").read_text())
    assert start["processes"] == 2
    assert len(losses(untouched)) == EPOCHS * STEPS
    printed = (untouched / "printed.txt").read_text()
    assert "2 processes (ddp)" in printed
    assert printed.count("top-1 on validation") == 1, "one process sums the run up"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_killed_workers_are_started_again_and_leave_no_trace(tmp_path, recipe, untouched):
    folder = to_the_end(tmp_path, recipe, TORCHRUN, [], kills=((1, 2 * STEPS), (0, 5 * STEPS)))
    assert len(json.loads((folder / "run.json").read_text())) >= 3, "it was not started again"
    assert losses(folder) == losses(untouched)
    for model in ("model", "best"):
        weights = [(run / model / "model.safetensors").read_bytes() for run in (folder, untouched)]
        assert weights[0] == weights[1], model


def to_the_end(parent: Path, recipe: Path, launcher: list[str], options: list[str], kills=()) -> Path:
    """Train with two processes, of which some are killed, each (rank, after this many steps).

    Process groups sometimes abort on a loaded machine, so a run that does not come to its end has a second chance.
    """
    for attempt in ("first", "second"):
        folder = parent / attempt
        folder.mkdir()
        command = [sys.executable, "-m", *launcher, "opencrate", "train", str(recipe), "--out", str(folder), *options]
        command += ["--device", "cpu", "--log-steps", "1", "--save-steps", "4", "--no-tensorboard"]
        with (folder / "printed.txt").open("w") as printed:
            process = subprocess.Popen(command, env=ENVIRONMENT, stdout=printed, stderr=subprocess.STDOUT)
        try:
            for rank, steps in kills:
                kill(process, folder, rank, steps)
            code = process.wait(100)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            process.terminate()  # torchrun ends its workers too
            process.wait(40)
        if code == 0:
            return folder
    pytest.fail(f"exit code {code}\n{(folder / 'printed.txt').read_text()[-3000:]}")


def kill(process: subprocess.Popen, folder: Path, rank: int, steps: int) -> None:
    """End torchrun's worker of this rank as soon as the run has logged that many steps."""
    limit, metrics = time.monotonic() + 60, folder / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count('"train"') >= steps):
        if time.monotonic() > limit:
            raise subprocess.TimeoutExpired(process.args, 60)
        time.sleep(0.005)
    if process.poll() is None:
        os.kill(worker(process.pid, rank), signal.SIGKILL)


def worker(launcher: int, rank: int) -> int:
    """The process id of a child that torchrun gave this rank."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if f"RANK={rank}" in Path(f"/proc/{child}/environ").read_text().split("\0"):
            return int(child)
    raise AssertionError(f"torchrun has no worker of rank {rank}")
