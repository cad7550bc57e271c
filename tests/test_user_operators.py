"""Operators of a user's own, in a module beside the run, go through everything that the package's own go through.

The module is tests/user_operators.py under another name, in a folder from which every command is run.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import opencrate
from opencrate.checkpoints import push_to_hub, read
from opencrate.operators import compressions, sparsifications
from opencrate.training.loop import Training
from tests.networks import small
from tests.runs import FORKS, SMALL, _command, losses

pytestmark = pytest.mark.unhooked  # exporters read the code as it is

OPERATORS = {"dictionary": "sparsify", "tssa": "compress", "attention_only": "sparsify"}
IMAGES = torch.randn(5, 1, 16, 16, generator=torch.Generator().manual_seed(0))
STEPS, KILLED_AT = 27, 14

every_operator = pytest.mark.parametrize("name", OPERATORS)
one_operator = pytest.mark.parametrize(  # of a test of many seconds; the others by `make test-slow`
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "dictionary")) for name in OPERATORS]
)


def training(name: str, out: str) -> list[str]:
    """The words of a command that trains a network with this operator."""
    half = OPERATORS.get(name, "sparsify")
    own = ["--model.imports", "mine"] if name in OPERATORS else []
    return [*SMALL, f"--model.{half}", name, *own, "--schedule.epochs", "3", "--keep-epochs", "2", "--out", out]


def command(folder: Path, words: list[str], kill_at: int | None = None) -> tuple[int, str]:
    """`opencrate …` in a process of its own, from this folder: the exit code, and what it printed."""
    log = folder / f"printed-{len(list(folder.glob('printed-*')))}.txt"
    process = FORKS.Process(target=_in_folder, args=(str(folder), [*words], str(log), kill_at))
    process.start()
    process.join(120)
    process.kill()  # if it hangs
    return process.exitcode, log.read_text()


def _in_folder(folder: str, words: list[str], log: str, kill_at: int | None) -> None:
    os.chdir(folder)
    step = Training._step

    def killed(self, batches):
        if self.progress.step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, batches)

    Training._step = killed
    _command(words, log, None)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Where the user works: a folder with a module, and a trained run for every operator that was asked for."""
    folder = tmp_path_factory.mktemp("user")
    shutil.copy(Path(__file__).with_name("user_operators.py"), folder / "mine.py")
    return folder


@pytest.fixture
def run(folder, name):
    """A run with the operator, trained once for all tests."""
    if not (folder / name / "result.json").exists():
        code, printed = command(folder, training(name, name))
        assert code == 0, printed
        assert len(losses(folder / name)) == STEPS
    return folder / name


@pytest.fixture
def fresh(folder, monkeypatch):
    """This process as one that was just started in the folder: it knows the package's operators only."""
    kept = [(registry, dict(registry)) for registry in (compressions, sparsifications)]
    for registry, operators in kept:
        for name in [name for name, known in operators.items() if not known.__module__.startswith("opencrate.")]:
            del registry[name]
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    sys.modules.pop("mine", None)
    for registry, operators in kept:
        registry.clear()
        registry.update(operators)


@every_operator
def test_it_learns(run, name):
    first, second, third = torch.tensor(losses(run)).view(3, -1).mean(1)  # by epoch
    assert first > second > third
    assert third < first - 0.05


@pytest.mark.parametrize("name", [*OPERATORS, "none"])
def test_a_killed_run_ends_with_the_weights_of_an_untouched_one(folder, run, name):
    words = training(name, f"{name}-killed")
    code, printed = command(folder, words, kill_at=KILLED_AT)
    assert code == -signal.SIGKILL, printed
    killed = folder / f"{name}-killed"
    assert not (killed / "model").exists()
    assert list((killed / "checkpoints").glob("step-*.pt")), "there is nothing to resume from"
    code, printed = command(folder, words)
    assert code == 0, printed
    one, other = (path / "model" / "model.safetensors" for path in (run, killed))
    assert one.read_bytes() == other.read_bytes()
    assert losses(run) == losses(killed)


@pytest.mark.parametrize("name", ["none"])
def test_attention_only_is_the_packages_own_none(folder, run, name):
    """A user's operator that adds nothing, and the built-in one, are trained to the same weights."""
    code, printed = command(folder, training("attention_only", "attention_only"))
    assert code == 0, printed
    ours, users = (path / "model" / "model.safetensors" for path in (run, folder / "attention_only"))
    assert ours.read_bytes() == users.read_bytes()
    assert "imports" not in json.loads((run / "model" / "config.json").read_text())


