"""Several processes: one that dies is started again, and the run ends as one that was never touched."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from opencrate.recipes import recipe_text
from opencrate.training import require_room
from tests.runs import losses, small_recipe

LAUNCH = sys.modules[require_room.__module__]  # `opencrate.training.launch` is the function
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
    """A run that `--processes 2` started."""
    return to_the_end(tmp_path_factory.mktemp("untouched"), recipe, [], ["--processes", "2"])


@pytest.mark.timeout(240)
def test_two_processes_are_started(untouched):
    (start,) = json.loads((untouched / "run.json").read_text())
    assert start["processes"] == 2
    assert len(losses(untouched)) == EPOCHS * STEPS
    printed = (untouched / "printed.txt").read_text()
    assert "2 processes (ddp)" in printed
    assert printed.count("top-1 on validation") == 1, "one process sums the run up"


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("launcher", [TORCHRUN, []], ids=["torchrun", "processes"])
def test_killed_workers_are_started_again_and_leave_no_trace(tmp_path, recipe, untouched, launcher):
    options = [] if launcher else ["--processes", "2"]
    folder = to_the_end(tmp_path, recipe, launcher, options, kills=((1, 2 * STEPS), (0, 5 * STEPS)))
    assert len(json.loads((folder / "run.json").read_text())) >= 3, "it was not started again"
    require_equal(folder, untouched)


def require_equal(folder, untouched):
    assert losses(folder) == losses(untouched)
    for model in ("model", "best"):
        weights = [(run / model / "model.safetensors").read_bytes() for run in (folder, untouched)]
        assert weights[0] == weights[1], model


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("launcher", "number"),
    [
        ([], signal.SIGKILL),
        *(pytest.param([], number, marks=pytest.mark.slow) for number in (signal.SIGTERM, signal.SIGINT)),
        *(pytest.param(TORCHRUN, number, marks=pytest.mark.slow) for number in (signal.SIGTERM, signal.SIGKILL)),
    ],
    ids=lambda value: "torchrun" if value == TORCHRUN else "processes" if value == [] else value.name,
)
def test_what_started_the_processes_ends_and_nothing_stays_behind(tmp_path, recipe, untouched, launcher, number):
    options = [] if launcher else ["--processes", "2"]
    process = begun(tmp_path, recipe, launcher, options)
    try:
        wait_for(process, tmp_path, 2 * STEPS)
        os.kill(process.pid, number)
        code = process.wait(60)
    finally:
        process.kill()
    if number != signal.SIGKILL and not launcher:
        assert code == 128 + number
        printed = (tmp_path / "printed.txt").read_text()
        assert printed.count("a checkpoint is saved, and the same command goes on from there") == 1
    limit = time.monotonic() + 5
    while (left := processes_with(tmp_path)) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not left
    assert len(losses(tmp_path)) < EPOCHS * STEPS, "it was over before the signal"
    assert begun(tmp_path, recipe, launcher, options).wait(100) == 0, (tmp_path / "printed.txt").read_text()[-3000:]
    require_equal(tmp_path, untouched)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_kills_of_one_of_two_processes(tmp_path, recipe):
    long = tmp_path / "long.yaml"
    long.write_text(recipe.read_text().replace(f"epochs: {EPOCHS}", f"epochs: {10 * EPOCHS}"))
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    folder.mkdir()
    options, draw = ["--processes", "2"], random.Random(0)
    assert begun(whole, long, [], options).wait(200) == 0
    process = begun(folder, long, [], options)
    for i in range(20):
        if process.poll() is not None:  # three restarts are the most
            assert process.returncode == 1
            process = begun(folder, long, [], options)
        wait_for(process, folder, logged(folder) + draw.randint(1, 12))
        time.sleep(draw.uniform(0, 0.05))
        before = starts(folder)
        os.kill(worker(process.pid, i % 2), signal.SIGKILL)
        while process.poll() is None and starts(folder) == before:
            time.sleep(0.05)
    if process.wait(200) != 0:
        assert begun(folder, long, [], options).wait(200) == 0
    require_equal(folder, whole)
    assert not list(folder.rglob(".*.tmp"))


def test_a_mistake_is_one_sentence(tmp_path, recipe):
    process = begun(tmp_path, recipe, [], ["--processes", "2", "--optim.batch", "145"])
    assert process.wait(60) == 2
    printed = (tmp_path / "printed.txt").read_text()
    assert printed == "opencrate: a global batch of 145 cannot be divided, in pairs for mixup, among 2 processes\n"


def test_more_processes_than_fit_are_refused(tmp_path, recipe, monkeypatch):
    process = begun(tmp_path, recipe, [], ["--processes", "4000"])
    assert process.wait(60) == 2
    assert re.fullmatch(
        r"opencrate: --processes 4000 does not fit on this machine, which has (\d+) .*: use --processes \1\n",
        (tmp_path / "printed.txt").read_text(),
    )
    monkeypatch.setattr(LAUNCH, "_free_memory", lambda: 3 << 30)
    monkeypatch.setattr(LAUNCH, "cores", lambda: 8)
    require_room(3, "cpu")
    with pytest.raises(ValueError, match=r"which has 3 GiB of free memory, of which each takes 1: use --processes 3$"):
        require_room(4, "cpu")


def test_an_end_between_two_questions_is_not_lost():
    class Ending:
        """Dead already, but only its second answer says so."""

        answers = iter((None, -9))
        sentinel, exitcode = os.open(os.devnull, os.O_RDONLY), property(lambda self: next(self.answers))

    assert LAUNCH._wait([Ending()]) == [-9]


ENDED = (0, "")


@pytest.mark.parametrize(
    ("codes", "said", "expected"),
    [
        ([0, 0], [ENDED, ENDED], ENDED),
        ([0, 0], [ENDED, (2, "a mistake")], (2, "a mistake")),
        ([0, -11], [ENDED, ENDED], (-11, "a process was ended by signal 11")),
        ([0, 1], [ENDED, ENDED], (1, "a process failed at its end")),
        ([1, 2], [(1, "its traceback"), (2, "a mistake")], (2, "a mistake")),
        ([1, 143], [(1, "its traceback"), (143, "stopped")], (143, "stopped")),
        ([-9, 1], [(1, "without a word"), (1, "its traceback")], (-9, "a process was ended by signal 9")),
        ([1], [ENDED, (1, "its traceback")], (1, "its traceback")),
    ],
)
def test_one_reason_for_all_processes(codes, said, expected):
    assert LAUNCH._ending(codes, said) == expected


def test_processes_share_the_cores_and_all_that_they_print_arrives():
    """Through a pipe, without the end of a line, and with no number of threads in the environment."""
    code = "from tests.runs import print_threads; from opencrate.training import launch;"
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", f"{code} launch(print_threads, [], 2, print)"],
        env=environment | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=100,
    )
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{share};{share};", "")


def starts(folder: Path) -> int:
    return len(json.loads((folder / "run.json").read_text())) if (folder / "run.json").exists() else 0


def processes_with(folder: Path) -> list[str]:
    """The command lines of processes that were started for this folder, and still run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"OPENCRATE_TEST={folder}" in (process / "environ").read_text().split("\0"):
                found.append((process / "cmdline").read_text())
    return found


