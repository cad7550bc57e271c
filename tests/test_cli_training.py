"""The commands that train, as a user runs them: what they print, what they leave, what they say to a wrong word."""

import io
import json
import re
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import timm
import torch
from rich.console import Console

import opencrate
from opencrate.cli import main
from opencrate.recipes import FINETUNING, RECIPES, read_recipe
from tests.runs import SMALL, command
from tests.training.test_faults import FOLDER, picture_folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small run on the digits, and what it printed."""
    folder = tmp_path_factory.mktemp("run")
    code, printed = command([*SMALL, "--schedule.epochs", "2", "--out", folder / "run"], folder)
    assert code == 0, printed
    return folder / "run", printed


def test_a_run_says_what_it_does_and_where_everything_is(run):
    folder, printed = run
    assert printed.startswith("small begins: crate_tiny_patch4_32, ")
    assert "1,438 training and 359 validation pictures" in printed
    assert len(re.findall(r"^  layer +1 +2\n  R\^c .*\n  non-zero", printed, re.MULTILINE)) == 3  # start and two epochs
    assert re.search(r"accuracy +[\d.]+ % top-1 on validation \(best [\d.]+ % after epoch \d\)", printed)
    for name in ("model", "best", "metrics.jsonl", "recipe.yaml"):
        assert str(folder / name) in printed
        assert (folder / name).exists()
    (start,) = json.loads((folder / "run.json").read_text())
    assert start["seed"] == 0
    assert start["versions"]["torch"] == torch.__version__
    assert set(start) == {"started", "command", "seed", "options", "processes", "versions", "git", "hardware"}
    # By milliseconds: runs of a plan may take less than a second.
    assert re.fullmatch(r"\S+T\d\d:\d\d:\d\d\.\d{3}\+00:00", start["started"])
    kinds = [json.loads(line)["kind"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [kinds.count(kind) for kind in ("train", "validation", "layers")] == [18, 2, 3]


def test_the_network_of_a_run_is_loaded_by_us_and_by_timm(run):
    images = torch.randn(2, 1, 16, 16)
    ours = opencrate.load(run[0] / "model")
    timms = timm.create_model(f"local-dir:{run[0] / 'model'}", pretrained=True).eval()
    newest = max((run[0] / "checkpoints").glob("step-*.pt"))
    for other in (timms, opencrate.load(newest)):
        assert torch.equal(ours(images), other(images))
    assert ours.pretrained_cfg["label_names"] == list("0123456789")
    assert ours.pretrained_cfg["mean"] == [0.305]


def test_a_runs_folder_is_a_checkpoint_too(run, capsys):
    main(["describe", str(run[0])])
    assert "size            custom: 2 layers, dimension 16" in capsys.readouterr().out
    images = torch.randn(2, 1, 16, 16)
    assert torch.equal(opencrate.load(run[0])(images), opencrate.load(run[0] / "model")(images))


def test_a_runs_recipe_repeats_it_bit_for_bit(run, tmp_path):
    arguments = ["--out", tmp_path / "again", "--device", "cpu", "--no-tensorboard"]
    code, printed = command(["train", run[0] / "recipe.yaml", *arguments], tmp_path)
    assert code == 0, printed
    one, other = (folder / "model" / "model.safetensors" for folder in (run[0], tmp_path / "again"))
    assert one.read_bytes() == other.read_bytes()


def test_eval_measures_a_run(run, capsys):
    main(["eval", str(run[0]), "--knn", "5", "--linear", "--samples", "20", "--device", "cpu"])
    printed = capsys.readouterr().out
    rows = dict(line.split(maxsplit=1) for line in printed.splitlines()[:7])
    assert rows["classes"] == "10 of the network's 10, matched by number"
    assert set(rows) == {"classes", "top1", "top5", "loss", "pictures", "knn_5", "linear"}
    result = json.loads((run[0] / "result.json").read_text())
    assert float(rows["top1"].removesuffix(" %")) == pytest.approx(result["top1"], abs=5e-3)
    assert float(rows["linear"].removesuffix(" %")) > 25  # two layers, two epochs; chance is 10
    assert "definition paper, 20 samples" in printed


def test_eval_shows_a_bar_in_a_terminal_only(run, monkeypatch, capsys):
    arguments = ["eval", str(run[0]), "--knn", "2", "--samples", "20", "--device", "cpu", "--batch", "100"]
    main(arguments)
    assert "validation pictures" not in capsys.readouterr().err
    screen = io.StringIO()
    console = partial(Console, file=screen, force_terminal=True, width=80)
    monkeypatch.setattr("opencrate.evaluation.measure.Console", lambda stderr: console())
    main(arguments)
    for name, total in (("validation pictures", 359), ("training features", 1438), ("validation features", 359)):
        assert re.search(rf"{name}.*{total}/{total}", screen.getvalue())


def test_finetune_replaces_the_head_and_pack_feeds_it(run, tmp_path):
    picture_folder(tmp_path / "data", broken=0)
    code, printed = command(["pack", tmp_path / "data", tmp_path / "packed", "--side", "16"], tmp_path)
    assert (code, printed.splitlines()[0]) == (0, f"{tmp_path / 'packed' / 'train'}: 48 pictures of 2 classes, 0.00 GB")
    pretraining = [*SMALL, *FOLDER, "--data.root", tmp_path / "packed", "--out", tmp_path / "run"]
    code, printed = command([*pretraining, "--data.name", "packed"], tmp_path)
    assert code == 0, printed
    small = ["--precision", "fp32", "--no-compile", "--device", "cpu", "--schedule.epochs", "3", "--optim.batch", "500"]
    digits = ["--data.name", "idx", "--data.root", tmp_path / "idx", "--data.size", "16", "--data.num-classes", "4"]
    write_idx(tmp_path / "idx", 600, 4)
    arguments = ["finetune", "fashion_mnist", tmp_path / "run", *digits, *small, "--out", tmp_path / "fine"]
    code, printed = command(arguments, tmp_path)
    assert code == 0, printed
    assert "opencrate: --no-compile is deprecated, write --compile off\n" in printed
    before, after = (opencrate.load(tmp_path / name / "model") for name in ("run", "fine"))
    assert (before.num_classes, after.num_classes) == (2, 4)
    assert not torch.equal(before.blocks[0].U, after.blocks[0].U)


def write_idx(folder, count, classes):
    folder.mkdir()
    draw = np.random.default_rng(0)
    for name in ("train", "t10k"):
        for kind, array in (
            ("images-idx3", draw.integers(0, 256, (count, 16, 16), dtype=np.uint8)),
            ("labels-idx1", (np.arange(count) % classes).astype(np.uint8)),
        ):
            header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
            (folder / f"{name}-{kind}-ubyte").write_bytes(header + array.tobytes())


def test_recipes_are_listed(capsys):
    main(["recipes"])
    printed = capsys.readouterr().out
    for name in RECIPES.keys() | FINETUNING.keys():
        assert re.search(rf"^  {re.escape(name)} ", printed, re.MULTILINE), name
    assert re.search(
        r"^  imagenet1k_base +70\.8 %  ImageNet-1k, CRATE-Base; paper, table 1; 10 h", printed, re.MULTILINE
    )


def test_help_shows_a_recipes_own_values(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "imagenet1k_base", "--help"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert re.search(r"--optim\.lr FLOAT +peak learning rate\. \(default: 0\.00024\)", printed)
    for arguments in (["train", "--help"], ["finetune", "--help"], ["eval", "--help"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: opencrate {arguments[0]} ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "cifar10_tny"], "opencrate: unknown recipe 'cifar10_tny'; did you mean 'cifar10_tiny'?\n"),
        (["finetune", "pet"], "opencrate: unknown recipe 'pet'; did you mean 'pets'?\n"),
        (["train", "no.yaml"], "opencrate: no.yaml: No such file or directory\n"),
        (["train", "digits", "--data.name", "digitz"], "opencrate: unknown dataset 'digitz'; did you mean 'digits'?\n"),
        (["train", "digits", "--optim.name", "lino"], "opencrate: unknown optimiser 'lino'; did you mean 'lion'?\n"),
        (
            ["train", "digits", "--model.sparsify", "itsa"],
            "opencrate: unknown sparsification 'itsa'; did you mean 'ista'?\n",
        ),
        (["finetune", "cifar10"], "starts from a checkpoint: opencrate finetune RECIPE RUN_OR_CHECKPOINT\n"),
        (["eval", "nowhere"], "so its dataset is unknown; pass --recipe NAME\n"),
    ],
)
def test_wrong_names_are_one_sentence(tmp_path, monkeypatch, capsys, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith(sentence)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--optim.lrr", "1"], "--optim.lr"),
        (["--optim.lr", "fast"], "fast"),
        (["--optim.lr", "-1"], "must be positive"),
    ],
)
def test_wrong_fields_are_told_with_the_right_ones(capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        main(["train", "digits", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "note", "value"),
    [
        (["--model.attention", "sdpa"], "--model.attention is deprecated, write --attention", ("attention", "sdpa")),
        (["--model.attention=sdpa"], "--model.attention is deprecated, write --attention=sdpa", ("attention", "sdpa")),
        (["--no-graphs"], "--no-graphs is deprecated, write --graphs off", ("graphs", "off")),
        (["--compile", "--seed", "3"], "--compile is deprecated, write --compile on", ("compile", "on")),
        (["--graphs"], "--graphs is deprecated, write --graphs on", ("graphs", "on")),
        (["--compile", "off"], None, ("compile", "off")),
        (["--compile"], "--compile is deprecated, write --compile on", ("compile", "on")),
        ([], None, ("compile", "auto")),
    ],
)
def test_options_of_0_1_work_with_a_note(monkeypatch, capsys, old, note, value):
    seen = {}
    monkeypatch.setattr("opencrate.training.train", lambda recipe, options: seen.update(vars(options)), raising=False)
    monkeypatch.setattr("opencrate.training.summary", lambda result: "", raising=False)
    main(["train", "digits", *old])
    assert seen[value[0]] == value[1]
    assert capsys.readouterr().err == ("" if note is None else f"opencrate: {note}\n")


def test_operator_options_on_the_command_line_keep_their_types(monkeypatch):
    seen = {}
    monkeypatch.setattr("opencrate.training.train", lambda recipe, options: seen.update(vars(recipe)), raising=False)
    monkeypatch.setattr("opencrate.training.summary", lambda result: "", raising=False)
    main(["train", "digits", "--model.compress-args", "a", "1", "b", "0.5", "c", "True", "d", "word", "e", "1e-4"])
    values = seen["model"].compress_args
    assert values == {"a": 1, "b": 0.5, "c": True, "d": "word", "e": 1e-4}
    assert [type(value) for value in values.values()] == [int, float, bool, str, float]


def test_the_pictures_of_a_run_are_where_root_says(tmp_path, capsys):
    """The recipe names a folder that is not there; --root does not enter it, and eval looks there too."""
    picture_folder(tmp_path / "moved", broken=0)
    small = [*SMALL, *FOLDER, "--data.root", tmp_path / "nowhere", "--out", tmp_path / "run"]
    code, printed = command(small, tmp_path)
    assert code == 2
    assert f"{tmp_path / 'nowhere'} is not a folder" in printed
    code, printed = command([*small, "--root", tmp_path / "moved"], tmp_path)
    assert code == 0, printed
    assert read_recipe(tmp_path / "run" / "recipe.yaml").data.root == str(tmp_path / "nowhere")
    main(["eval", str(tmp_path / "run"), "--device", "cpu", "--samples", "4", "--workers", "0"])
    top1 = json.loads((tmp_path / "run" / "result.json").read_text())["top1"]
    assert f"top1      {top1:.2f} %" in capsys.readouterr().out


def test_a_folder_of_0_1_is_continued(tmp_path):
    """Its recipe.yaml has fields that are options today, which is no other recipe."""
    arguments = [*SMALL, "--schedule.epochs", "2", "--out", tmp_path / "run"]
    code, printed = command(arguments, tmp_path)
    assert code == 0, printed
    file = tmp_path / "run" / "recipe.yaml"
    old = file.read_text().replace("  imports: []\n", "  attention: null\n") + "compile: false\ngraphs: false\n"
    assert old.count("attention") == 1
    file.write_text(old)
    code, printed = command(arguments, tmp_path)
    assert code == 0, printed
    assert "it had finished before" in printed


@pytest.mark.filterwarnings("ignore:Overwriting own_tiny in registry")  # it is imported twice here
def test_a_module_of_the_users_own_is_imported_in_every_process_and_by_every_tool(tmp_path, monkeypatch, capsys):
    """It registers a network, so that nothing can be built without it, and says when it is imported."""
    (tmp_path / "own_networks.py").write_text(
        "import sys\n"
        "import timm\n"
        "from timm.models import register_model\n"
        "print('own networks are imported', file=sys.stderr)\n"
        "@register_model\n"
        "def own_tiny(pretrained=False, **kwargs):\n"
        "    return timm.create_model('crate_tiny_patch4_32', **kwargs)\n"
    )
    own = ["--model.name", "own_tiny", "--model.imports", "own_networks", "--schedule.epochs", "2"]
    # -P: as the installed command, which does not look in the current folder by itself
    words = [sys.executable, "-P", "-m", "opencrate", *SMALL, *own, "--processes", "2", "--out", "run"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("own networks are imported") == 2
    monkeypatch.chdir(tmp_path)
    for tool in (["eval", "run", "--device", "cpu"], ["audit", "run", "--samples", "8", "--device", "cpu"]):
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.delitem(sys.modules, "own_networks", raising=False)
        main(tool)
        assert capsys.readouterr().err.count("own networks are imported") == 1
    monkeypatch.delitem(sys.modules, "own_networks")
