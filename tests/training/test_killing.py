"""A run that is killed at any moment ends with the weights of one that was never touched, bit for bit."""

import json
import os
import random
import signal
import time
from dataclasses import replace

import pytest
import torch

from opencrate.training.checkpoints import Checkpoints
from tests.runs import losses, metrics, small_options, small_recipe, start


def everything_random(epochs):
    """Dropout, mixup, shifts and a moving average: everything that a checkpoint must bring back."""
    recipe = small_recipe(optim={"ema": 0.9}, augment={"mixup": 0.2}, schedule={"epochs": epochs})
    return replace(recipe, model=replace(recipe.model, proj_drop_rate=0.1))


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def require_equal_runs(one, other):
    assert (one / "model" / "model.safetensors").read_bytes() == (other / "model" / "model.safetensors").read_bytes()
    states = [Checkpoints(folder / "checkpoints").newest() for folder in (one, other)]
    for state in states:
        del state["seconds"]
    assert states[0].keys() == states[1].keys()
    for key in states[0]:
        assert equal(states[0][key], states[1][key]), key
    assert losses(one) == losses(other)
    for kind in ("validation", "layers"):
        assert [line["step"] for line in metrics(one, kind)] == [line["step"] for line in metrics(other, kind)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_leave_no_trace(tmp_path, kills):
    recipe = everything_random(epochs=2 * kills)
    untouched, folder = (small_options(tmp_path / name, save_steps=4) for name in ("untouched", "killed"))
    start(recipe, untouched).join()
    draw, total = random.Random(0), 9 * recipe.schedule.epochs
    for life in range(kills):
        begun = last_step(folder.out)
        process = start(recipe, folder, last=begun + total // kills - 1)  # while this process may be waiting for a core
        until = begun + draw.randint(4, total // kills - 3)
        while life % 4 and process.exitcode is None and last_step(folder.out) < until:
            time.sleep(0.001)
        process.join(draw.uniform(0, 0.05 if life % 4 else 0.5))  # every fourth is killed while it starts
        assert process.exitcode is None, "the run ended before it could be killed"
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert last_step(folder.out) > total // 6, "the kills came before there was anything to lose"
    start(recipe, folder).join()
    require_equal_runs(untouched.out, folder.out)


def last_step(folder):
    """The last step that a run has written down."""
    lines = (folder / "metrics.jsonl").read_bytes().splitlines() if (folder / "metrics.jsonl").exists() else []
    numbers = [json.loads(line)["step"] for line in lines[-3:] if line.endswith(b"}")]
    return max(numbers, default=0)
