import math

import pytest
import torch

from opencrate.objective import (
    coding_rate,
    expansion_objective,
    l0,
    l1,
    lasso,
    nonzero_fraction,
    rate_reduction,
    soft_threshold,
    sparse_rate_reduction,
)

from ..strategies import random

Z = torch.tensor([[0.0, -3.0, 0.5], [0.0, 0.0, 1.0]], dtype=torch.float64)


def test_hand_values():
    assert l0(Z).item() == 3
    assert nonzero_fraction(Z).item() == 0.5
    assert l1(Z).item() == 4.5
    assert soft_threshold(Z, 0.75).tolist() == [[0.0, 0.0, 0.0], [0.0, 0.0, 0.25]]
    # One code a = (1, 0) in the dictionary [[2, 0], [0, 1]] for the signal (1, 1): ½(1 + 1) + λ.
    D = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    A, X = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    assert lasso(A, X, D, 0.25).item() == 1.25
    assert lasso(-A, X, D, 0.25).item() == math.inf


def test_one_value_per_sample():
    batch = torch.stack([Z, 2 * Z, torch.zeros_like(Z)])
    assert l0(batch).tolist() == [3, 3, 0]
    assert l1(batch).tolist() == [4.5, 9, 0]
    assert expansion_objective(batch, 0.5, 0.1).tolist() == [math.inf, math.inf, 0]


def test_objectives_are_the_sum_of_their_terms():
    tokens, U = random(2, 5, 6).relu(), random(3, 6, 2, seed=1)
    torch.testing.assert_close(
        sparse_rate_reduction(tokens, U, 0.5, 0.1), rate_reduction(tokens, U, 0.5) - 0.1 * (tokens != 0).sum((1, 2))
    )
    torch.testing.assert_close(
        expansion_objective(tokens, 0.5, 0.1), 0.1 * tokens.sum((1, 2)) - coding_rate(tokens, 0.5)
    )


def test_half_precision_is_summed_in_float32():
    ones = torch.ones(400, 400, dtype=torch.float16)
    assert l1(ones).item() == 160_000
    assert lasso(ones, ones, torch.eye(400, dtype=torch.float16), 1.0).item() == 160_000


def test_soft_threshold_is_the_proximal_operator():
    # prox(x) minimises ½(z − x)² + t z over z ≥ 0; compared with a fine grid.
    grid, t = torch.linspace(0, 4, 40_001, dtype=torch.float64), 0.3
    x = random(20, seed=4) * 2
    best = grid[(0.5 * (grid - x[:, None]).square() + t * grid).argmin(1)]
    torch.testing.assert_close(soft_threshold(x, t), best, rtol=0, atol=1e-4)


def test_bad_input_is_one_sentence():
    for call in (
        lambda: soft_threshold(Z, -0.1),
        lambda: expansion_objective(Z, 0.1, -1.0),
        lambda: sparse_rate_reduction(Z, random(2, 3, 1), 0.1, -1.0),
        lambda: lasso(Z, Z, torch.eye(3, dtype=torch.float64), -1.0),
    ):
        with pytest.raises(ValueError, match=r"(lam|threshold) must not be negative, got -"):
            call()
    for measure in (l0, l1, nonzero_fraction):
        with pytest.raises(ValueError, match="Z holds NaN or infinite values"):
            measure(Z * math.nan)
