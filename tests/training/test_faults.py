"""Bad luck and bad input, caused for real: what a user reads, and that nothing is lost."""

import contextlib
import math
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from opencrate.checkpoints import load, require_intact, save_pretrained
from opencrate.data.feeds.resident import Resident
from opencrate.measures import DEFINITIONS, LayerTable
from opencrate.tasks import Classification
from opencrate.training import monitors, summary, train
from opencrate.training.checkpoints import Checkpoints
from opencrate.training.step import Stepper
from tests.networks import small
from tests.runs import SMALL, command, interrupted_at, losses, metrics, small_options, small_recipe
from tests.training.test_killing import last_step, require_equal_runs

EPOCHS = ("--schedule.epochs", "12")


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("untouched")
    code, printed = command([*SMALL, *EPOCHS, "--out", folder / "run"], folder)
    assert code == 0, printed
    return folder / "run"


def interrupted(folder, at, number=signal.SIGINT):
    """A run that got a signal after step `at`."""
    process, log = command([*SMALL, *EPOCHS, "--out", folder / "run"], folder, wait=False)
    while last_step(folder / "run") < at:
        assert process.exitcode is None, log.read_text()
        time.sleep(0.002)
    os.kill(process.pid, number)
    process.join()
    return process.exitcode, log.read_text()


def steps_saved(folder):
    return Checkpoints(folder / "run" / "checkpoints").steps()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_a_checkpoint_and_the_same_command_goes_on(tmp_path, untouched, number, code):
    exit_code, printed = interrupted(tmp_path, 20, number)
    assert exit_code == code
    step = steps_saved(tmp_path)[-1]
    assert (
        f"opencrate: stopped at step {step}; a checkpoint is saved, and the same command goes on from there" in printed
    )
    assert "Traceback" not in printed
    code, printed = command([*SMALL, *EPOCHS, "--out", tmp_path / "run", "--resume"], tmp_path)
    assert code == 0
    assert f"small goes on from step {step}:" in printed
    require_equal_runs(untouched, tmp_path / "run")