@one_operator
def test_two_processes_train_it(folder, run, name):
    """As the installed command does it, which does not look in the current folder by itself (-P)."""
    words = [sys.executable, "-P", "-m", "opencrate", *training(name, f"{name}-two"), "--processes", "2"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert losses(folder / f"{name}-two") == pytest.approx(losses(run), abs=1e-4, rel=0)


@every_operator
def test_describe(folder, run, name):
    code, printed = command(folder, ["describe", name])
    assert code == 0, printed
    rows = dict(line.split(maxsplit=1) for line in printed.splitlines())
    kind = {"compress": "compression", "sparsify": "sparsification"}[OPERATORS[name]]
    options = " (expansion=4, eta=0.1, lam=0.1, steps=2)" if name == "dictionary" else ""
    assert rows[kind] == name + options


@every_operator
def test_audit(folder, run, name):
    code, printed = command(folder, ["audit", name, "--samples", "20", "--device", "cpu"])
    assert code == 0, printed
    lines = re.findall(r"^ +\d   (\w+).*", printed, re.MULTILINE)
    assert len(lines) == 2
    assert all((grade == "unknown") == (name == "tssa") for grade in lines)
    assert ("LASSO" in printed) == (name != "attention_only")  # the dictionary's own aim, or ISTA's beside TSSA
    assert ("the operator states no aim" in printed) == (name in ("attention_only", "tssa"))


@one_operator
def test_analyze(folder, run, name):
    code, printed = command(folder, ["analyze", name, "--samples", "16", "--device", "cpu"])
    assert code == 0, printed
    page = (run / "analysis" / "report.html").read_text(encoding="utf-8")
    assert name in page
    table = json.loads((run / "analysis" / "tables" / "layers.json").read_text())
    assert table


@every_operator
def test_the_explorer_answers(fresh, run, name):
    pytest.importorskip("uvicorn")
    from opencrate.explorer import open_subject
    from opencrate.explorer.explore import Exploring
    from opencrate.explorer.server import _Questions

    questions = _Questions(open_subject(name, Exploring(samples=6, batch=3, browser=False)))
    assert questions.subject.about()["networks"] == ["this network", "untrained", "epoch 2"]
    opened = questions.sample({"number": 1})
    key, images = opened["key"], questions.subject.sample(1).images
    model = opencrate.load(name)
    with torch.inference_mode():
        steps = list(opencrate.trajectory(model, images))
    assert opened["probabilities"] == pytest.approx(model(images)[0].softmax(-1).tolist(), abs=1e-5)
    assert len(opened["sites"]) == 1 + 2 * len(steps)

    if name == "tssa":
        with pytest.raises(ValueError, match=r"^the compression tssa has no attention maps$"):
            questions.attention({"key": key, "token": 3})
    else:
        expected = steps[0].maps[0, :, 3, 1:].sum(-1)
        shown = questions.attention({"key": key, "token": 3})["to_patches"][0]
        assert shown == pytest.approx(expected.tolist(), abs=1e-5)

    shown = questions.head({"key": key, "layer": 2, "head": 1})
    with torch.inference_mode():
        V = steps[1].layer.compress.norm(steps[1].Z)[0] @ steps[1].layer.U[0]
        spectrum = torch.linalg.svdvals(V.double())
    assert shown["spectrum"] == pytest.approx((spectrum / spectrum.max()).tolist(), abs=1e-5)
    assert len(shown["reference"]) > 0

    shown = questions.coordinate({"key": key, "layer": 1, "coordinate": 4})
    assert shown["activity"] == pytest.approx(steps[0].Z_next[0, :, 3].tolist(), abs=1e-5)
    assert (shown["column"] == []) == (name != "tssa")  # an atom is a coordinate of the tokens behind ISTA alone


@every_operator
def test_the_explorer_switches_off_what_can_be_switched_off(fresh, run, name):
    pytest.importorskip("uvicorn")
    from opencrate.explorer import open_subject
    from opencrate.explorer.explore import Exploring
    from opencrate.explorer.server import _Questions

    questions = _Questions(open_subject(name, Exploring(samples=6, batch=3, browser=False)))
    opened = questions.sample({"number": 0})
    for off, refusal in (
        ({"heads": [[1, 2]]}, {"tssa": "compression 'tssa' does not say how a head is switched off"}),
        ({"atoms": [[1, 2]]}, {"attention_only": "the sparsification attention_only has no code whose coordinates"}),
    ):
        if name in refusal:
            with pytest.raises(ValueError, match=refusal[name]):
                questions.look({"key": opened["key"], "off": off})
        else:
            assert questions.look({"key": opened["key"], "off": off})["probabilities"] != opened["probabilities"]


@every_operator
def test_it_exports(fresh, run, name):
    model = opencrate.load(name)
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(model, (IMAGES[:2],), dynamic_shapes=({0: batch},))
    with torch.no_grad():
        torch.testing.assert_close(exported.module()(IMAGES), model(IMAGES), rtol=1e-4, atol=1e-5)


@every_operator
def test_onnx_gives_the_same_logits(fresh, run, name):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, file = opencrate.load(name), run / "model.onnx"
    batch = torch.export.Dim("batch", min=1, max=64)
    torch.onnx.export(
        model, (IMAGES[:2],), file, dynamo=True, dynamic_shapes=({0: batch},), input_names=["images"], verbose=False
    )
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"images": IMAGES.numpy()})
    torch.testing.assert_close(torch.from_numpy(logits), model(IMAGES), rtol=1e-4, atol=1e-4)


