"""Probes of frozen features, against scikit-learn; ImageNet-ReaL, against labels by hand."""

import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from opencrate.data import Augmentation, Dataset
from opencrate.data.datasets.pictures import Pictures
from opencrate.data.feeds.loading import Loaded
from opencrate.distributed import World
from opencrate.evaluation import features as probing
from opencrate.evaluation.features import features, knn, linear_probe, real
from opencrate.settings import Measuring
from tests.networks import small
from tests.tasks.test_classification import Given

WORLD = World(0, 1, torch.device("cpu"))


def clouds(rng, counts=(300, 200), classes=6, dim=12):
    """Two sets of overlapping clouds, some directions much longer than others."""
    centres = 1.2 * torch.randn(classes, dim, generator=rng)
    sets = []
    for count in counts:
        targets = torch.randint(classes, (count,), generator=rng)
        rows = centres[targets] + 1.5 * torch.randn(count, dim, generator=rng)
        sets.append((rows * torch.logspace(-1, 1, dim) + 3, targets))
    return sets


@pytest.mark.parametrize("k", [1, 5, 20])
def test_neighbours(rng, k):
    training, validation = clouds(rng)
    theirs = KNeighborsClassifier(k, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
    theirs.fit(training[0].double().numpy(), training[1].numpy())
    wanted = 100 * theirs.score(validation[0].double().numpy(), validation[1].numpy())
    assert 20 < wanted < 95
    assert knn(training, validation, k) == pytest.approx(wanted)


def test_neighbours_in_several_batches(rng):
    training, validation = clouds(rng, counts=(50, 2500))
    parts = [knn(training, (validation[0][rows], validation[1][rows]), 5) for rows in torch.arange(2500).split(500)]
    assert knn(training, validation, 5) == pytest.approx(np.mean(parts))


@pytest.mark.parametrize("k", [0, 301])
def test_a_wrong_number_of_neighbours(rng, k):
    with pytest.raises(ValueError, match=f"^k must be between 1 and the number of training pictures, 300, got {k}$"):
        knn(*clouds(rng), k)


@pytest.mark.parametrize("weight_decay", [1e-3, 1e-1])
def test_linear_probe(rng, weight_decay, monkeypatch):
    training, validation = clouds(rng)
    mean, std = training[0].mean(0), training[0].std(0)
    standard = [((rows - mean) / std).double().numpy() for rows, _ in (training, validation)]
    theirs = LogisticRegression(C=1 / (300 * weight_decay), max_iter=10_000, tol=1e-8)
    theirs.fit(standard[0], training[1].numpy())
    fitted = []

    class Watched(torch.optim.LBFGS):
        def step(self, closure):
            super().step(closure)
            fitted.extend(self.param_groups[0]["params"])

    monkeypatch.setattr(torch.optim, "LBFGS", Watched)
    accuracy = linear_probe(training, validation, weight_decay)
    assert accuracy == pytest.approx(100 * theirs.score(standard[1], validation[1].numpy()))
    np.testing.assert_allclose(fitted[0].detach(), theirs.coef_, atol=5e-3)
    bias = fitted[1].detach().numpy()
    np.testing.assert_allclose(bias - bias.mean(), theirs.intercept_ - theirs.intercept_.mean(), atol=5e-3)


def test_features_are_what_the_classifier_sees(rng):
    model = small().train()
    feed = Given(torch.randn(9, 3, 16, 16, generator=rng), torch.tensor([0, 1, -1, 2, 3, -1, 4, 0, 1]))
    rows, classes = features(model, feed, WORLD, batch=4)
    counted = feed.targets >= 0
    assert torch.equal(classes, feed.targets[counted])
    with torch.no_grad():
        torch.testing.assert_close(model.head(rows), model.eval()(feed.images[counted]))
    rough = features(model, feed, WORLD, "bf16")[0]
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, rows, rtol=0, atol=0.1)


# ImageNet-ReaL

LABELS = [[0], [1, 2], [], [3], [4]]
NAMES = [f"n01440764/ILSVRC2012_val_{i + 1:08d}.JPEG" for i in range(5)]


