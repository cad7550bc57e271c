"""The command, as a user runs it."""

import json
from pathlib import Path
from statistics import median

import pytest
import torch

from benchmarks import measure, timing
from benchmarks.__main__ import main
from benchmarks.attention import Shape
from benchmarks.report_file import disagreements, merge_reports, read

from .families import BrokenFamily, SmallFamily

FAST = ["--quick", "--rounds", "2", "--seconds", "0.002", "--device", "cpu"]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(measure, "Family", SmallFamily)
    monkeypatch.setitem(timing.SIDES, "cpu", 64)
    monkeypatch.setattr(measure, "shapes_for", lambda *_: [("sweep", Shape(1, n, 1, 8)) for n in (16, 32)])


def test_every_part(small, tmp_path, capsys):
    main([*FAST, "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    for words in ("Training: CRATE-Tiny", "Inference: CRATE-Tiny", "Latency of one picture", "Attention alone", "MFU"):
        assert words in printed
    assert max(map(len, printed.splitlines())) <= 100
    report = json.loads((tmp_path / "bench.json").read_text())
    assert report["versions"]["torch"] == torch.__version__
    assert report["options"]["rounds"] == 2
    assert {"git", "hardware", "device", "seconds"} <= report.keys()
    assert [comparison["task"] for comparison in report["comparisons"]] == ["training", "inference", "latency"]
    training, inference, _ = report["comparisons"]
    assert [row["variant"] for row in training["rows"]] == ["pseudocode-eager", "opencrate-eager", "vit-eager"]
    assert [row["variant"] for row in inference["rows"]][2] == "folded-eager"
    for comparison in report["comparisons"]:
        assert comparison["baselines"] == ["pseudocode-eager", "vit-eager"]
        for row in comparison["rows"]:
            check_row(row, comparison)
    assert len(report["attention"]) == 2
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert disagreements(report) == []


def check_row(row, comparison):
    (taken,) = row["timings"].values()
    assert row["status"] == "measured"
    assert min(taken["rounds"]) <= taken["seconds"] <= max(taken["rounds"])
    assert taken["pictures_per_second"] == comparison["batch"] / taken["seconds"]
    work = comparison["flops_per_picture"]["vit" if row["variant"].startswith("vit") else "crate"]
    if comparison["task"] == "latency":
        assert taken["share_of_ceiling"] is None
    else:
        ceiling, work = comparison["ceiling"], comparison["batch"] * work
        rounds = zip(taken["rounds"], ceiling["rounds"], strict=True)
        shares = [(work / ours) / (ceiling["operations"] / product) for ours, product in rounds]
        assert taken["share_of_ceiling"] == pytest.approx(median(shares))
    assert taken["times_as_fast_as"].keys() == set(comparison["baselines"])
    if row["variant"] in comparison["baselines"]:
        assert taken["times_as_fast_as"][row["variant"]] == 1.0


def test_a_disagreement_is_exit_code_1_and_no_speed(small, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(measure, "Family", BrokenFamily)
    with pytest.raises(SystemExit) as stop:
        main([*FAST, "--only", "inference", "--out", str(tmp_path)])
    assert stop.value.code == 1
    printed = capsys.readouterr()
    assert (
        printed.err
        == "benchmarks: no speed for variants that compute something else: opencrate-eager in tiny inference\n"
    )
    row = next(line for line in printed.out.splitlines() if line.strip().startswith("opencrate-eager"))
    assert "disagrees" in row
    (comparison,) = read(tmp_path / "bench.json")["comparisons"]
    broken = comparison["rows"][1]
    assert (broken["status"], broken["timings"], broken["peak_bytes"]) == ("disagrees", {}, None)
    assert broken["errors"]["outputs"] > 1e-3


def test_memory_alone(small, tmp_path):
    main([*FAST, "--only", "memory", "--variants", "opencrate-eager", "--out", str(tmp_path)])
    (comparison,) = read(tmp_path / "bench.json")["comparisons"]
    assert comparison["task"] == "training"
    (row,) = comparison["rows"]
    assert row["timings"] == {}
    assert row["peak_bytes"] is None or row["peak_bytes"] > 3 * 4 * comparison["parameters"]["crate"]


def test_earlier_results_are_shown_together(small, tmp_path, capsys):
    for part in ("latency", "attention"):
        main([*FAST, "--only", part, "--out", str(tmp_path / part)])
    files = [str(tmp_path / part / "bench.json") for part in ("latency", "attention")]
    capsys.readouterr()
    main(["--show", files[0], str(tmp_path / "attention"), "--out", str(tmp_path / "both")])
    printed = capsys.readouterr().out
    assert "Latency of one picture" in printed
    assert "Attention alone" in printed
    assert [path.name for path in (tmp_path / "both").iterdir()] == ["bench.png"]
    assert len(merge_reports([read(Path(file)) for file in files])["comparisons"]) == 1


def test_without_matplotlib(small, tmp_path, capsys, without_matplotlib):
    main([*FAST, "--only", "attention", "--out", str(tmp_path)])
    assert "No plot: matplotlib is missing" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sizes", "bse"], "unknown size 'bse'; did you mean 'base'?"),
        (["--only", "speed"], "unknown measurement 'speed'; known: attention, inference, latency, memory, training"),
        (
            ["--variants", "opencrate-compile"],
            "unknown variant 'opencrate-compile'; did you mean 'opencrate-compiled'?",
        ),
        (["--batch", "0"], "--batch must be positive, got 0"),
        (["--device", "tpu"], "unknown device 'tpu'; known: cpu, cuda"),
        (["--show", "no.json"], "no.json does not exist"),
        (["--show"], "--show needs a bench.json, or its folder"),
    ],
)
def test_errors_are_a_sentence(arguments, sentence, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*arguments])
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"benchmarks: {sentence}\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(capsys):
    with pytest.raises(SystemExit):
        main(["--device", "cuda"])
    assert capsys.readouterr().err == "benchmarks: torch finds no GPU on this machine; use --device cpu\n"


def test_files_that_are_something_else(tmp_path, capsys):
    (tmp_path / "other.json").write_text('{"a": 1}')
    with pytest.raises(SystemExit):
        main(["--show", str(tmp_path / "other.json")])
    assert "other.json is not a report of `python -m benchmarks`" in capsys.readouterr().err


def test_a_file_without_a_measurement(tmp_path, capsys):
    (tmp_path / "bench.json").write_text('{"comparisons": [], "attention": []}')
    with pytest.raises(SystemExit):
        main(["--show", str(tmp_path)])
    assert capsys.readouterr().err.endswith(
        "bench.json has no measurement, because its run was stopped before the first\n"
    )


def test_a_run_that_is_stopped_at_once_leaves_the_earlier_results(small, tmp_path, monkeypatch):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    (tmp_path / "bench.json").write_text("earlier")
    monkeypatch.setattr("benchmarks.measure.measure_attention", stop)
    with pytest.raises(SystemExit):
        main([*FAST, "--only", "attention", "--out", str(tmp_path)])
    assert (tmp_path / "bench.json").read_text() == "earlier"


@pytest.mark.slow
def test_quick_is_quick(tmp_path):
    main(["--quick", "--device", "cpu", "--out", str(tmp_path)])
    report = read(tmp_path / "bench.json")
    assert report["seconds"] < 60
    assert len(report["comparisons"]) == 3
    assert len(report["attention"]) > 3
