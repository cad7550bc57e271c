"""Which workers a command has, and that it has its folder to itself."""

import pytest
import torch

from opencrate.engine.folder import RunFolder
from opencrate.reproduce import Reproduction, reproduce
from opencrate.reproduce.reproducing import _workers


@pytest.mark.parametrize(
    ("settings", "gpus", "devices", "jobs"),
    [
        ({}, 3, ("cuda:0", "cuda:1", "cuda:2"), 1),
        ({"jobs": 2}, 1, ("cuda:0",), 2),
        ({"devices": ("cpu",), "jobs": 3}, 2, ("cpu",), 3),
        ({"processes": 8}, 8, ("auto",), 1),
        ({"processes": 2}, 0, ("auto",), 1),
    ],
)
def test_devices_and_runs_at_a_time(monkeypatch, settings, gpus, devices, jobs):
    """A run on several processes has all GPUs: eight workers with eight processes each would share them."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    found, at_a_time, threads = _workers(Reproduction(**settings))
    assert (found, at_a_time) == (devices, jobs)
    assert threads >= 1


def test_processes_choose_their_devices_themselves():
    with pytest.raises(ValueError, match=r"^--processes 2 takes the first GPUs, or the CPU: leave --devices out$"):
        _workers(Reproduction(processes=2, devices=("cpu",)))


def test_two_commands_do_not_share_a_folder(tmp_path):
    """Each would write its own results.json over the other's."""
    with RunFolder(tmp_path).locked(), pytest.raises(ValueError, match=f"^another run is using {tmp_path}"):
        reproduce(Reproduction(out=tmp_path))
