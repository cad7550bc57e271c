"""Checkpoints of a run: whole, kept, and found again whatever happens to the files."""

import io
import logging
import random
import re
import subprocess
from collections import OrderedDict

import numpy as np
import pytest
import torch

from opencrate.randomness import random_states, restore_random_states, seed_process
from opencrate.training.checkpoints import Checkpoints

CPU = torch.device("cpu")


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "checkpoints")


def state(step, size=1000):
    weights = torch.randn(size, generator=torch.Generator().manual_seed(step))
    return {"step": step, "model": OrderedDict(weights=weights), "best": {"top1": 12.5}, "ema": None}


def names(checkpoints):
    return sorted(file.name for file in checkpoints.directory.iterdir())


def newest_of(checkpoints, step):
    """The newest is that of the step, with its content."""
    newest = checkpoints.newest()
    assert newest["step"] == step
    assert torch.equal(newest["model"]["weights"], state(step, len(newest["model"]["weights"]))["model"]["weights"])


def test_the_newest_two_stay(checkpoints):
    assert checkpoints.newest() is None
    assert checkpoints.steps() == []
    for step in (3, 20, 100, 1000):
        assert checkpoints.save(state(step), step).name == f"step-{step:08d}.pt"
    assert names(checkpoints) == ["step-00000100.pt", "step-00001000.pt"]
    newest_of(checkpoints, 1000)


def test_steps_are_ordered_as_numbers(checkpoints):
    for step in (99_999_999, 100_000_000):
        checkpoints.save(state(step), step)
    assert checkpoints.steps() == [99_999_999, 100_000_000]
    newest_of(checkpoints, 100_000_000)


@pytest.mark.parametrize("links", [True, False])
def test_chosen_epochs_stay(checkpoints, links, monkeypatch):
    if not links:
        monkeypatch.setattr("pathlib.Path.hardlink_to", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    for epoch in range(1, 7):
        checkpoints.save(state(10 * epoch), 10 * epoch, epoch if epoch % 2 == 0 else None)
    checkpoints.save(state(60), 60, 6)  # once more, after a resumed run
    assert names(checkpoints) == [
        *("epoch-0002.pt", "epoch-0004.pt", "epoch-0006.pt"),
        *("step-00000050.pt", "step-00000060.pt"),
    ]
    kept = torch.load(checkpoints.directory / "epoch-0004.pt", weights_only=True)
    assert torch.equal(kept["model"]["weights"], state(40)["model"]["weights"])


def test_leftovers_of_a_killed_process_go(checkpoints):
    checkpoints.save(state(1), 1)
    (checkpoints.directory / ".step-00000002.pt.tmp").write_bytes(b"half")
    newest_of(checkpoints, 1)
    checkpoints.save(state(3), 3)
    assert names(checkpoints) == ["step-00000001.pt", "step-00000003.pt"]


def truncate(content):
    return content[: len(content) // 2]


def flip_a_bit(content):
    """In the middle of the weights."""
    at = content.index(state(2)["model"]["weights"].numpy().tobytes()) + 2000
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def pickle_another(content):
    torch.save({"step": 2}, file := io.BytesIO())
    return file.getvalue()


DAMAGES = {
    truncate: "File is not a zip file",
    flip_a_bit: "Bad CRC-32|the checksum of .*/data/0 is wrong",
    (lambda content: b""): "File is not a zip file",
    (lambda content: b"no checkpoint" * 100): "File is not a zip file",
    pickle_another: "it is not a checkpoint of this version",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=["truncated", "bit flip", "empty", "no zip", "another's"])
def test_the_one_before_a_damaged_one_is_used(checkpoints, damage, caplog):
    for step in (1, 2):
        checkpoints.save(state(step), step)
    file = checkpoints.directory / "step-00000002.pt"
    damaged = damage(file.read_bytes())
    file.write_bytes(damaged)
    newest_of(checkpoints, 1)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("opencrate", logging.WARNING)
    message = record.getMessage()
    assert message.startswith(f"the checkpoint {file} is damaged (")
    assert message.endswith("): the one before it is used")
    assert re.search(DAMAGES[damage], message)
    assert names(checkpoints) == ["step-00000001.pt", "step-00000002.damaged"]
    assert file.with_suffix(".damaged").read_bytes() == damaged
    checkpoints.save(state(2), 2)
    newest_of(checkpoints, 2)


def test_no_flipped_bit_is_taken_for_a_weight(checkpoints):
    """Wherever it is, either nothing that is read depends on it or the checkpoint before is used."""
    for step in (1, 2):
        checkpoints.save(state(step, size=100), step)
    file = checkpoints.directory / "step-00000002.pt"
    whole, steps = file.read_bytes(), []
    for at in range(0, len(whole), 11):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        read = checkpoints.newest()  # once: some bits decide by chance whether the reader notices
        steps.append(read["step"])
        assert torch.equal(read["model"]["weights"], state(read["step"], size=100)["model"]["weights"])
        file.with_suffix(".damaged").unlink(missing_ok=True)
    assert steps.count(1) > 50
    assert set(steps) == {1, 2}


def test_all_damaged(checkpoints, caplog):
    for step in (1, 2):
        checkpoints.save(state(step), step)
        (checkpoints.directory / f"step-0000000{step}.pt").write_bytes(b"")
    with pytest.raises(ValueError, match=r"^no checkpoint in .* can be read; the same command again begins anew$"):
        checkpoints.newest()
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "the one before it is used",
        "there is none before it",
    ]
    assert names(checkpoints) == ["step-00000001.damaged", "step-00000002.damaged"]
    assert checkpoints.newest() is None


@pytest.mark.parametrize("error", [MemoryError, PermissionError])
def test_what_is_not_the_files_fault_is_no_damage(checkpoints, monkeypatch, error):
    checkpoints.save(state(1), 1)
    monkeypatch.setattr("opencrate.training.checkpoints.read_all", lambda *_, **__: (_ for _ in ()).throw(error))
    with pytest.raises(error):
        checkpoints.newest()
    assert names(checkpoints) == ["step-00000001.pt"]


@pytest.fixture
def small_disk(tmp_path):
    """Four megabytes."""
    (tmp_path / "disk").mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path / "disk")]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"a small disk cannot be mounted here: {error}")
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield tmp_path / "disk"
    subprocess.run(["umount", str(tmp_path / "disk")], check=True)