def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(tmp_path, untouched):
    interrupted(tmp_path, 30, signal.SIGKILL)
    before, newest = steps_saved(tmp_path)[-2:]
    file = tmp_path / "run" / "checkpoints" / f"step-{newest:08d}.pt"
    os.truncate(file, file.stat().st_size // 2)
    code, printed = command([*SMALL, *EPOCHS, "--out", tmp_path / "run"], tmp_path)
    assert code == 0
    assert re.search(
        rf"opencrate: the checkpoint .*step-{newest:08d}\.pt is damaged .*: the one before it is used", printed
    )
    assert f"goes on from step {before}:" in printed
    require_equal_runs(untouched, tmp_path / "run")


def test_a_full_disk_is_one_sentence_and_the_older_checkpoint_is_intact(tmp_path, untouched):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        (tmp_path / "filler").write_bytes(b"x" * 900_000)
        code, printed = command([*SMALL, *EPOCHS, "--out", tmp_path / "run"], tmp_path)
        assert code == 2
        assert re.search(
            r"opencrate: the (checkpoint of step \d+|network) could not be written.*: the disk is full", printed
        )
        assert "Traceback" not in printed
        intact = steps_saved(tmp_path)
        assert intact == [] or Checkpoints(tmp_path / "run" / "checkpoints").newest()["step"] == intact[-1]
        assert not list((tmp_path / "run" / "checkpoints").glob(".*.tmp"))
        (tmp_path / "filler").unlink()
        code, printed = command([*SMALL, *EPOCHS, "--out", tmp_path / "run"], tmp_path)
        assert code == 0, printed
        require_equal_runs(untouched, tmp_path / "run")
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.parametrize("killed", [None, 94])
def test_a_network_that_loses_what_it_had_learned_is_told_of(tmp_path, monkeypatch, caplog, killed):
    """Its pictures turn black after ten epochs: what it says of them is no better than a guess. A kill in the epoch of
    which that is true, and in which nothing is learned, does not hide it."""
    normalise, calls = Resident.normalise, []

    def blackened(self, images):
        calls.append(len(images) == 144)
        return normalise(self, images) * (0 if sum(calls) > 90 else 1)

    monkeypatch.setattr(Resident, "normalise", blackened)
    monkeypatch.setattr(monitors, "LEARNED", 0.1)  # by then
    recipe = small_recipe(probe=0, schedule={"epochs": 12}, optim={"lr": 3e-3})
    lives(killed, recipe, small_options(tmp_path, evaluate_epochs=12), monkeypatch)
    (line,) = metrics(tmp_path, "relapse")
    assert line["epoch"] == 11
    assert line["lowest"] < math.log(10) - 0.1
    assert line["loss"] > math.log(10) - 0.01
    warning = r"epoch 11: loss 2\.\d\d is back at chance level \(best so far \d\.\d\d\); try a lower --optim\.lr"
    assert re.search(warning, caplog.text)


def lives(killed, recipe, options, monkeypatch):
    if killed is not None:
        with interrupted_at(killed, monkeypatch):
            train(recipe, options)
    return train(recipe, options)


@pytest.mark.parametrize("killed", [None, 13])
def test_r_c_that_halves_within_an_epoch_is_told_of(tmp_path, monkeypatch, caplog, killed):
    """Of four epochs of nine steps, before the first of which nothing counts: weights are fresh then."""
    rates = iter([[8.0, 8.0], [3.0, 3.0], [3.0, 1.4], [2.9, 1.4], [1.0, 1.4]])

    def layerwise_by(model, images, definitions, resamples):
        assert definitions == ("paper", "unit")  # the first is shown, the second watched
        watched = tuple(_row(i + 1, rate) for i, rate in enumerate(next(rates)))
        same = tuple(_row(row["layer"], 5.0) for row in watched)
        return [LayerTable(DEFINITIONS[name], 4, rows) for name, rows in zip(definitions, (same, watched), strict=True)]

    monkeypatch.setattr(monitors, "layerwise_by", layerwise_by)
    lives(
        killed, small_recipe(probe=4, schedule={"epochs": 4}), small_options(tmp_path, evaluate_epochs=4), monkeypatch
    )
    halved = [(line["epoch"], line["layers"], line["spread"]) for line in metrics(tmp_path, "halved")]
    assert halved == [(2, [2], [2]), (4, [1], [1])]
    assert "epoch 2: R^c (definition unit) has halved since the epoch before, at 1 of 2 layers, and the" in caplog.text
    assert "and the tokens' spread at 1: tokens may be collapsing" in caplog.text
    assert caplog.text.count("has halved since") == 2
    assert {row["Rc"] for line in metrics(tmp_path, "layers") for row in line["rows"]} == {5.0}


def _row(layer, rate):
    return {"layer": layer, "Rc": rate, "Rc_std": 0.0, "nonzero": 0.5, "nonzero_std": 0.0, "spread": rate / 10}


def test_steps_without_a_finite_loss_are_skipped_and_counted(tmp_path, monkeypatch, caplog):
    normalise, calls = Resident.normalise, []

    def poisoned(self, images):
        calls.append(1)
        return normalise(self, images) * (float("nan") if len(images) == 144 and len(calls) in (5, 6, 14) else 1)

    monkeypatch.setattr(Resident, "normalise", poisoned)
    result = train(small_recipe(probe=0), small_options(tmp_path, evaluate_epochs=3))
    assert result["skipped_steps"] == 3
    assert [(line["step"], line["skipped"]) for line in metrics(tmp_path, "skipped")] == [(5, 1), (6, 2), (14, 3)]
    assert "step 6 was skipped: its loss is not finite (2 in a row)" in caplog.text
    assert all(torch.isfinite(w).all() for w in Checkpoints(tmp_path / "checkpoints").newest()["model"].values())
    assert sum(loss is not None for loss in losses(tmp_path)) == 27 - 3


def test_a_run_whose_loss_stays_infinite_stops_with_the_last_good_checkpoint(tmp_path):
    arguments = [*SMALL, "--schedule.epochs", "4", "--out", tmp_path / "run", "--optim.lr", "1e30", "--save-steps", "1"]
    code, printed = command(arguments, tmp_path)
    assert code == 2
    match = re.search(
        r"opencrate: the loss was not finite in 5 steps in a row, the last of them step (\d+):"
        r" the last good checkpoint, of step (\d+), is kept",
        printed,
    )
    assert match, printed
    assert int(match[2]) == int(match[1]) - 6  # the one after it gave the first infinite loss
    assert steps_saved(tmp_path)[-1] == int(match[2])
    weights = Checkpoints(tmp_path / "run" / "checkpoints").newest()["model"]
    assert max(weight.abs().max() for weight in weights.values()) < 1e3


def test_weights_that_are_not_finite_are_not_saved(tmp_path, monkeypatch):
    step = Stepper._optimizer_step

    def poisoned(self):
        if self.optimizer.state and next(iter(self.optimizer.state.values())) and len(calls) == 13:
            next(self.model.parameters()).grad.fill_(float("nan"))
        calls.append(1)
        return step(self)

    calls = []
    monkeypatch.setattr(Stepper, "_optimizer_step", poisoned)
    with pytest.raises(
        ValueError, match=r"no longer finite at step 18, .*: the last good checkpoint, of step 9, is kept"
    ):
        train(small_recipe(), small_options(tmp_path))
    monkeypatch.setattr(Stepper, "_optimizer_step", step)
    train(small_recipe(), small_options(tmp_path))
    calls.clear()
    monkeypatch.setattr(Stepper, "_optimizer_step", poisoned)
    result = train(small_recipe(optim={"clip": 1.0}), small_options(tmp_path / "clipped"))
    assert result["skipped_steps"] == 1


@pytest.mark.parametrize("weight", [0, 3, *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 2, 4, 5, 6, 7, 8, 9))])
def test_a_gradient_that_is_not_finite_in_the_last_step_of_an_epoch_leaves_the_best_network(
    tmp_path, monkeypatch, weight
):
    step, calls = Stepper._optimizer_step, []

    def poisoned(self):
        calls.append(1)
        if len(calls) == 18:  # of nine steps an epoch
            list(self.model.parameters())[weight].grad.flatten()[0] = float("nan")
        return step(self)

    monkeypatch.setattr(Stepper, "_optimizer_step", poisoned)
    with pytest.raises(ValueError, match=r"no longer finite.*--optim\.clip 1 skips steps whose gradient is not finite"):
        train(small_recipe(), small_options(tmp_path / "run"))
    best = load(tmp_path / "run" / "best").state_dict()
    assert all(value.isfinite().all() for value in best.values())
    require_intact(tmp_path / "run" / "best")
    assert len(calls) == 18


