"""`opencrate reproduce` as a person mistypes it: one sentence, exit code 2."""

import pytest

from opencrate.cli import main


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--only", "tabel1"], "there is no part 'tabel1' of the paper; known: table1, table2, table3, strong, fig3,"),
        (["--only", "table1,figure9"], "there is no part 'figure9' of the paper"),
        (["--runs", "nothing/*"], "no run of the plan matches nothing/*: --dry prints their names"),
        (["--only", "table3", "--runs", "*/vit-t/*"], "no run of table3 matches */vit-t/*: --dry prints their names"),
        (["--scale", "small"], "there is nothing in data/cifar10: say where cifar10 lies, --data cifar10=FOLDER"),
        (["--write-only"], "there are no results in out/reproduce-smoke to write of"),
        (["--jobs", "0"], "jobs must be at least 1, got 0"),
        (["--processes", "0"], "processes must be at least 1, got 0"),
        (["--data", "cifar10=/"], "the scale smoke has no set 'cifar10': its pictures come with the package"),
        (["--scale", "small", "--data", "cifar"], "--data takes NAME=FOLDER, got 'cifar'"),
        (["--scale", "small", "--data", "cifar10="], "--data takes NAME=FOLDER, got 'cifar10='"),
        (["--scale", "small", "--data", "cifar10=x"], "x is not a folder, and cifar10 is to lie there"),
        (["--scale", "small", "--data", "cifar=/"], "the scale small has no set 'cifar'; did you mean 'cifar10'?"),
        (["--devices", "gpu"], "unknown device 'gpu'; use auto, cpu, cuda or cuda:N"),
    ],
)
def test_mistakes(arguments, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", *arguments])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_a_file_is_no_folder(tmp_path, capsys):
    (tmp_path / "taken").touch()
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", "--out", str(tmp_path / "taken")])
    assert stopped.value.code == 2
    assert "taken is a file: results need a folder" in capsys.readouterr().err


def test_the_plan_is_printed_and_nothing_done(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["reproduce", "--scale", "full", "--only", "table3", "--dry"])
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == [
        "imagenet/crate-b/light/seed0",
        "imagenet/crate-b/mssa_tied/seed0",
        "imagenet/crate-b/prox_mm/seed0",
        "3",
    ]
    assert not list(tmp_path.iterdir())
