"""One run of the plan, in this process: what it finds, and what it does not do twice."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import filelock
import numpy as np
import pytest
from safetensors.torch import load_file

import opencrate
from opencrate.evaluation import measure as measuring
from opencrate.evaluation import measure_checkpoint
from opencrate.run_recipe import data_of
from opencrate.settings import Measuring
from reproduction.place import Place
from reproduction.plan import LOOKS
from reproduction.run_one import _run_to_end, perform

from .tiny import tiny

SCRATCH = tiny("light", parts=("table1",))
TUNED = tiny("light", start=SCRATCH)
REAL_GOES_BY_NAMES = "ImageNet-ReaL needs the names of files: give the folder of ImageNet's validation pictures"


def starts(folder):
    return len(json.loads((folder / "run.json").read_text()))


def weights(folder):
    return (folder / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run and what was found; tests work on copies."""
    place = Place(tmp_path_factory.mktemp("trained"), device="cpu", samples=8)
    return place, perform(SCRATCH, place)


@pytest.fixture
def place(trained, tmp_path):
    shutil.copytree(trained[0].out, tmp_path / "plan")
    return replace(trained[0], out=tmp_path / "plan")


def test_the_row(trained):
    place, row = trained
    folder = place.folder(SCRATCH.key)
    found = measure_checkpoint(str(folder), Measuring(data_of(str(folder), None), device="cpu", precision="fp32"))
    assert row["top1"] == pytest.approx(found["top1"], abs=1e-9)
    assert row["parameters"] == sum(weight.numel() for weight in load_file(folder / "model/model.safetensors").values())
    assert row["epochs"] == 1
    assert row["made"]["hardware"] == f"{os.cpu_count()} CPU cores"
    assert row["looks"] == {}
    assert row["curve"]["epoch"] == [1]
    assert row["curve"]["top1"] == [pytest.approx(found["top1"], rel=1e-4)]
    assert row["curve"]["loss"] == [pytest.approx(found["loss"], rel=1e-4)]
    assert row["curve"].keys() == {"epoch", "top1", "loss", "training_top1", "training_loss"}
    assert row["seconds"] >= row["training_seconds"] > 0


def test_reassessed_labels_judge_it_where_there_are_any(place, monkeypatch, caplog):
    run = replace(SCRATCH, real=True)
    assert perform(run, place)["looks"] == {"real": {"why": REAL_GOES_BY_NAMES}}
    assert f"{run.key} has no ReaL accuracy: {REAL_GOES_BY_NAMES}" in caplog.text

    def by_name(model, feed, world, precision, batch):
        assert (len(feed), precision) == (359, "fp32")
        return 76.5432

    monkeypatch.setattr(measuring, "real", by_name)
    assert perform(run, place)["looks"] == {"real": {"top1": 76.54}}


def test_looking_again_is_not_training_again(place):
    folder = place.folder(SCRATCH.key)
    before = weights(folder), (folder / "result.json").stat().st_mtime_ns
    row = perform(replace(SCRATCH, parts=frozenset(LOOKS)), place)
    assert row["looks"].keys() == set(LOOKS)
    assert (weights(folder), (folder / "result.json").stat().st_mtime_ns) == before
    assert starts(folder) == 1, "run.json tells who trained it"
    model = opencrate.load(folder / "model")
    for layer, coherence in zip(model.blocks, row["looks"]["subspaces"]["coherence"], strict=True):
        k, d, p = layer.U.shape
        unit = layer.U.detach().double().permute(0, 2, 1).reshape(k * p, d).numpy()
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
        cosines = np.abs(unit @ unit.T)[np.kron(np.eye(k), np.ones((p, p))) == 0]
        assert coherence == pytest.approx(cosines.mean(), abs=6e-5)
    layers = row["looks"]["fig3"]["unit"]
    assert layers.keys() == {"validation", "training", "untrained"}
    found = measure_checkpoint(
        str(folder), Measuring(data_of(str(folder), None), layers="unit", samples=8, device="cpu")
    )
    assert layers["validation"]["Rc"] == pytest.approx([row["Rc"] for row in found["layers"].rows], rel=1e-4)
    assert layers["untrained"]["Rc"] != layers["validation"]["Rc"]
    assert row["looks"]["fig4"].keys() == {"0", "1"}
    audited = row["looks"]["audit"]
    lists = ("trained_layers", "untrained_layers", "gradient_cosine", "unit_cosine")
    assert [len(audited[name]) for name in lists] == [len(model.blocks)] * 4
    assert audited["trained_layers"][0]["compress"]["grade"] == "too few"
    assert audited["gradient_cosine"] != audited["unit_cosine"]
    for name in ("tokens", "subspaces"):
        assert (place.out / "figures" / row["looks"][name]["figure"]).read_bytes().startswith(b"\x89PNG")


def test_another_recipe_of_the_same_name_begins_anew_and_keeps_the_log(place):
    folder = place.folder(SCRATCH.key)
    (folder / "log.txt").write_text("before\n")
    before = weights(folder)
    perform(tiny("light", optim={"lr": 2e-3}), place)
    assert weights(folder) != before
    assert starts(folder) == 1
    assert (folder / "log.txt").read_text().startswith("before\n")


