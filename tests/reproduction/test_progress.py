"""What a person reads while a plan is carried out."""

import io
import json

import pytest
from rich.console import Console

from reproduction.place import Place
from reproduction.plan import Plan
from reproduction.progress import Progress, duration
from reproduction.results import Results, fingerprint

from .tiny import tiny

RUNS = [tiny("light", seed=seed, schedule={"epochs": 10}) for seed in range(4)]


def row_of(top1, besides=0.0):
    return {"top1": top1, "seconds": 60.0 + besides, "training_seconds": 60.0, "epochs": 2}


def begun(tmp_path, terminal=False, jobs=1, done=1, again=0):
    plan, results = Plan("tiny", tuple(RUNS), samples=8), Results(tmp_path / "results.json", "tiny")
    results.rows |= {run.key: row_of(80.0) | {"recipe": fingerprint(run, RUNS)} for run in RUNS[:done]}
    progress = Progress(Console(file=io.StringIO(), force_terminal=terminal, width=120, soft_wrap=True))
    progress.begin(plan, RUNS[done - again :], results, jobs)
    return progress


def printed(progress):
    return progress.console.file.getvalue()


def test_a_line_for_every_run(tmp_path):
    progress = begun(tmp_path)
    progress.ended(RUNS[1], row_of(81.234))
    progress.ended(RUNS[2], {"error": "no [such] folder"})
    progress.ended(RUNS[3], row_of(79.0))
    assert printed(progress).splitlines() == [
        "tiny: 4 runs, of which 1 is done",
        "[2/4] digits/crate-t/light/seed1: 81.23 % in 60 s; about 10 min left",
        "[3/4] digits/crate-t/light/seed2: failed: no [such] folder; about 5 min left",
        "[4/4] digits/crate-t/light/seed3: 79.00 % in 60 s",
    ]


def test_what_is_trained_again_is_said(tmp_path):
    assert printed(begun(tmp_path, done=3, again=1)).splitlines() == [
        "tiny: 4 runs, of which 3 are done; 1 of them repeated, because others start from their networks, which are"
        " missing"
    ]


@pytest.mark.parametrize(("jobs", "left"), [(1, "15 min"), (2, "8 min"), (3, "5 min"), (8, "5 min")])
def test_jobs_share_what_is_left(tmp_path, jobs, left):
    """Three runs of ten epochs, of 30 s each as in the run that is done."""
    assert begun(tmp_path, jobs=jobs)._left() == f"; about {left} left"


def test_a_start_is_counted_once_a_run_and_not_by_the_epoch(tmp_path):
    """Two runs of ten epochs of 30 s, and two starts: 90 s in one run that is done, none in the other."""
    progress = begun(tmp_path)
    progress.ended(RUNS[1], row_of(81.0, besides=90.0))
    assert progress._left() == "; about 12 min left"  # 2 · (300 + 45) s


def test_epochs_that_are_done_are_not_left(tmp_path):
    progress, place = begun(tmp_path, terminal=True), Place(tmp_path)
    metrics = place.folder(RUNS[1].key) / "metrics.jsonl"
    metrics.parent.mkdir(parents=True)
    metrics.write_text(json.dumps({"kind": "train", "epoch": 8, "loss": 2.5}) + "\n")
    progress.show([(RUNS[1], place)])
    assert progress.bars.tasks[progress.plan_bar].fields["left"] == "about 11 min left"  # of 22 epochs, 30 s each
    progress.end()


def test_bars_on_a_terminal(tmp_path):
    progress, place = begun(tmp_path, terminal=True), Place(tmp_path)
    progress.show([(RUNS[1], place)])
    metrics = place.folder(RUNS[1].key) / "metrics.jsonl"
    metrics.parent.mkdir(parents=True)
    lines = [{"kind": "train", "epoch": 3, "loss": 2.5}, {"kind": "validation", "epoch": 3}]
    metrics.write_text("\n".join([*map(json.dumps, lines), '{"kind": "train", "epo']))
    progress.show([(RUNS[1], place)])
    task = progress.bars.tasks[progress.tasks[RUNS[1].key]]
    assert (task.completed, task.total, task.fields["left"]) == (3, 10, "loss 2.500")
    progress.ended(RUNS[1], row_of(81.0))
    progress.show([])
    progress.end()
    assert "all runs" in printed(progress)
    assert "2/4" in printed(progress)
    assert "None" not in printed(progress)


def test_times():
    assert [duration(seconds) for seconds in (8.4, 100, 5399, 7200)] == ["8 s", "2 min", "90 min", "2.0 h"]
