"""The processes that carry a plan out, at bad moments."""

import os
import signal
import time
from pathlib import Path

import pytest

from reproduction.execute import _Worker
from reproduction.run_one import Place
from tests.runs import command, warm_up

from .tiny import tiny

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs /proc")


def processes_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def has_ended(pid):
    """Or waits for somebody to ask how."""
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def test_a_worker_that_died_while_it_waited_is_replaced(tmp_path):
    worker = _Worker(Place(tmp_path, device="cpu"), 1)
    worker.process.kill()
    worker.process.join()
    worker.give(tiny("light"))
    assert 0 <= worker.answer()["top1"] <= 100
    worker.stop()
    assert worker.process.exitcode == 0


def test_control_c_while_workers_start_is_one_sentence(tmp_path):
    """A terminal sends it to all of them, of which the parent may be the last to notice."""
    warm_up()
    arguments = ["reproduce", "--jobs", "2", "--only", "strong", "--out", tmp_path / "out"]
    process, log = command(arguments, tmp_path, wait=False)
    until(lambda: len(processes_of(process.pid)) == 2)
    time.sleep(0.3)
    workers = processes_of(process.pid)
    for pid in workers:
        os.kill(pid, signal.SIGINT)
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    assert process.exitcode == 130
    assert log.read_text().splitlines() == [
        "smoke: 8 runs",
        "opencrate: stopped; the same command goes on from there, and --write-only tells what is done",
    ]
    assert all(map(has_ended, workers))
