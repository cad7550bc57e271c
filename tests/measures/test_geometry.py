import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles

from opencrate.measures.geometry import (
    coherence,
    coherence_between,
    dead_heads,
    effective_rank,
    normalised_gram,
    orthogonality_gap,
    orthonormality_gap,
    spread,
)


@pytest.fixture
def U():
    return torch.randn(3, 10, 4, dtype=torch.float64)


def test_gaps_against_numpy(U):
    for k, basis in enumerate(U.numpy()):
        gram = basis.T @ basis
        gram *= 4 / np.trace(gram)
        assert orthonormality_gap(U)[k].item() == pytest.approx(np.linalg.norm(gram - np.eye(4)) / 2, abs=1e-12)
    D = U[0].numpy()
    assert orthogonality_gap(U[0]) == pytest.approx(np.linalg.norm(D.T @ D - np.eye(4)) / 2, abs=1e-12)


def test_orthonormal_bases_have_no_gap_whatever_their_size():
    Q = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))[0]
    U = 7 * Q.reshape(8, 2, 4).transpose(0, 1)
    assert orthonormality_gap(U).max() < 1e-12
    torch.testing.assert_close(coherence(U), torch.eye(2, dtype=torch.float64), rtol=0, atol=1e-12)
    assert orthogonality_gap(Q) < 1e-12


def test_coherence_is_the_cosine_of_the_smallest_principal_angle(U):
    found = coherence(U)
    for i in range(3):
        for j in range(3):
            angle = subspace_angles(U[i].numpy(), U[j].numpy()).min()
            assert found[i, j].item() == pytest.approx(np.cos(angle), abs=1e-9)
    pairs = [found[i, j].item() for i, j in ((0, 1), (0, 2), (1, 2))]
    assert coherence_between(U) == pytest.approx((np.mean(pairs), max(pairs)))
    assert coherence_between(U[:1]) == (0.0, 0.0)


def test_the_gram_matrix_of_directions(U):
    columns = np.concatenate(list(U.numpy()), axis=1)
    columns /= np.linalg.norm(columns, axis=0)
    np.testing.assert_allclose(normalised_gram(U).numpy(), columns.T @ columns, atol=1e-12)


def test_effective_rank_against_numpy_and_by_hand():
    Z = torch.randn(2, 5, 7, dtype=torch.float64)
    for tokens, found in zip(Z.numpy(), effective_rank(Z), strict=True):
        shares = np.linalg.svd(tokens)[1] ** 2
        shares /= shares.sum()
        assert found.item() == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), abs=1e-9)
    for factor in (1e-9, 0.1, 3.0, 1e9):
        torch.testing.assert_close(effective_rank(factor * Z), effective_rank(Z), rtol=1e-12, atol=0)
    assert effective_rank(torch.eye(6)).item() == pytest.approx(6, abs=1e-12)
    assert effective_rank(torch.ones(4, 9)).item() == pytest.approx(1, abs=1e-9)
    assert effective_rank(torch.zeros(4, 9)).item() == 0


def test_a_dead_head_is_named_and_gives_no_nan(U):
    U[1] = 0
    assert dead_heads(U) == [2]
    assert orthonormality_gap(U)[1] == 1
    assert coherence(U)[1].tolist() == [0, 1, 0]
    assert not normalised_gram(U).isnan().any()


def test_spread_by_hand():
    """0 for one direction, 1 for directions whose mean is 0, whatever the lengths; 0 where there is nothing."""
    Z = torch.tensor([[3.0, 0.0], [1.0, 0.0]])
    assert spread(torch.stack([Z, Z * torch.tensor([[1.0], [-1.0]]), 0 * Z])).tolist() == [0.0, 1.0, 0.0]
    assert spread(torch.tensor([[2.0, 0.0], [0.0, 5.0]])).item() == pytest.approx(1 - 0.5**0.5)
