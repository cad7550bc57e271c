"""Plans carried out by real processes, of which some fail or are killed."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from opencrate.recipes import Schedule
from reproduction.execute import _Execution, _Worker, execute, places_for
from reproduction.place import Place
from reproduction.plan import Plan, Run
from reproduction.progress import Progress
from reproduction.results import Results
from reproduction.run_one import Job
from reproduction.scales import SCALES, plan_for

PLAN = plan_for("smoke", {})
SCRATCH, TUNED = "digits/vit-t/light/seed0", "digits-to-digits-again/vit-t/light/seed0"
OTHER = "digits/crate-t/mssa_tied/seed0"
LONG = "digits/crate-t/epochs_300/seed0"


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs /proc")


def plan(*keys: str, runs_per_process: int = 1, **changes: object) -> Plan:
    """These runs of the smoke plan; `changes` are of every recipe."""
    runs = {run.key: run for run in PLAN.runs}
    changed = (replace(runs[key], recipe=replace(runs[key].recipe, **changes)) for key in keys)
    return Plan("smoke", tuple(changed), samples=4, runs_per_process=runs_per_process)


def carry_out(what: Plan, out: Path, jobs: int = 1) -> tuple[Results, str]:
    """The results, and what was said."""
    results = Results(out / "results.json", "smoke")
    with (out.parent / "said.txt").open("w+", encoding="utf-8") as file:
        progress = Progress(Console(file=file, width=200))
        execute(what, results, places_for(what, out, ("cpu",), jobs, processes=1, threads=1), progress)
        progress.end()
        file.seek(0)
        return results, file.read()


def broken(run: Run) -> Run:
    return replace(run, recipe=replace(run.recipe, model=replace(run.recipe.model, name="vit_tini_patch16_224")))


def finished_at(out: Path, key: str) -> int:
    return (out / "runs" / key / "result.json").stat().st_mtime_ns


@pytest.mark.parametrize("scale", SCALES)
def test_a_job_is_the_same_behind_its_json(scale):
    job = Job(plan_for(scale, {}).runs, Place(Path("out"), "cuda:1", 8, 2, 500))
    assert Job.from_json(job.to_json()) == job


@pytest.mark.slow
def test_a_failed_run_is_reported_and_does_not_stop_the_others(tmp_path):
    scratch, tuned, other = plan(SCRATCH, TUNED, OTHER).runs
    results, said = carry_out(Plan("smoke", (broken(scratch), tuned, other), 4, 2), tmp_path / "out")
    assert results.failures().keys() == {SCRATCH, TUNED}
    assert "unknown network 'vit_tini_patch16_224'" in results.rows[SCRATCH]["error"]
    assert results.rows[TUNED]["error"] == f"it starts from {SCRATCH}, which failed"
    assert 0 <= results.rows[OTHER]["top1"] <= 100
    assert said.count("failed:") == 2
    assert "Traceback" in (tmp_path / "out" / "runs" / SCRATCH / "log.txt").read_text()

    again, said = carry_out(plan(SCRATCH, TUNED, OTHER), tmp_path / "out")
    assert not again.failures()
    assert "of which 1 is done" in said


@pytest.mark.slow
def test_what_is_done_is_not_done_again_and_two_jobs_find_what_one_does(tmp_path):
    what = plan(SCRATCH, TUNED, OTHER)
    one, _ = carry_out(what, tmp_path / "one")
    two, _ = carry_out(what, tmp_path / "two", jobs=2)
    assert {k: r["top1"] for k, r in one.rows.items()} == {k: r["top1"] for k, r in two.rows.items()}
    assert len(one.rows) == 3

    before = finished_at(tmp_path / "one", SCRATCH)
    results, said = carry_out(what, tmp_path / "one")
    assert results.rows == one.rows
    assert "3 runs, of which 3 are done" in said

    # a network that is gone is trained again for what starts from it, and for nothing else
    (tmp_path / "one" / "runs" / SCRATCH / "model" / "config.json").unlink()
    carry_out(what, tmp_path / "one")
    assert finished_at(tmp_path / "one", SCRATCH) == before


def killed_when(condition, victim) -> threading.Thread:
    """Kill -9 `victim()` as soon as `condition()`."""

    def wait() -> None:
        while not condition():
            time.sleep(0.05)
        os.kill(victim(), signal.SIGKILL)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def workers_of(parent: int) -> list[int]:
    """The processes that carry out runs, according to /proc."""
    workers = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status, command = (folder / "status").read_text(), (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if f"PPid:\t{parent}\n" in status and b"reproduction.run_one" in command:
            workers.append(int(folder.name))
    return workers


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("runs_per_process", [1, 2])
def test_a_killed_process_is_one_failed_run(tmp_path, runs_per_process):
    """The other runs of its job get another process."""
    what = plan(LONG, OTHER, runs_per_process=runs_per_process, schedule=Schedule(epochs=15, warmup_epochs=0))
    metrics = tmp_path / "out" / "runs" / LONG / "metrics.jsonl"
    killer = killed_when(metrics.is_file, lambda: workers_of(os.getpid())[0])
    results, said = carry_out(what, tmp_path / "out")
    killer.join(10)
    assert results.rows[LONG]["error"] == "its process ended with signal 9"
    assert "top1" in results.rows[OTHER]
    assert "failed: its process ended with signal 9" in said
    again, _ = carry_out(what, tmp_path / "out")
    assert not again.failures()
    assert len(json.loads((tmp_path / "out" / "runs" / LONG / "run.json").read_text())) == 2  # it was started twice


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_plan_goes_on(tmp_path, number):
    """Its processes end with it, and finished runs stay finished."""
    command = [sys.executable, "-m", "reproduction", "--out", str(tmp_path / "out")]
    command += ["--jobs", "2", "--runs", "digits/crate-t/prox_mm*/seed0", OTHER]
    file = tmp_path / "out" / "results.json"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not file.is_file() and process.poll() is None:
            time.sleep(0.05)
        workers = workers_of(process.pid)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert len(workers) == 2
    if number == signal.SIGTERM:
        assert process.returncode == 143
        assert "stopped; the same command resumes" in errors
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)

    rows = json.loads(file.read_text())["rows"]
    assert 0 < len(rows) < 3
    before = {key: finished_at(tmp_path / "out", key) for key in rows}
    command[command.index("--jobs") + 1] = "1"  # starts sooner
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    assert f"3 runs, of which {len(rows)} " in done.stdout
    assert {key: finished_at(tmp_path / "out", key) for key in rows} == before
    assert len(json.loads(file.read_text())["rows"]) == 3


@needs_proc
def test_control_c_is_one_sentence(tmp_path):
    """A terminal sends it to all processes of the command's group: the runs are not among them, and end in order."""
    command = [sys.executable, "-m", "reproduction", "--out", str(tmp_path / "out"), "--jobs", "2", "--only", "strong"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, start_new_session=True) as process:
        while len(workers := workers_of(process.pid)) < 2 and process.poll() is None:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert output == "smoke: 8 runs\n"
    assert errors == "reproduction: stopped; the same command resumes, and --write-only writes what is done\n"
    assert len(workers) == 2
    deadline = time.monotonic() + 30  # one that was just being started notices when its input ends
    while any(Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def test_a_worker_that_has_ended_is_taken_for_no_other(tmp_path):
    """Two in places alike whose runs are done, of which the process of the second ends first."""
    execution = _Execution(plan(OTHER), Results(tmp_path / "results.json", "smoke"), [Place(tmp_path)], None)
    workers = [object.__new__(_Worker) for _ in range(2)]
    for worker, code in zip(workers, (None, 0), strict=True):
        worker.runs, worker.place, worker.stdin = [], Place(tmp_path), io.BytesIO()
        worker.process = SimpleNamespace(poll=lambda code=code: code, wait=lambda seconds: 0)
    execution.workers = list(workers)
    for worker in workers:
        execution._collect(worker)
    assert len(execution.workers) == 1
    assert execution.workers[0] is workers[0]


def test_a_process_that_cannot_start_is_an_exit_code(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    results, _ = carry_out(plan(SCRATCH, OTHER), tmp_path / "out")
    assert [row["error"] for row in results.rows.values()] == ["its process ended with exit code 1"] * 2
