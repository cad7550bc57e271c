"""What a run tells: to programs, to TensorBoard, to people."""

import errno
import importlib.util
import io
import json
import math
import os
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console

from opencrate.measures import DEFINITIONS, LayerTable
from opencrate.run_folder import RunFolder
from opencrate.training import journal as module
from opencrate.training import train
from opencrate.training.checkpoints import Checkpoints
from opencrate.training.journal import Journal, Window, _layer_table
from opencrate.training.monitors import RelapseMonitor, halved_layers
from opencrate.training.step import Outcome
from tests.runs import interrupted_at, metrics, small_options, small_recipe


def terminal(**kwargs):
    return Console(file=io.StringIO(), width=120, highlight=False, color_system=None, **kwargs)


def table(depth, rate=123.456):
    rows = [
        {"layer": l, "Rc": rate * l, "nonzero": 1 / l, "Rc_std": 0.5, "nonzero_std": 0.0} for l in range(1, depth + 1)
    ]
    return LayerTable(DEFINITIONS["paper"], 8, tuple(rows))


def steps(file):
    return [json.loads(line)["step"] for line in file.read_text().splitlines()]


# metrics.jsonl


def test_a_line_for_each_record(tmp_path):
    journal = Journal(RunFolder(tmp_path), console=terminal())
    assert journal.curves is None  # for TensorBoard, which was not asked for
    journal.record("train", 5, loss=0.5, lr=1e-3)
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"kind": "train", "step": 5, "loss": 0.5, "lr": 1e-3}
    journal.layers(table(2), 9, epoch=1, seconds=0.12345678, shown=True)
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[1])
    assert (line["kind"], line["step"], line["epoch"], line["seconds"]) == ("layers", 9, 1, 0.1235)
    assert LayerTable.from_dict(line) == table(2)
    journal.close()


def test_what_came_after_the_checkpoint_is_cut(tmp_path):
    file = tmp_path / "metrics.jsonl"
    with Journal(RunFolder(tmp_path), console=terminal()).file as written:
        written.writelines(b'{"kind": "train", "step": %d}\n' % step for step in range(11))
    Journal(RunFolder(tmp_path), step=7, console=terminal()).close()
    assert steps(file) == list(range(8))
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    Journal(RunFolder(tmp_path), step=1, console=terminal()).close()
    assert steps(file) == [0, 1]
    Journal(RunFolder(tmp_path), console=terminal()).close()  # from the beginning
    assert steps(file) == []


@pytest.mark.parametrize("end", ['{"kind": "train", "st', '{"kind": "train"}\n', "[3]\n", "3\n", "\0\0\0", "\udcff"])
def test_a_line_cut_short_is_dropped(tmp_path, end):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"kind": "train", "step": 1}\n' + end.encode(errors="surrogateescape"))
    journal = Journal(RunFolder(tmp_path), step=3, console=terminal())
    journal.record("train", 4)
    journal.close()
    assert steps(file) == [1, 4]


def test_a_damaged_line_before_others_is_said(tmp_path, caplog):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"kind": "train", "step": 1}\n\x00\x00\n{"kind": "train", "step": 2}\n{"kind": "tra')
    Journal(RunFolder(tmp_path), step=3, console=terminal()).close()
    assert steps(file) == [1, 2]
    assert caplog.messages == [f"{file}: a line could not be read, and left out"]


@pytest.mark.unhooked
@pytest.mark.parametrize("left", [0, 1, 18, None], ids=lambda left: f"{left} lines left")
def test_lines_that_are_lost_are_said_once(tmp_path, monkeypatch, caplog, left):
    recipe, file = small_recipe(schedule={"epochs": 3}), tmp_path / "metrics.jsonl"
    for at in (13, 20):  # after an epoch that was interrupted, whose time is not known
        with interrupted_at(at, monkeypatch):
            train(recipe, small_options(tmp_path))
    assert caplog.messages == []
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:left]) + b'{"kind": "tra')
    if left == 0:
        file.unlink()
    with interrupted_at(24, monkeypatch):
        train(recipe, small_options(tmp_path))
    kinds = [json.loads(line)["kind"] for line in lines]
    total, lost = (len(part) - part.count("epoch") for part in (kinds, kinds[len(kinds) if left is None else left :]))
    assert caplog.messages == [f"{file}: {lost} of the {total} lines up to step 21 are lost"] * bool(lost)
    train(recipe, small_options(tmp_path))
    assert len(caplog.messages) == bool(lost)


def test_lines_are_on_disk_before_a_checkpoint_says_that_they_are(tmp_path, monkeypatch):
    """After a power cut, too: what is not flushed to disk may be gone."""
    events, fsync, save = [], os.fsync, Checkpoints.save

    def flushed(descriptor):
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def saved(self, *arguments):
        events.append("checkpoint")
        return save(self, *arguments)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Checkpoints, "save", saved)
    train(small_recipe(probe=0), small_options(tmp_path, save_steps=5))
    before = [events[i - 1] for i, event in enumerate(events) if event == "checkpoint"]
    assert before == ["metrics.jsonl"] * 8  # at three ends of epochs, and steps 5, 10, 15, 20 and 25


