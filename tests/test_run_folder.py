"""The run's folder: one run at a time, one recipe, and what made it."""

import json
import os
import platform
import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import opencrate
from opencrate.files import write_atomically
from opencrate.recipes import RECIPES, read_recipe
from opencrate.run_folder import RunFolder
from opencrate.run_recipe import data_of, load_network
from opencrate.training.start import begin, provenance
from tests.runs import FORKS

RECIPE = RECIPES["digits"]()


def hold(path, ready):
    with RunFolder(path).locked():
        ready.set()
        signal.pause()


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run")


@pytest.mark.skipif(os.name != "posix", reason="kills a process as POSIX does")
def test_a_second_run_is_refused_until_the_first_is_gone(folder):
    ready = FORKS.Event()
    other = FORKS.Process(target=hold, args=(folder.path, ready))
    other.start()
    try:
        assert ready.wait(60)
        with pytest.raises(ValueError) as caught, folder.locked():  # noqa: PT011, compared below
            pass
        assert str(caught.value) == (f"another run is using {folder.path}: give this one a folder of its own, --out")
    finally:
        os.kill(other.pid, signal.SIGKILL)
        other.join()
    with folder.locked():
        pass


def test_the_lock_is_let_go_after_an_error(folder):
    with pytest.raises(KeyError), folder.locked():
        raise KeyError
    with folder.locked():
        pass


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(ValueError, match=r"run is a file: a run needs a folder$"), RunFolder(tmp_path / "run").locked():
        pass


@pytest.fixture
def begun(folder):
    folder.path.mkdir()
    begin(folder, RECIPE, {"device": "cpu"}, resume=False)
    return folder


def test_what_made_a_run_is_written_down(begun):
    assert read_recipe(begun.recipe) == RECIPE
    (start,) = json.loads(begun.record.read_text())
    assert start["seed"] == RECIPE.seed
    assert start["options"] == {"device": "cpu"}
    assert start["processes"] == 1
    assert start["versions"]["opencrate"] == opencrate.__version__
    assert start["versions"]["torch"] == torch.__version__
    assert start["versions"]["python"] == platform.python_version()
    assert start["hardware"]["cpus"] == os.cpu_count()
    assert start["hardware"]["machine"] == platform.machine()
    assert start["command"].split()[0] == sys.orig_argv[0]
    assert sorted(file.name for file in begun.path.iterdir()) == ["recipe.yaml", "run.json"]