class Numbered(Pictures):
    """Five pictures whose colour is their number; `broken` ones do not decode."""

    classes = tuple("abcde")

    def __init__(self, names=NAMES, broken=()):
        self.names, self.broken, self.targets = names, broken, np.arange(len(names))

    def picture(self, i):
        from PIL import Image

        if i in self.broken:
            raise ValueError("it is broken")
        return Image.new("RGB", (4, 4), (10 * i,) * 3)

    def name(self, i):
        return self.names[i]


class Reads(torch.nn.Module):
    """Predicts the number that the colour tells, or what `instead` says for it."""

    def __init__(self, instead=None):
        super().__init__()
        self.instead = instead or {}

    def forward(self, images):
        numbers = (images[:, 0, 0, 0] * 255 / 10).round().long().tolist()
        return torch.eye(5)[[self.instead.get(number, number) for number in numbers]]


def loaded(pictures):
    data = Dataset(num_classes=5, size=4, mean=(0,) * 3, std=(1,) * 3, crop_pct=1.0, max_decode_failures=1.0)
    return Loaded(pictures, data, Augmentation(), augmented=False)


@pytest.fixture
def _five_labels(tmp_path, monkeypatch):
    """timm's class with labels for five pictures, not 50,000."""
    (tmp_path / "labels.json").write_text(json.dumps(LABELS))
    complete = probing.RealLabelsImagenet
    monkeypatch.setattr(
        probing, "RealLabelsImagenet", lambda names, **kwargs: complete(names, str(tmp_path / "labels.json"), **kwargs)
    )


@pytest.mark.usefixtures("_five_labels")
@pytest.mark.parametrize("batch", [2, 5])
def test_real_labels(batch):
    assert real(Reads(), loaded(Numbered()), WORLD, batch=batch) == 100
    assert real(Reads({1: 2}), loaded(Numbered()), WORLD, batch=batch) == 100  # another of its labels
    assert real(Reads({2: 0}), loaded(Numbered()), WORLD, batch=batch) == 100  # it has none, and is not counted
    assert real(Reads({0: 4, 3: 1}), loaded(Numbered()), WORLD, batch=batch) == 50


@pytest.mark.usefixtures("_five_labels")
@pytest.mark.parametrize("broken", [0, 1, 3, 4])
def test_a_picture_that_does_not_decode_is_wrong(broken):
    """Whatever its labels are: no class is the right guess for it."""
    always = Reads(dict.fromkeys(range(5), broken))
    right = 100 * sum(broken in labels for labels in LABELS) / 4
    assert real(always, loaded(Numbered()), WORLD) == right
    assert real(always, loaded(Numbered(broken=[broken])), WORLD) == right - 25


@pytest.mark.usefixtures("_five_labels")
def test_real_labels_go_by_the_files_names():
    with pytest.raises(ValueError, match=r"^cat\.jpg is not the name of a file of ImageNet's validation set$"):
        real(Reads(), loaded(Numbered([*NAMES[:4], "n01440764/cat.jpg"])), WORLD)
    with pytest.raises(
        ValueError, match=r"^ImageNet-ReaL needs the names of files: give the folder of ImageNet's validation"
    ):
        real(Reads(), Given(torch.zeros(5, 3, 4, 4), torch.arange(5)), WORLD)


def test_real_labels_of_another_number_of_pictures():
    with pytest.raises(ValueError, match=r"^ImageNet-ReaL has labels for 50,000 validation pictures, got 5$"):
        real(Reads(), loaded(Numbered()), WORLD)


@pytest.mark.parametrize(("field", "least"), [("knn", 0), ("samples", 1), ("batch", 1), ("workers", 0)])
def test_what_is_asked_for_is_checked(field, least):
    Measuring(Dataset(), **{field: least})
    bound = "must not be negative" if least == 0 else "must be at least 1"
    with pytest.raises(ValueError, match=f"^{field} {bound}, got {least - 1}$"):
        Measuring(Dataset(), **{field: least - 1})
