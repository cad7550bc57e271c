"""Differences of accuracies, beside SciPy's."""

import math

import numpy as np
import pytest
from scipy import stats

from reproduction.difference import Difference
from reproduction.results import Sample


def test_a_difference_has_the_standard_error_of_two_means():
    one, other = (80.0, 81.0, 83.0), (78.0, 78.5)
    difference = Difference.of(Sample(one), Sample(other))
    assert difference.mean == pytest.approx(np.mean(one) - np.mean(other), rel=1e-12)
    variances = [np.var(values, ddof=1) / len(values) for values in (one, other)]
    assert difference.error == pytest.approx(math.sqrt(sum(variances)), rel=1e-12)
    assert str(difference) == "+3.08 ± 0.92"
    assert str(Difference.of(Sample(other), Sample(one))) == "−3.08 ± 0.92"
    assert str(Difference.of(Sample((1.0,)), Sample(one))) == "−80.33, one seed"


def test_one_seed_is_as_sure_as_a_share_of_its_pictures():
    """90 of 100 right answers have the standard deviation √(0.9 · 0.1 / 100), as SciPy's binomial has it."""
    alone = Sample((90.0,), pictures=100)
    assert alone.error == pytest.approx(stats.binom(100, 0.9).std(), rel=1e-12)
    assert str(Difference.of(alone, Sample((80.0,), pictures=100))) == "+10.00 ± 5.00, one seed"
    assert Difference.of(alone, Sample((80.5,), pictures=100)).sign == 0
    assert Difference.of(Sample((90.0,), 10_000), Sample((80.0,), 10_000)).sign == 1
    assert Sample((90.0, 91.0), pictures=100).error == pytest.approx(0.5, rel=1e-12)  # over seeds, where there are some
    assert Difference.of(Sample((90.0,)), Sample((80.0,), 100)).sign == 0  # of nobody knows how many


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 10, 11, 20, 100, 9_999])
def test_a_difference_is_clear_beyond_its_95_per_cent(degrees):
    """By Student's t, as SciPy has it, to the two digits of a printed table."""
    quantile = stats.t.ppf(0.975, degrees)
    for mean in (1.0, -1.0):
        assert Difference(mean, 0.995 / quantile, degrees).sign == mean
        assert Difference(mean, 1.005 / quantile, degrees).sign == 0
