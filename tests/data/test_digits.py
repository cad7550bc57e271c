"""The embedded digits against scikit-learn's, which are the same pictures in greys of 0 … 16."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from opencrate.data.datasets import digits
from opencrate.data.opening import open_pictures
from opencrate.data.settings import Dataset


@pytest.fixture(scope="module")
def theirs() -> tuple[np.ndarray, np.ndarray]:
    bunch = load_digits()
    return np.floor(bunch.images * 255 / 16 + 0.5).astype(int), bunch.target


def test_all_are_scikit_learns(theirs):
    """Every fifth is for validation, the others for training, in their order: disjoint and complete."""
    images, targets = np.empty((1797, 8, 8), int), np.full(1797, -1)
    held_out = np.arange(1797) % 5 == 4
    for training, places in ((True, ~held_out), (False, held_out)):
        images[places], targets[places] = digits.load(training)
    np.testing.assert_array_equal(images, theirs[0])
    np.testing.assert_array_equal(targets, theirs[1])


@pytest.mark.parametrize(("training", "count"), [(True, 1438), (False, 359)])
def test_both_splits_hold_all_ten_classes(training, count):
    images, targets = digits.load(training)
    assert (images.shape, images.dtype) == ((count, 8, 8), np.uint8)
    assert targets.dtype == np.int64
    assert sorted(set(targets.tolist())) == list(range(10))
    assert np.bincount(targets).min() > count / 20


def test_are_opened_by_name(theirs):
    data = Dataset("digits", num_classes=10, size=8, in_chans=1, mean=(0.5,), std=(0.5,))
    pictures = open_pictures(data, training=False)
    assert (len(pictures), pictures.classes, pictures.name(3)) == (359, tuple("0123456789"), "digit picture 3")
    np.testing.assert_array_equal(np.asarray(pictures.picture(3)), theirs[0][19])
    assert pictures.targets[3] == theirs[1][19]