def test_a_full_disk_ends_the_curves_and_not_the_run(tmp_path, monkeypatch, caplog):
    journal = Journal(RunFolder(tmp_path), tensorboard=True, console=terminal())
    monkeypatch.setattr(journal.curves._records, "write", full_disk)
    journal.record("train", 5, loss=0.5)
    journal.record("train", 6, loss=0.4)
    journal.close()
    assert steps(tmp_path / "metrics.jsonl") == [5, 6]
    assert caplog.messages == ["the curves for TensorBoard end at step 5: the disk is full"]


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_other_processes_are_silent(tmp_path, capsys):
    journal = Journal(None)
    journal.record("train", 1, loss=1.0)
    journal.begin_progress(10, 0)
    journal.advance(1, "1/1", {"loss": 1.0})
    journal.say("nothing")
    journal.layers(table(2), 1, 1, 0.1, shown=True)
    journal.close()
    assert capsys.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not importlib.util.find_spec("tensorboard"), reason="TensorBoard is not installed")
def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    journal = Journal(RunFolder(tmp_path), tensorboard=True, console=terminal())
    journal.record("train", 5, loss=0.5, name="no number")
    journal.layers(table(2), 9, epoch=1, seconds=0.1, shown=False)
    journal.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert {"train/loss", "Rc/layer_01", "Rc/layer_02", "nonzero/layer_02"} <= set(events.Tags()["scalars"])
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(5, 0.5)]


def test_without_tensorboard(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    journal = Journal(RunFolder(tmp_path), tensorboard=True, console=terminal())
    journal.record("train", 1, loss=0.5)
    journal.close()
    assert steps(tmp_path / "metrics.jsonl") == [1]


# progress


def test_a_bar_in_a_terminal(tmp_path):
    console = terminal(force_terminal=True)
    journal = Journal(RunFolder(tmp_path), console=console)
    journal.begin_progress(total=100, done=10)
    for step in (20, 30):
        journal.advance(step, "2/9", {"loss": 1.23456, "accuracy": 0.4567, "images_per_second": 12345.6})
    journal.progress.refresh()
    journal.say("a line above the bar")
    journal.close()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())
    assert re.search(r"epoch 2/9 ━+.* loss 1\.235  acc 45\.7%  12,346 img/s \d:\d\d:\d\d", shown)
    assert "a line above the bar" in shown
    journal = Journal(RunFolder(tmp_path), console=(console := terminal(force_terminal=True)))
    journal.begin_progress(total=100, done=10)
    journal.advance(100, "9/9", {"loss": 1.0})
    journal.progress.tasks[0].finished_time = 3661.0
    journal.progress.refresh()
    journal.close()
    assert "1:01:01" in console.file.getvalue()  # how long it took, when nothing is left
    assert not journal.progress.live.is_started


def test_only_metrics_that_are_there_are_shown(tmp_path):
    console = terminal(force_terminal=True)
    journal = Journal(RunFolder(tmp_path), console=console)
    journal.begin_progress(100, 0)
    journal.advance(1, "1/9", {"loss": 1.0, "images_per_second": 10, "objective": -2.34567})
    journal.close()
    assert "loss 1.000  objective -2.346  10 img/s" in console.file.getvalue()


def test_means_are_those_of_the_steps_that_counted():
    window = Window()
    for loss, rate in ((1.0, 4.0), (2.0, 8.0), (3.0, float("nan"))):
        window.add(Outcome({"loss": loss, "accuracy": 0.5, "objective": rate}), batch=60)
    means = window.means()
    assert (means["loss"], means["accuracy"], means["objective"]) == (1.5, 0.5, 6.0)