def test_a_full_disk(small_disk):
    checkpoints = Checkpoints(small_disk / "checkpoints")
    with pytest.raises(OSError) as caught:  # noqa: PT011, compared below
        checkpoints.save(state(1, size=2_000_000), 1)
    assert str(caught.value) == (
        "the checkpoint of step 1 could not be written: the disk is full; there is no checkpoint yet"
    )
    for step in (2, 3):
        checkpoints.save(state(step, size=200_000), step)
    with pytest.raises(OSError) as caught:  # noqa: PT011, compared below
        checkpoints.save(state(4, size=900_000), 4)
    assert str(caught.value) == (
        "the checkpoint of step 4 could not be written: the disk is full; the last good checkpoint, of step 3, is kept"
    )
    assert names(checkpoints) == ["step-00000002.pt", "step-00000003.pt"]
    newest_of(checkpoints, 3)
    (small_disk / "other").write_bytes(bytes(4 * 2**20 - 3 * 2**19 - 2**17))  # somebody else's, up to the brim
    with pytest.raises(OSError, match="the disk is full; the last good checkpoint, of step 3, is kept"):
        checkpoints.save(state(5, size=200_000), 5)
    (small_disk / "other").unlink()
    checkpoints.save(state(5, size=200_000), 5)
    newest_of(checkpoints, 5)


def test_another_reason_is_told(checkpoints, monkeypatch):
    monkeypatch.setattr(torch, "save", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    with pytest.raises(OSError) as caught:  # noqa: PT011, compared below
        checkpoints.save(state(1), 1)
    assert str(caught.value) == (
        "the checkpoint of step 1 could not be written: Input/output error; there is no checkpoint yet"
    )
    assert names(checkpoints) == []


def draws():
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3).tolist()]


def test_random_states_come_back(checkpoints):
    seed_process(0)
    random.gauss(0, 1), np.random.randn()  # each leaves the second of a pair for the next call
    checkpoints.save({"step": 1, "random": [random_states(CPU)]}, 1)
    wanted = [draws() for _ in range(700)]  # further than the generators' 624 words
    seed_process(1)
    assert draws() != wanted[0]
    restore_random_states(checkpoints.newest()["random"][0], CPU)
    assert [draws() for _ in range(700)] == wanted


def test_processes_draw_different_numbers():
    drawn = []
    for key in ((0, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0)):
        seed_process(*key)
        drawn.append(draws())
        seed_process(*key)
        assert draws() == drawn[-1]
    assert all(drawn[i][j] != drawn[k][j] for i in range(4) for k in range(i) for j in range(5))
