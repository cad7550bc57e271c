"""What the network recognises, compared with scikit-learn's confusion matrix, torch's loss and Wilson's equation."""

import csv

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from sklearn.metrics import confusion_matrix
from torch.nn.functional import cross_entropy

from opencrate import load
from opencrate.data import open_feed
from opencrate.report import Analysis, accuracy_section, analyze, sections
from opencrate.report.accuracy_section import MISTAKES, classify, interval
from opencrate.run_recipe import data_of
from opencrate.settings import Studying
from opencrate.study import open_study
from opencrate.training import train
from opencrate.training.building import save_network

from ..runs import small_options, small_recipe

ONLY = Analysis(samples=8, batch=50, device="cpu", only=("accuracy",))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "small"
    train(small_recipe(), small_options(folder))
    return folder


@pytest.fixture(scope="module")
def logits(run):
    """Of all validation pictures, which are fewer than the section takes; and their classes."""
    feed = open_feed(data_of(str(run), None), None, False)
    images, targets = next(feed.evaluate(1000))
    with torch.inference_mode():
        return load(run).eval()(images), targets


def test_predictions_and_mistakes(run, logits):
    expected, targets = logits
    result = classify(open_study(str(run), Studying(batch=50), torch.device("cpu")))
    assert torch.equal(result.targets, targets)
    assert torch.equal(result.predictions, expected.argmax(-1))
    losses = cross_entropy(expected.double(), targets, reduction="none")
    worst = losses[result.predictions != result.targets].sort(descending=True).values[:MISTAKES]
    assert [mistake.loss for mistake in result.mistakes] == pytest.approx(worst.tolist(), rel=1e-3)
    for mistake in result.mistakes:
        assert mistake.prediction != mistake.target
        assert mistake.picture.shape == (16, 16, 3)
        i = (losses - mistake.loss).abs().argmin()
        assert mistake.probability == pytest.approx(expected[i].softmax(-1).max().item(), rel=1e-3)


def test_the_section_counts_as_scikit_learn_does(run, logits, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(accuracy_section.figures, "confusion", lambda names, counts: drawn.update(counts=counts))
    monkeypatch.setattr(sections.Section, "figure", lambda self, figure, name, caption: drawn.update({name: caption}))
    page = analyze(str(run), Analysis(**{**vars(ONLY), "out": tmp_path / "a"}))
    expected = confusion_matrix(logits[1], logits[0].argmax(-1), labels=range(10))
    assert (drawn["counts"] == expected).all()
    assert drawn.keys() == {"counts", "classes", "mistakes", "confusion"}
    rows = list(csv.DictReader((page.parent / "tables/classes.csv").read_text().splitlines()))
    assert [int(row["recognised"]) for row in rows] == expected.diagonal().tolist()
    assert [int(row["pictures"]) for row in rows] == expected.sum(1).tolist()
    wrong = expected - np.diag(expected.diagonal())
    assert [row["most_taken_for"] for row in rows] == [f"{row.argmax()}" if row.any() else "" for row in wrong]
    share = expected.trace() / expected.sum()
    assert f"<b>{share:.1%}</b>" in page.read_text()
    assert f"accuracy on {expected.sum()} validation pictures" in page.read_text()


@pytest.mark.parametrize(("right", "total"), [(0, 5), (7, 9), (88, 100), (50, 50)])
def test_the_interval_is_wilsons(right, total):
    """Its ends are the shares from which the one that was found is 1.96 standard deviations away."""
    for end in interval(right, total):
        deviation = 1.959964 * (end * (1 - end) / total) ** 0.5
        assert abs(right / total - end) == pytest.approx(deviation, abs=1e-6)


def test_a_network_of_many_classes_has_the_worst_and_the_best(tmp_path):
    """A ViT, too, and pictures of 60 classes, which it does not know from each other."""
    arguments = {"depth": 1, "embed_dim": 24, "num_heads": 3, "img_size": 8, "patch_size": 4, "num_classes": 60}
    model = timm.create_model("vit_tiny_patch16_224", **arguments)
    names = [f"c{i:02d}" for i in range(60)]
    model.built_with = arguments
    model.pretrained_cfg = {**model.pretrained_cfg, "input_size": (3, 8, 8), "label_names": names, "num_classes": 60}
    network = save_network(model, tmp_path / "vit")
    for i, name in enumerate(names):
        folder = tmp_path / "data" / "validation" / name
        folder.mkdir(parents=True)
        for k in range(3):
            Image.new("RGB", (8, 8), (4 * i, 80 * k, 255 - 4 * i)).save(folder / f"{k}.png")
    settings = Analysis(
        samples=8, batch=50, device="cpu", data="folder", root=str(tmp_path / "data"), out=tmp_path / "a"
    )
    page = analyze(str(network), settings).read_text()
    assert "The 15 worst and the 5 best of 60 classes" in page
    assert "The most frequent confusions." in page
    assert "is taken for" in page
    assert page.index('id="accuracy"') < page.index('id="baseline"') < page.index('id="appendix"')