def test_a_damaged_best_network_is_said_and_replaced(tmp_path, monkeypatch, caplog):
    with interrupted_at(20, monkeypatch):
        train(small_recipe(), small_options(tmp_path))
    file = tmp_path / "best" / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-100] + bytes(100))
    with pytest.raises(ValueError, match="is damaged: its weights are not those that were written"):
        require_intact(tmp_path / "best")
    result = train(small_recipe(), small_options(tmp_path))
    assert (
        f"{file} is damaged: its weights are not those that were written; the best network of the epochs to come"
        " takes its place"
    ) in caplog.messages
    require_intact(tmp_path / "best")
    assert result["best"]["epoch"] == 3


BRIEF = {"epochs": 2, "warmup_epochs": 0}


def test_a_network_without_its_configuration_is_damaged(tmp_path):
    file = save_pretrained(small(), tmp_path) / "config.json"
    require_intact(tmp_path)
    for content in (None, "{", "[]", "{}"):
        file.unlink() if content is None else file.write_text(content)
        with pytest.raises(ValueError, match=r"config\.json"):
            require_intact(tmp_path)


def damage_folder(folder, lost):
    """Cut a file short, or remove the folder."""
    if lost == "model.safetensors":
        os.truncate(folder / lost, 3000)
    elif lost:
        (folder / lost).unlink()
    else:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("best", "lost"), [(1, "config.json"), (1, ""), (2, "config.json"), (2, "model.safetensors"), (2, "")]
)
def test_a_best_network_that_is_damaged_after_the_last_epoch(tmp_path, monkeypatch, caplog, best, lost):
    """It is written again if it is the last one, whose checkpoint is there, and else set aside."""
    monkeypatch.setattr(Classification, "is_better", lambda self, metrics, before: best == 2 or not before)
    recipe, options = small_recipe(probe=0, schedule=BRIEF), small_options(tmp_path)
    before = train(recipe, options)
    assert before["best"]["epoch"] == best
    file = tmp_path / "best" / "model.safetensors"
    weights = file.read_bytes()
    damage_folder(tmp_path / "best", lost)
    (tmp_path / "result.json").unlink()
    result = train(recipe, options)
    (message,) = caplog.messages
    if best == 2:
        assert message.endswith("; it is written again from the checkpoint")
        assert file.read_bytes() == weights
        require_intact(tmp_path / "best")
        assert result["best"] == before["best"]
        assert f"the best epoch's: {tmp_path / 'best'}" in summary(result)
    else:
        assert message.endswith("; no epoch is to come, so the run ends without a best network")
        assert result["best"] == {}
        assert not (tmp_path / "best").exists()
        assert "the best epoch's" not in summary(result)
    assert (tmp_path / "best.damaged").is_dir() == bool(lost)


