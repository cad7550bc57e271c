"""A kill before every change of the file system: nothing is lost, nothing is left."""

import json
import random
from dataclasses import replace

import pytest
import torch

from opencrate.checkpoints import require_intact
from tests.runs import small_options, small_recipe, start
from tests.training.crash import killed_at
from tests.training.test_killing import equal

TIMES = {"seconds", "images_per_second", "training_seconds", "start_up_seconds"}


@pytest.fixture(scope="module")
def recipe():
    """Everything random, a moving average, and two epochs of which the second is better."""
    recipe = small_recipe(optim={"ema": 0.5, "batch": 288, "lr": 1e-2}, augment={"mixup": 0.2}, schedule={"epochs": 3})
    return replace(recipe, model=replace(recipe.model, proj_drop_rate=0.1, depth=1))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, recipe):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    start(recipe, options(folder)).join()
    assert len(list((folder / "checkpoints").glob("epoch-*.pt"))) == 3
    assert (folder / "best" / "model.safetensors").is_file()
    return folder


def options(folder):
    return small_options(folder, save_steps=2, keep_epochs=1)


def survives(number, recipe, undisturbed, folder):
    """Kill the run before change `number`, start it again, and compare; "" if there was no such change."""
    code, what = killed_at(number, recipe, options(folder))
    if code == 0:
        require_equal(undisturbed, folder, "nothing was killed")
        return ""
    assert code == -9, (number, what)
    start(recipe, options(folder)).join()
    require_equal(undisturbed, folder, f"change {number}: {what}")
    return what


def require_equal(one, other, what):
    files = [sorted(str(file.relative_to(run)) for file in run.rglob("*")) for run in (one, other)]
    assert files[0] == files[1], what
    for network in ("model", "best"):
        require_intact(other / network)
        assert (one / network / "model.safetensors").read_bytes() == (
            other / network / "model.safetensors"
        ).read_bytes(), what
    for name in files[0]:
        if name.endswith(".pt"):
            states = [torch.load(run / name, weights_only=True) for run in (one, other)]
            assert equal(*(without_times(state) for state in states)), (what, name)
    assert (one / "recipe.yaml").read_text() == (other / "recipe.yaml").read_text(), what
    results = [json.loads((run / "result.json").read_text()) | {"model": ""} for run in (one, other)]
    assert without_times(results[0]) == without_times(results[1]), what
    lines = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (one, other)]
    # The time of an epoch is that of a whole one: an epoch that was interrupted has none.
    lines = [[without_times(line) for line in run if line["kind"] != "epoch"] for run in lines]
    assert lines[0] == lines[1], what


def without_times(values):
    return {key: value for key, value in values.items() if key not in TIMES}


@pytest.mark.timeout(300)
def test_a_kill_before_some_changes(tmp_path, recipe, undisturbed):
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    for number in random.Random(seed).sample(range(100), 4):
        survives(number, recipe, undisturbed, tmp_path / str(number))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_kill_before_every_change(tmp_path, recipe, undisturbed):
    number = 0
    while what := survives(number, recipe, undisturbed, tmp_path / str(number)):
        print(f"{number}: {what}")
        number += 1
    assert number > 100