def begun(folder: Path, recipe: Path, launcher: list[str], options: list[str]) -> subprocess.Popen:
    command = [sys.executable, "-m", *launcher, "opencrate", "train", str(recipe), "--out", str(folder), *options]
    command += ["--device", "cpu", "--log-steps", "1", "--save-steps", "4", "--no-tensorboard"]
    with (folder / "printed.txt").open("a") as printed:
        environment = ENVIRONMENT | {"OPENCRATE_TEST": str(folder)}
        return subprocess.Popen(command, env=environment, stdout=printed, stderr=subprocess.STDOUT)


def to_the_end(parent: Path, recipe: Path, launcher: list[str], options: list[str], kills=()) -> Path:
    """Train with two processes, of which some are killed, each (rank, after this many steps).

    Process groups sometimes abort on a loaded machine, so a run that does not come to its end has a second chance.
    """
    for attempt in ("first", "second"):
        folder = parent / attempt
        folder.mkdir()
        process = begun(folder, recipe, launcher, options)
        try:
            for rank, steps in kills:
                wait_for(process, folder, steps)
                os.kill(worker(process.pid, rank), signal.SIGKILL)
            code = process.wait(100)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            process.terminate()  # torchrun ends its workers too
            process.wait(40)
        if code == 0:
            return folder
    pytest.fail(f"exit code {code}\n{(folder / 'printed.txt').read_text()[-3000:]}")


def wait_for(process: subprocess.Popen, folder: Path, steps: int) -> None:
    """Until the run has logged that many steps."""
    limit = time.monotonic() + 60
    while process.poll() is None and logged(folder) < steps:
        if time.monotonic() > limit:
            raise subprocess.TimeoutExpired(process.args, 60)
        time.sleep(0.005)


def logged(folder: Path) -> int:
    """How many steps the run has logged."""
    metrics = folder / "metrics.jsonl"
    return metrics.read_text().count('"train"') if metrics.exists() else 0


def worker(launcher: int, rank: int) -> int:
    """The process id of a worker that has this rank; what keeps shared memory in order is a child too."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        is_tracker = "resource_tracker" in Path(f"/proc/{child}/cmdline").read_text()
        if not is_tracker and f"RANK={rank}" in Path(f"/proc/{child}/environ").read_text().split("\0"):
            return int(child)
    raise AssertionError(f"there is no worker of rank {rank}")