def test_lines_elsewhere(tmp_path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    console = terminal(get_time=lambda: now)
    journal = Journal(RunFolder(tmp_path), step=40, console=console)
    journal.begin_progress(1000, 40)
    for step, now in ((50, 1010.0), (70, 1030.0), (100, 1060.0), (101, 1061.0)):  # a step a second  # noqa: B007
        journal.advance(step, "1/9", {"loss": 2.0, "accuracy": 0.25, "images_per_second": 512})
    journal.close()
    assert console.file.getvalue() == "step 100/1000  epoch 1/9  loss 2.000  acc 25.0%  512 img/s  0:15:00 left\n"


# the layers


def test_a_layer_table():
    assert _layer_table(table(3)).splitlines() == [
        "  layer         1     2     3",
        "  R^c       123.5 246.9 370.4",
        "  non-zero   1.00   .50   .33",
    ]


@pytest.mark.parametrize("depth", [1, 6, 12, 13, 24])
@pytest.mark.parametrize("rate", [1e-6, 0.0123456, 123.456, 123456.7, 12345678.0, float("nan")])
def test_a_layer_table_is_not_wide(depth, rate):
    lines = _layer_table(table(depth, rate)).splitlines()
    assert max(map(len, lines)) <= 100
    assert len({line[:11] for line in lines}) == 3
    numbers = [int(number) for line in lines if line.startswith("  layer") for number in line.split()[1:]]
    assert numbers == list(range(1, depth + 1))
    assert all(len(line.split()) <= 13 for line in lines)


def test_twenty_four_layers_take_two_rows():
    lines = _layer_table(table(24)).splitlines()
    assert [line.split()[0] for line in lines] == ["layer", "R^c", "non-zero"] * 2
    assert lines[3].split() == ["layer", *map(str, range(13, 25))]


def test_the_layers_are_shown_when_asked(tmp_path):
    console = terminal()
    journal = Journal(RunFolder(tmp_path), console=console)
    journal.layers(table(3), 1, 1, 0.1, shown=False)
    assert console.file.getvalue() == ""
    journal.layers(table(3), 2, 1, 0.1, shown=True)
    assert console.file.getvalue() == _layer_table(table(3)) + "\n"
    journal.close()


@pytest.mark.unhooked
def test_whole_epochs_are_timed(tmp_path, monkeypatch):
    """With evaluation, measures and checkpoint; of one that was interrupted, nobody knows how long it took."""
    recipe = small_recipe()
    with interrupted_at(13, monkeypatch):  # in the second epoch of nine steps
        train(recipe, small_options(tmp_path))
    result = train(recipe, small_options(tmp_path))
    assert result["start_up_seconds"] > 0  # the first step's, which the others' do not hold
    timed = metrics(tmp_path, "epoch")
    assert [(line["epoch"], line["step"]) for line in timed] == [(1, 9), (3, 27)]
    measured = {line["epoch"]: line["seconds"] for line in metrics(tmp_path, "layers")}
    assert all(line["seconds"] > measured[line["epoch"]] for line in timed)


def outcomes(*losses):
    return [Outcome({"loss": loss}) for loss in losses]


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        ([2.3, 2.2, 2.0, 1.9, 2.31, 2.31], {5: (2.31, 1.9)}),
        ([2.4, 2.31, 2.305, 2.303], {}),
        ([2.3, 2.15, 2.31], {}),
        ([1.9, 2.2, 2.25, 2.2], {}),
        ([2.0, 2.31, 2.0, 2.31], {2: (2.31, 2.0), 4: (2.31, 2.0)}),
        ([2.0, math.nan, 2.31], {3: (2.31, 2.0)}),
    ],
    ids=["falls back", "never learned", "hardly learned", "worse, not guessing", "twice", "a bad epoch between"],
)
def test_a_relapse_is_noticed_once(epochs, expected):
    """Of ten classes, a guess has the loss 2.303."""
    relapse, noticed = RelapseMonitor(math.log(10)), {}
    for number, loss in enumerate(epochs, 1):
        for outcome in outcomes(loss - 0.2, loss + 0.2):
            relapse.add(outcome)
        if (lost := relapse.end_epoch()) is not None:
            noticed[number] = pytest.approx(lost)
    assert noticed == expected


def test_a_relapse_is_noticed_by_an_epoch_that_was_interrupted():
    """Its first step is as bad as guessing, the second is not, and the mean of both is."""
    first, second = RelapseMonitor(math.log(10)), RelapseMonitor(math.log(10))
    learned, *interrupted = outcomes(1.0, 3.0, 1.7)
    first.add(learned)
    assert first.end_epoch() is None
    first.add(interrupted[0])
    second = replace(second, **asdict(first))
    second.add(interrupted[1])
    assert second.end_epoch() == pytest.approx((2.35, 1.0))


@pytest.mark.parametrize(
    ("before", "now", "layers"),
    [
        ((8.0, 8.0, 8.0), (7.0, 4.0, 3.9), [3]),
        ((8.0, 4.0, 2.0), (3.0, 1.0, 0.5), [1, 2, 3]),
        ((1.0,) * 3, (2.0,) * 3, []),
    ],
    ids=["to the half is not below it", "all", "a rise"],
)
def test_layers_at_which_r_c_has_halved(before, now, layers):
    tables = [LayerTable(DEFINITIONS["unit"], 4, rows(*values)) for values in (before, now)]
    assert halved_layers(*tables) == layers
    assert halved_layers(*tables, "spread") == []  # they have none, as those of 0.1
    resumed = replace(tables[1], rows=tuple({**row, "spread": 0.1} for row in tables[1].rows))
    assert halved_layers(tables[0], resumed, "spread") == []  # a run of 0.1 that goes on


def rows(*rates):
    return tuple(
        {"layer": i, "Rc": rate, "Rc_std": 0.0, "nonzero": 0.5, "nonzero_std": 0.0} for i, rate in enumerate(rates, 1)
    )