def test_the_revision_is_gits(begun):
    """With a + if the package was changed since."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=opencrate.__path__[0])
    wanted = head.stdout.strip() if head.returncode == 0 else None
    found = json.loads(begun.record.read_text())[0]["git"]
    assert (found and found.removesuffix("+")) == wanted


@pytest.mark.parametrize(
    "error", [FileNotFoundError, subprocess.TimeoutExpired(["git"], 10)], ids=["no git", "slow git"]
)
def test_there_may_be_no_revision(monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(subprocess, "run", fail)
    assert provenance(0, {})["git"] is None


def test_every_start_is_added(begun):
    begin(begun, RECIPE, {"device": "cuda"}, resume=True)
    assert [start["options"]["device"] for start in json.loads(begun.record.read_text())] == ["cpu", "cuda"]


def test_a_start_after_the_end_is_not_added(begun):
    """torchrun starts again what fails while it leaves: run.json stays that of those who trained."""
    before = begun.record.read_bytes()
    begun.result.write_text("{}")
    begin(begun, RECIPE, {"device": "cuda"}, resume=False)
    assert begun.record.read_bytes() == before


def test_a_start_that_came_to_nothing_leaves_the_folder_free(begun):
    changed = replace(RECIPE, optim=replace(RECIPE.optim, lr=0.5))
    begin(begun, changed, {}, resume=False)
    assert read_recipe(begun.recipe) == changed


def test_another_recipe_is_refused(begun):
    begun.checkpoints.mkdir()
    (begun.checkpoints / "step-00000001.pt").touch()
    before = begun.recipe.read_text()
    for renamed in (replace(RECIPE, name="other"), replace(RECIPE, expected=replace(RECIPE.expected, top1=1.0))):
        begin(begun, renamed, {}, resume=False)  # nothing that is computed differs
    batch = RECIPE.optim.batch
    changed = replace(RECIPE, optim=replace(RECIPE.optim, lr=0.5, batch=7, clip=3.0), probe=3, seed=9)
    with pytest.raises(ValueError) as caught:  # noqa: PT011, compared below
        begin(begun, changed, {}, resume=False)
    assert str(caught.value) == (
        f"{begun.path} holds a run with another recipe (optim.lr {RECIPE.optim.lr} → 0.5, optim.batch {batch} → 7,"
        " optim.clip 0.0 → 3.0, …): give this one a folder of its own, --out"
    )
    assert begun.recipe.read_text() == before


def test_nothing_to_resume(folder):
    with pytest.raises(ValueError) as caught:  # noqa: PT011, compared below
        begin(folder, RECIPE, {}, resume=True)
    assert str(caught.value) == f"there is no run to resume in {folder.path}"


def test_the_result_of_a_finished_run(begun):
    assert begun.finished() is None
    result = dict.fromkeys(("steps", "epochs", "skipped_steps", "training_seconds", "start_up_seconds"), 1)
    result |= {"recipe": "digits", "top1": 97.5, "best": {"epoch": 1}, "layers": None, "model": "run/model"}
    write_atomically(begun.result, json.dumps(result))
    assert begun.finished() == result
    write_atomically(begun.result, json.dumps(result | {"steps": "many"}))
    with pytest.raises(
        ValueError, match=r"result\.json is damaged \(steps: Input should be a valid integer, .+\): delete it"
    ):
        begun.finished()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b'{"top1": 9', "Expecting ',' delimiter: line 1 column 11 (char 10)"),
        (b"\xff\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        (b"3", "it is no {kind}"),
    ],
)
def test_one_sentence_for_damaged_files(begun, content, reason):
    for file, kind, read in (
        (begun.result, "dict", begun.finished),
        (begun.record, "list", lambda: begin(begun, RECIPE, {}, resume=False)),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError) as caught:  # noqa: PT011, compared below
            read()
        assert str(caught.value) == (
            f"{file} is damaged ({reason.format(kind=kind)}): delete it, and the same command goes on"
        )
        file.unlink()
        read()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is not a recipe: it is empty"),
        ("name: [", "it is not YAML that can be read: while parsing a flow node .*"),
        ("seed: x", "the field 'name' is missing"),
    ],
)
def test_a_damaged_recipe_is_named_and_can_be_deleted(begun, text, why):
    """Once, and with the same sentence for all commands."""
    begun.record.write_text("[]")
    (begun.path / "checkpoints").mkdir()
    (begun.path / "checkpoints" / "step-00000001.pt").touch()
    begun.recipe.write_text(text)
    readers = (
        lambda: begin(begun, RECIPE, {}, resume=False),
        lambda: data_of(str(begun.path), None),
        lambda: load_network(begun.path),
    )
    for reader in readers:
        with pytest.raises(ValueError) as caught:  # noqa: PT011, compared below
            reader()
        then = "delete it, and the command that trains this run writes it again"
        assert re.fullmatch(rf"{begun.recipe} is damaged \({why}\): {then}", str(caught.value))
    begun.recipe.unlink()
    begin(begun, RECIPE, {}, resume=False)
    assert data_of(str(begun.path), None) == RECIPE.data


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "result.json"
    write_atomically(file, "old")
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("killed")))
    with pytest.raises(OSError, match="killed"):
        write_atomically(file, "new")
    assert file.read_text() == "old"


def test_what_a_run_recorded_by_kind(folder):
    assert list(folder.recorded("layers")) == []
    folder.path.mkdir()
    whole, cut = (
        '{"kind": "train", "step": 1}\n{"kind": "validation", "step": 2}\n{"kind": "layers", "step": 2}\n',
        '{"kind": "layers", "rows": [{"layer": 1}',
    )
    folder.metrics.write_text(whole + cut)
    assert list(folder.recorded("train")) == [{"kind": "train", "step": 1}]
    assert list(folder.recorded("validation")) == [{"kind": "validation", "step": 2}]
    assert list(folder.recorded("layers")) == [], "a table without rows is damaged"