def test_a_kill_while_an_older_run_is_removed(place, monkeypatch):
    """Whenever it comes: what is left of the older run has its recipe with it, and is not taken for the newer one's."""
    folder, newer, unlink, killed = place.folder(SCRATCH.key), tiny("light", optim={"lr": 2e-3}), Path.unlink, 0

    def once(path, *arguments, **keywords):
        monkeypatch.setattr(Path, "unlink", kill)
        unlink(path, *arguments, **keywords)

    def kill(path, *arguments, **keywords):
        raise KeyboardInterrupt

    while {file.name for file in folder.iterdir()} - {"log.txt", ".lock"}:
        assert "lr: 0.001" in (folder / "recipe.yaml").read_text()
        monkeypatch.setattr(Path, "unlink", once)
        with pytest.raises(KeyboardInterrupt):
            perform(newer, place)
        killed += 1
    monkeypatch.setattr(Path, "unlink", unlink)
    assert killed > 2
    perform(newer, place)
    assert starts(folder) == 1


def test_a_record_that_was_deleted_is_not_needed(place):
    """As the sentence about a damaged one advises."""
    (place.folder(SCRATCH.key) / "run.json").unlink()
    made = perform(SCRATCH, place)["made"]
    assert (made["hardware"], made["revision"]) == ("unknown", None)
    assert made["started"].startswith("20")


def test_fine_tuning_is_repeated_if_its_start_is_another_network(place):
    """The recipe of fine-tuning itself is the same, and so is the folder that it starts from."""
    tuned = place.folder(TUNED.key)
    perform(TUNED, place)
    before = weights(tuned)
    perform(TUNED, place)
    assert (weights(tuned), starts(tuned)) == (before, 1)
    perform(tiny("light", optim={"lr": 2e-3}), place)
    perform(TUNED, place)
    assert weights(tuned) != before


def test_a_plan_may_move(place, tmp_path):
    """Also a run that starts from another, and pictures, to another place and in another form."""
    perform(TUNED, place)
    before = (place.folder(TUNED.key) / "result.json").stat().st_mtime_ns
    moved = replace(place, out=place.out.rename(tmp_path / "moved"))
    recipe = replace(TUNED.recipe, data=replace(TUNED.recipe.data, root="elsewhere", name="idx"))
    assert perform(replace(TUNED, recipe=recipe), moved)["pictures"] == "digits"  # the form it was trained on
    folder = moved.folder(TUNED.key)
    assert (folder / "result.json").stat().st_mtime_ns == before, "it was trained again"
    assert f"start: {moved.folder(SCRATCH.key)}" in (folder / "recipe.yaml").read_text()
    assert "root: elsewhere" in (folder / "recipe.yaml").read_text()


@pytest.mark.parametrize("gone", ["model", "everything"])
def test_a_network_that_is_gone_is_trained_again_to_the_same_weights(place, gone):
    folder = place.folder(SCRATCH.key)
    before = weights(folder)
    shutil.rmtree(folder / "model" if gone == "model" else folder)
    assert not place.has_network(SCRATCH.key)
    perform(SCRATCH, place)
    assert place.has_network(SCRATCH.key)
    assert weights(folder) == before


def test_a_process_that_still_saves_the_run_is_waited_for(place):
    """As after a kill of the command, whose process has not noticed yet."""
    lock, released = filelock.FileLock(place.folder(SCRATCH.key) / ".lock", thread_local=False), []

    def release():
        released.append(time.monotonic())
        lock.release()

    lock.acquire()
    threading.Timer(0.5, release).start()
    perform(replace(SCRATCH, parts=frozenset({"fig4"})), place)
    assert released


def test_a_signal_is_handed_on_to_torchrun(tmp_path):
    """Else it would train on, alone."""
    script = """
import pathlib, signal, sys, time
def stop(*_):
    pathlib.Path("saved").touch()
    sys.exit(7)
signal.signal(signal.SIGTERM, stop)
pathlib.Path("ready").touch()
time.sleep(60)
"""
    (tmp_path / "script.py").write_text(f"import os\nos.chdir({str(tmp_path)!r})\n{script}")

    def ask():
        while not (tmp_path / "ready").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=ask).start()
    assert _run_to_end([sys.executable, str(tmp_path / "script.py")]) == 7
    assert (tmp_path / "saved").exists()
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_by_torchrun(tmp_path):
    """On two processes a run finds what it finds on one, as far as sums in another order allow."""
    place = Place(tmp_path, device="auto", processes=2, samples=8)
    row = perform(SCRATCH, place)
    (start,) = json.loads((place.folder(SCRATCH.key) / "run.json").read_text())
    assert start["processes"] == 2
    alone = perform(SCRATCH, Place(tmp_path / "alone", device="cpu", samples=8))
    assert row["top1"] == pytest.approx(alone["top1"], abs=1.0)
