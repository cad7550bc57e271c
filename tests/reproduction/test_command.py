"""`python -m reproduction` with wrong arguments: one sentence, exit code 2."""

import pytest

from reproduction.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--only", "tabel1"], "unknown part 'tabel1'; known: table1, table2, table3, strong, fig3,"),
        (["--only", "table1,figure9"], "unknown part 'figure9'; known"),
        (["--runs", "nothing/*"], "no run of the plan matches nothing/*; --dry prints the names"),
        (
            ["--only", "table3", "--runs", "*/vit-t/*"],
            "no run of table3 matches */vit-t/*; --dry prints the names",
        ),
        (["--scale", "small"], "data/cifar10 is missing or empty; give the folder of cifar10, --data cifar10=FOLDER"),
        (["--write-only"], "out/reproduce-smoke has no results.json; run without --write-only first"),
        (["--jobs", "0"], "jobs must be at least 1, got 0"),
        (["--processes", "0"], "processes must be at least 1, got 0"),
        (["--data", "cifar10=/"], "scale smoke has no dataset 'cifar10'; its pictures come with the package"),
        (["--scale", "small", "--data", "cifar"], "--data takes NAME=FOLDER, got 'cifar'"),
        (["--scale", "small", "--data", "cifar10="], "--data takes NAME=FOLDER, got 'cifar10='"),
        (["--scale", "small", "--data", "cifar10=x"], "--data cifar10=x: x is not a folder"),
        (["--scale", "small", "--data", "cifar=/"], "scale small has no dataset 'cifar'; did you mean 'cifar10'?"),
        (["--devices", "gpu"], "device 'gpu' is not supported; use auto, cpu, cuda or cuda:N"),
    ],
)
def test_mistakes(arguments, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_a_file_is_no_folder(tmp_path, capsys):
    (tmp_path / "taken").touch()
    with pytest.raises(SystemExit) as stopped:
        main(["--out", str(tmp_path / "taken")])
    assert stopped.value.code == 2
    assert "taken is a file; --out needs a folder" in capsys.readouterr().err


def test_the_plan_is_printed_and_nothing_done(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["--scale", "full", "--only", "table3", "--dry"])
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == [
        "imagenet/crate-b/light/seed0",
        "imagenet/crate-b/mssa_tied/seed0",
        "imagenet/crate-b/prox_mm/seed0",
        "3",
    ]
    assert not list(tmp_path.iterdir())
