"""The analysis of a run: its own pictures, its training, its epochs."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from opencrate.measures import layerwise
from opencrate.report import Analysis, analyze
from opencrate.run_recipe import load_network
from opencrate.study import open_study
from opencrate.training import train

from ..runs import small_options, small_recipe


@pytest.fixture(scope="module", params=[0, 1], ids=["probed", "kept"])
def run(request, tmp_path_factory):
    """A run of three epochs, which keeps no checkpoint, or every one."""
    folder = tmp_path_factory.mktemp("run") / "small"
    train(small_recipe(), small_options(folder, keep_epochs=request.param))
    return folder, bool(request.param)


def test_the_report_of_a_run(run):
    folder, kept = run
    page = analyze(str(folder), Analysis(samples=8, batch=5, device="cpu", only=("layers", "epochs"))).read_text()
    assert (folder / "analysis/report.html").is_file()
    assert "validation pictures, training pictures" in page
    assert "27 in 3 epochs" in page
    result = json.loads((folder / "result.json").read_text())
    assert f"{result['top1']:.2f} % of all validation pictures at the end; {result['best']['top1']:.2f} % after" in page
    curves = json.loads((folder / "analysis/tables/layers.json").read_text())["paper"]
    assert list(curves) == ["validation pictures", "training pictures", "untrained"]
    epochs = json.loads((folder / "analysis/tables/epochs.json").read_text())
    assert list(epochs) == [f"epoch {number}" for number in ((1, 2, 3) if kept else (0, 1, 2, 3))]
    assert ("that the run kept" in page) == kept
    study = open_study(str(folder), Analysis(samples=8, batch=5), torch.device("cpu"))
    last = layerwise(study.model, study.batches(), "unit")
    if kept:
        assert epochs["epoch 3"]["rows"][1]["Rc"] == pytest.approx(last.rows[1]["Rc"], rel=1e-5)


def test_the_best_epoch_is_named_where_it_is_not_the_last(run, tmp_path, caplog):
    """By the report, and by everything that opens a network of the run."""
    folder = shutil.copytree(run[0], tmp_path / "small")
    result = json.loads((folder / "result.json").read_text())
    wanted = Analysis(samples=2, device="cpu", only=("epochs",))

    def opened(source, best):
        result["best"] = {"epoch": best, "top1": 99.25}
        (folder / "result.json").write_text(json.dumps(result))
        caplog.clear()
        page = analyze(str(source), replace(wanted, out=tmp_path / "out")).read_text()
        return page, [message for message in caplog.messages if "epoch" in message]

    sentence = "this is the network of the last epoch, 3; that of the best epoch, 2 (99.25 % top-1, this one "
    page, said = opened(folder, 2)
    assert sentence in page
    assert len(said) == 1
    assert said[0].startswith(f"{folder}: {sentence}")
    assert said[0].endswith(f"is {folder / 'best'}")
    assert "Top-1 accuracy after every epoch" in page
    assert (tmp_path / "out/figures/accuracy.png").is_file()
    page, said = opened(folder, 3)
    assert ("<dd>3, the last and the best</dd>" in page, said) == (True, [])
    page, said = opened(folder / "best", 2)
    assert ("<dd>2, the best of 3</dd>" in page, said) == (True, [])
    shutil.rmtree(folder / "model")
    (folder / "result.json").unlink()
    load_network(folder)
    unfinished = f"the run has not finished, so this is its best network so far, {folder / 'best'}"
    assert caplog.messages[-1] == f"{folder}: {unfinished}"
    assert unfinished in analyze(str(folder), replace(wanted, out=tmp_path / "out")).read_text()


def test_what_is_told_of_a_checkpoint_within_a_run(run):
    folder, kept = run
    chosen = Analysis(samples=2, device="cpu", only=("accuracy",), out=folder.parent / "b")
    page = analyze(str(folder / "best"), chosen).read_text()
    best = json.loads((folder / "result.json").read_text())["best"]["top1"]
    assert f"<b>{best:.1f}%</b>" in page  # of the digits' 359 validation pictures the section takes all
    assert "accuracy on 359 validation pictures" in page
    if kept:
        page = analyze(str(folder / "checkpoints/epoch-0001.pt"), chosen).read_text()
        assert "steps of the whole run" in page


def test_the_untrained_network_is_the_one_of_the_runs_shape(run):
    study = open_study(str(run[0]), Analysis(samples=4), torch.device("cpu"))
    assert study.untrained.config() == study.model.config()
    assert not torch.equal(study.untrained.blocks[0].U, study.model.blocks[0].U)
    assert study.class_name(3) == "3"
    assert str(study.match) == "10 of the network's 10, matched by number"


def test_pictures_of_a_recipe(run):
    model = str(run[0] / "model/model.safetensors")
    study = open_study(model, Analysis(recipe="digits", samples=4), torch.device("cpu"))
    assert len(study.pictures[0].feed) == 359
    assert study.gallery.images.shape == (4, 1, 16, 16)
    study = open_study(model, Analysis(data="digits", samples=4), torch.device("cpu"))
    assert len(study.pictures[0].feed) == 359