@every_operator
def test_a_checkpoint_of_the_run_is_a_network_too(fresh, run, name):
    newest = max((run / "checkpoints").glob("step-*.pt"))
    assert torch.equal(opencrate.load(newest)(IMAGES), opencrate.load(run)(IMAGES))


class TestImports:
    """config.json names the modules of a network's operators."""

    @pytest.fixture
    def name(self):
        return "dictionary"

    def test_a_run_names_its_module(self, run):
        assert json.loads((run / "model" / "config.json").read_text())["imports"] == ["mine"]

    @pytest.mark.parametrize("basis", ["free", "orthonormal"])  # torch gives a parametrised operator a class of its own
    def test_an_operator_of_the_package_names_none(self, tmp_path, basis):
        opencrate.save_pretrained(small(compress_args={"basis": basis}), tmp_path / "saved")
        assert "imports" not in json.loads((tmp_path / "saved" / "config.json").read_text())
        assert read(tmp_path / "saved").imports == ()

    @pytest.mark.parametrize("inside", ["", "model", "model/config.json", "model/model.safetensors"])
    def test_a_local_checkpoint_brings_its_operators(self, fresh, run, inside):
        assert "dictionary" not in sparsifications
        opencrate.load(Path("dictionary") / inside)
        assert sparsifications["dictionary"].__module__ == "mine"

    def test_a_module_that_is_not_here_is_one_sentence(self, fresh, run, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
        with pytest.raises(ValueError, match=r"^there is no module mine, neither installed nor in .*: run from its"):
            opencrate.load(run)

    @pytest.mark.parametrize(
        ("imports", "sentence"),
        [
            ("mine", "imports must be a list of modules, got 'mine'"),
            ([3], r"imports must be a list of modules, got \[3\]"),
            (["../mine.py"], r"'\.\./mine\.py' is not the name of a module"),
        ],
    )
    def test_only_names_of_modules_are_taken(self, fresh, run, tmp_path, imports, sentence):
        shutil.copytree(run / "model", tmp_path / "model")
        file = tmp_path / "model" / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"imports": imports}))
        with pytest.raises(ValueError, match=rf"config\.json: {sentence}"):
            opencrate.load(tmp_path / "model")
        assert "mine" not in sys.modules

    def test_a_hub_repository_imports_nothing(self, fresh, run, tmp_path, monkeypatch):
        """The module lies in the current folder, and is imported by the user only."""
        snapshot = tmp_path / "models--someone--crate" / "snapshots" / "0123abc"
        shutil.copytree(run / "model", snapshot)
        (tmp_path / "models--someone--crate" / "refs").mkdir()
        (tmp_path / "models--someone--crate" / "refs" / "main").write_text("0123abc")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(ValueError, match=r"unknown sparsification 'dictionary'.*; import mine first, if you trust"):
            opencrate.load("someone/crate")
        assert "mine" not in sys.modules
        opencrate.imports.import_modules(["mine"])
        assert torch.equal(opencrate.load("someone/crate")(IMAGES), opencrate.load(run)(IMAGES))

    def test_what_is_pushed_to_the_hub_names_its_module_too(self, fresh, run, hub):
        push_to_hub(opencrate.load(run), "someone/crate")
        assert json.loads((hub / "config.json").read_text())["imports"] == ["mine"]

    def test_an_operator_of_a_script_has_no_module_to_name(self, fresh, run, tmp_path, monkeypatch):
        model = opencrate.load(run)
        monkeypatch.setattr(sparsifications["dictionary"], "__module__", "__main__")
        opencrate.save_pretrained(model, tmp_path / "saved")
        assert "imports" not in json.loads((tmp_path / "saved" / "config.json").read_text())
