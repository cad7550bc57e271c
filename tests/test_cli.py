import re
import subprocess
import sys

import pytest
import torch

import opencrate
from opencrate import save_pretrained, shipped
from opencrate.cli import main
from opencrate.errors import sentence

from .checkpoints.test_checkpoints import authors_state, broken_checkpoints
from .networks import small
from .training.test_full_disk import mount


def test_describe(tmp_path, capsys):
    state = {"epoch": 150, "arch": "CRATE_tiny", "best_acc1": torch.tensor(66.7), "state_dict": authors_state()}
    torch.save(state, tmp_path / "model.pth.tar")
    main(["describe", str(tmp_path / "model.pth.tar"), "--num-heads", "4"])
    lines = capsys.readouterr().out.splitlines()
    rows = dict(line.split(maxsplit=1) for line in lines)
    assert rows == {
        "size": "custom: 3 layers, dimension 24",
        "heads": "4 of dimension 6",
        "image": "16 x 16 x 3 (assumed)",
        "patch": "4 x 4 (assumed)",
        "classes": "5",
        "pooling": "token (assumed)",
        "compression": "mssa (bias=True, causal=False, basis=free)",
        "sparsification": "ista (eta=0.1, lam=0.1)",
        "parameters": f"{sum(weight.numel() for weight in authors_state().values()):,}",
        "from": "the authors' layout, arch CRATE_tiny, epoch 150, best_acc1 66.7",
    }


def test_convert_both_ways(tmp_path, capsys):
    save_pretrained(small(), tmp_path / "ours")
    main(["convert", str(tmp_path / "ours"), str(tmp_path / "theirs.pth.tar")])
    main(["convert", str(tmp_path / "theirs.pth.tar"), str(tmp_path / "again"), "--num-heads", "4"])
    assert capsys.readouterr().out.splitlines() == [
        f"wrote {tmp_path / 'theirs.pth.tar'}",
        f"wrote {tmp_path / 'again'}",
    ]
    ours, again = (tmp_path / name / "model.safetensors" for name in ("ours", "again"))
    assert ours.read_bytes() == again.read_bytes()


def test_convert_overwrites_nothing_unless_forced(tmp_path, capsys):
    ours = save_pretrained(small(), tmp_path / "ours")
    file, folder, empty = tmp_path / "theirs.pth", tmp_path / "folder", tmp_path / "empty"
    empty.mkdir()
    for target in (file, folder):
        main(["convert", str(ours), str(target)])
    before = file.read_bytes()
    file.write_bytes(b"mine")
    for target in (file, folder):
        with pytest.raises(SystemExit) as stop:
            main(["convert", str(ours), str(target)])
        assert stop.value.code == 2
        sentence = f"opencrate: {target} exists: give another name, or --force to overwrite it\n"
        assert capsys.readouterr().err == sentence
    assert file.read_bytes() == b"mine"
    main(["convert", str(ours), str(file), "--force"])
    assert file.read_bytes() == before
    main(["convert", str(ours), str(empty)])
    assert (empty / "config.json").is_file()


def test_words_that_are_no_command(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["descirbe", "x"])
    assert stop.value.code == 2
    assert capsys.readouterr().err == "opencrate: unknown command 'descirbe'; did you mean 'describe'?\n"
    main(["--version"])
    assert capsys.readouterr().out == f"opencrate {opencrate.__version__}\n"
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 0
    assert "usage: opencrate" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["train", "finetune"])
def test_without_a_recipe_the_recipes_are_listed(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name])
    assert stop.value.code == 2
    assert "\n\nrecipes:\n" in capsys.readouterr().out


def test_eval_needs_a_checkpoint(capsys):
    for arguments in (["eval"], ["eval", "--knn", "2"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        sentence = "name a run or a checkpoint first: opencrate eval RUN_OR_CHECKPOINT"
        assert capsys.readouterr().err == f"opencrate: {sentence}\n"


@pytest.mark.parametrize(
    ("name", "command"), [("bench", "python -m benchmarks"), ("reproduce", "python -m reproduction")]
)
def test_commands_that_have_moved_name_their_new_home(name, command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, "--quick"])
    assert stop.value.code == 2
    sentence = f"'opencrate {name}' is now '{command}', with the same options, in a checkout of the repository"
    assert capsys.readouterr().err == f"opencrate: {sentence}\n"


def test_bad_input_is_exit_code_2_and_one_sentence(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    for path, message in broken_checkpoints(tmp_path / "in"):
        for command in (["describe", str(path)], ["convert", str(path), str(tmp_path / "out")]):
            with pytest.raises(SystemExit) as stop:
                main([*command, "--num-heads", "4"])
            assert stop.value.code == 2
            printed = capsys.readouterr()
            assert printed.out == ""
            (sentence,) = printed.err.splitlines()
            assert sentence.startswith("opencrate: ")
            assert message in sentence
            assert not (tmp_path / "out").exists()


def test_installed_command(tmp_path):
    """As a user runs it: no traceback, and the exit code of the shell."""
    save_pretrained(small(), tmp_path / "ours")
    command = [sys.executable, "-c", "from opencrate.cli import main; main()"]
    good = subprocess.run([*command, "describe", tmp_path / "ours"], capture_output=True, text=True, check=False)
    assert good.returncode == 0
    assert "16 x 16 x 3" in good.stdout
    bad = subprocess.run([*command, "describe", tmp_path / "no.pth"], capture_output=True, text=True, check=False)
    assert bad.returncode == 2
    assert bad.stderr == f"opencrate: {tmp_path / 'no.pth'} does not exist\n"


@pytest.mark.parametrize("form", ["layout", "layout.pth"])
def test_a_full_disk_is_one_sentence(tmp_path, capsys, form):
    """Outside of training, too; and nothing half-written stays."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if not mount(disk, "-t", "tmpfs", "-o", "size=20k", "tmpfs"):
        pytest.skip("mounting a small disk needs root")
    try:
        with pytest.raises(SystemExit) as stop:
            main(["convert", save_pretrained(small(embed_dim=96), tmp_path / "ours").as_posix(), str(disk / form)])
        assert stop.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith("the disk is full")
        assert str(disk / form) in line
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize(
    "command", [["convert", str(shipped.NETWORK)], ["train", "digits", "--device", "cpu", "--out"]]
)
def test_what_the_system_says_is_a_sentence(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*command, "/proc/x"])
    assert stop.value.code == 2
    assert re.fullmatch(r"opencrate: .*/proc/\S+: No such file or directory\n", capsys.readouterr().err)


def test_an_error_of_the_system_without_a_file_is_its_words():
    assert sentence(OSError(28, "No space left on device")) == "No space left on device"
    assert sentence(OSError("the disk is full")) == "the disk is full"


def test_what_is_explored_is_opened_before_its_pictures_are_spoken_of(capsys, caplog):
    with pytest.raises(SystemExit):
        main(["explore", "/nowhere", "--no-browser"])
    assert capsys.readouterr().err == "opencrate: /nowhere does not exist\n"
    assert caplog.messages == []