@pytest.mark.parametrize(
    ("network", "lost"), [("model", "model.safetensors"), ("model", ""), ("best", "config.json"), ("best", "")]
)
def test_a_damaged_network_of_a_finished_run_is_said_and_what_is_said_helps(
    tmp_path, monkeypatch, caplog, network, lost
):
    monkeypatch.setattr(Classification, "is_better", lambda *_: True)
    recipe, options = small_recipe(probe=0, schedule=BRIEF), small_options(tmp_path)
    train(recipe, options)
    train(recipe, options)
    assert caplog.messages == []
    weights, result = (tmp_path / network / "model.safetensors").read_bytes(), tmp_path / "result.json"
    for then in ("writes again what its last checkpoint holds", "trains again"):
        caplog.clear()
        damage_folder(tmp_path / network, lost)
        assert train(recipe, options)["already"]
        (message,) = caplog.messages
        assert str(tmp_path / network) in message
        assert message.endswith(f"; delete {result}, and the same command {then}")
        result.unlink()
        train(recipe, options)
        assert (tmp_path / network / "model.safetensors").read_bytes() == weights
        require_intact(tmp_path / network)
        shutil.rmtree(tmp_path / "checkpoints")


def test_a_kept_epoch_is_linked_again(tmp_path, monkeypatch):
    options = small_options(tmp_path, keep_epochs=1)
    with interrupted_at(10, monkeypatch):
        train(small_recipe(), options)
    (tmp_path / "checkpoints" / "step-00000011.pt").unlink()
    kept = tmp_path / "checkpoints" / "epoch-0001.pt"
    kept.unlink()  # as if a kill had come before
    train(small_recipe(), options)
    assert torch.load(kept, weights_only=True)["step"] == 9


def test_the_layers_of_the_last_step_are_written_once(tmp_path):
    train(small_recipe(), small_options(tmp_path))
    before = metrics(tmp_path, "layers")
    (tmp_path / "result.json").unlink()  # as if a kill had come before
    result = train(small_recipe(), small_options(tmp_path))
    assert metrics(tmp_path, "layers") == before
    assert result["layers"]["rows"] == before[-1]["rows"]


def test_out_of_memory_names_the_micro_batch_to_lower(tmp_path):
    large = [
        *SMALL,
        "--schedule.epochs",
        "2",
        "--out",
        tmp_path / "run",
        "--model.embed-dim",
        "512",
        "--save-steps",
        "0",
    ]
    code, printed = command([*large, "--optim.batch", "1400", "--micro-batch", "1400"], tmp_path, memory=2**29)
    assert code == 2, printed
    assert "opencrate: out of memory with a micro-batch of 1400 on cpu: lower it, --micro-batch 700" in printed
    assert "(the global batch stays 1400)" in printed
    assert "Traceback" not in printed


def test_a_second_run_in_the_same_folder_is_refused(tmp_path):
    process, log = command([*SMALL, "--schedule.epochs", "500", "--out", tmp_path / "run"], tmp_path, wait=False)
    while last_step(tmp_path / "run") < 1:
        assert process.exitcode is None, log.read_text()
        time.sleep(0.01)
    code, printed = command([*SMALL, "--schedule.epochs", "500", "--out", tmp_path / "run"], tmp_path)
    process.kill()
    process.join()
    assert code == 2
    assert printed == f"opencrate: another run is using {tmp_path / 'run'}: give this one a folder of its own, --out\n"


def test_another_recipe_in_the_same_folder_is_refused(tmp_path, untouched):
    code, printed = command([*SMALL, *EPOCHS, "--out", untouched, "--optim.lr", "1e-4"], tmp_path)
    assert code == 2
    assert printed == (
        f"opencrate: {untouched} holds a run with another recipe (optim.lr 0.001 → 0.0001):"
        " give this one a folder of its own, --out\n"
    )


def test_a_finished_run_is_not_run_again(tmp_path, untouched):
    before = (untouched / "metrics.jsonl").read_bytes()
    code, printed = command([*SMALL, *EPOCHS, "--out", untouched], tmp_path)
    assert code == 0
    assert "it had finished before, nothing was done now" in printed
    assert (untouched / "metrics.jsonl").read_bytes() == before


def test_there_is_nothing_to_resume(tmp_path):
    code, printed = command([*SMALL, "--out", tmp_path / "run", "--resume"], tmp_path)
    assert (code, printed) == (2, f"opencrate: there is no run to resume in {tmp_path / 'run'}\n")


def picture_folder(root, broken):
    draw = np.random.default_rng(0)
    for split, count in (("train", 24), ("val", 6)):
        for label in ("cat", "dog"):
            (root / split / label).mkdir(parents=True)
            for i in range(count):
                Image.fromarray(draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(
                    root / split / label / f"{i}.jpg"
                )
    for i in range(broken):
        file = root / "train" / "cat" / f"{i}.jpg"
        file.write_bytes(file.read_bytes()[:-100])


FOLDER = [
    *("--data.name", "folder", "--data.num-classes", "2", "--data.in-chans", "3", "--data.mean", "0.5", "0.5", "0.5"),
    *("--data.std", "0.5", "0.5", "0.5", "--optim.batch", "16", "--schedule.epochs", "2", "--save-steps", "0"),
]


@pytest.mark.parametrize("crop", ["padded", "resized"])  # on the device, and in worker processes
def test_a_broken_jpeg_is_named_and_skipped(tmp_path, crop):
    picture_folder(tmp_path / "data", broken=1)
    arguments = [*SMALL, *FOLDER, "--data.root", tmp_path / "data", "--augment.crop", crop, "--out", tmp_path / "run"]
    code, printed = command([*arguments, "--data.max-decode-failures", "0.05", "--workers", "2"], tmp_path)
    assert code == 0, printed
    assert re.search(r"opencrate: skipped .*train/cat/0\.jpg, which does not decode: .*truncated", printed)
    assert printed.count("which does not decode") == 1


@pytest.mark.parametrize("crop", ["padded", "resized"])
def test_too_many_broken_jpegs_stop_the_run(tmp_path, crop):
    picture_folder(tmp_path / "data", broken=4)
    arguments = [*SMALL, *FOLDER, "--data.root", tmp_path / "data", "--augment.crop", crop, "--out", tmp_path / "run"]
    code, printed = command([*arguments, "--data.max-decode-failures", "0.05"], tmp_path)
    assert code == 2, printed
    assert "of 48 pictures do not decode, more than the fraction 0.05 that data.max_decode_failures allows" in printed
    assert "Traceback" not in printed


def test_a_signal_to_the_whole_group_leaves_the_workers_time_for_a_checkpoint(tmp_path):
    picture_folder(tmp_path / "data", broken=0)
    assert signal_to_the_group(tmp_path / "data", tmp_path) == 143
    assert steps_saved(tmp_path)[-1] >= 4


def signal_to_the_group(data, folder):
    arguments = [*SMALL, *FOLDER, "--data.root", data, "--augment.crop", "resized", "--workers", "2"]
    process, log = command([*arguments, "--schedule.epochs", "200", "--out", folder / "run"], folder, wait=False)
    while last_step(folder / "run") < 4:
        assert process.exitcode is None, log.read_text()
        time.sleep(0.002)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for number in [process.pid, *map(int, children), process.pid]:
        with contextlib.suppress(ProcessLookupError):  # a worker whose epoch is over
            os.kill(number, signal.SIGTERM)
    process.join()
    return process.exitcode


def test_fewer_pictures_than_a_batch(tmp_path):
    picture_folder(tmp_path / "data", broken=0)
    arguments = [*SMALL, *FOLDER, "--data.root", tmp_path / "data", "--out", tmp_path / "run", "--optim.batch", "64"]
    code, printed = command(arguments, tmp_path)
    assert code == 2
    assert "opencrate: the training split has 48 pictures, fewer than a batch of 64: lower it, --optim.batch" in printed
