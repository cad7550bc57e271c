import math

import pytest
import torch
from hypothesis import given
from torch.autograd.functional import hvp

from opencrate.objective import (
    coding_rate,
    coding_rate_gradient,
    curvature_bound,
    curvature_interval,
    hessian_vector,
    project,
    rate_reduction,
    rate_scale,
    subspace_coding_rate,
    subspace_coding_rate_gradient,
)

from ..strategies import orthonormal, precisions, random, seeds, subspaces, token_shapes

EXACT = {"rtol": 1e-9, "atol": 1e-9}


def rate_by_singular_values(Z, eps):
    n, d = Z.shape[-2:]
    return 0.5 * torch.log1p(d / (n * eps**2) * torch.linalg.svdvals(Z.double()).square()).sum(-1)


def test_hand_values():
    # One token of norm 2 in the plane, ε = 1: α = 2, R = ½ log(1 + 2·4).
    Z = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    assert coding_rate(Z, 1.0).item() == pytest.approx(0.5 * math.log(9), rel=1e-15)
    # Onto one axis (p = 1, γ = 1) it is ½ log(1 + 4); onto the other it is nothing.
    U = torch.eye(2, dtype=torch.float64).unsqueeze(-1)
    assert subspace_coding_rate(Z, U, 1.0, per_subspace=True).tolist() == pytest.approx([0.5 * math.log(5), 0.0])
    assert rate_reduction(Z, U, 1.0).item() == pytest.approx(0.5 * math.log(9 / 5), rel=1e-15)
    # Two orthonormal tokens in the plane, ε = ½: α = 4, R = ½ log 5 + ½ log 5, ∇R = α/(1+α) Z.
    I = torch.eye(2, dtype=torch.float64)
    assert coding_rate(I, 0.5).item() == pytest.approx(math.log(5), rel=1e-15)
    torch.testing.assert_close(coding_rate_gradient(I, 0.5), 0.8 * I, rtol=1e-15, atol=0)


@given(token_shapes, seeds, precisions)
def test_both_gram_sides_are_the_singular_values(shape, seed, eps):
    Z = random(3, *shape, seed=seed)
    torch.testing.assert_close(coding_rate(Z, eps), rate_by_singular_values(Z, eps), **EXACT)
    n, d = shape
    alpha = rate_scale(n, d, eps)
    for gram in (Z @ Z.mT, Z.mT @ Z):
        identity = torch.eye(gram.shape[-1], dtype=Z.dtype)
        torch.testing.assert_close(coding_rate(Z, eps), 0.5 * torch.logdet(identity + alpha * gram), **EXACT)


@given(token_shapes, seeds, precisions)
def test_rotating_the_tokens_changes_nothing(shape, seed, eps):
    n, d = shape
    Z, rotation, mixing = random(*shape, seed=seed), orthonormal(d, d, seed=seed), orthonormal(n, n, seed=seed)
    torch.testing.assert_close(coding_rate(mixing @ Z @ rotation, eps), coding_rate(Z, eps), **EXACT)


@given(token_shapes, seeds, precisions)
def test_subspace_rate_is_the_sum_of_the_rates_of_the_projections(shape, seed, eps):
    (n, d), k, p = shape, 3, 2
    Z, U = random(2, n, d, seed=seed), random(k, d, p, seed=seed + 1)
    each = torch.stack([coding_rate(Z @ U[i], eps) for i in range(k)], dim=-1)
    torch.testing.assert_close(subspace_coding_rate(Z, U, eps, per_subspace=True), each, **EXACT)
    torch.testing.assert_close(subspace_coding_rate(Z, U, eps), each.sum(-1), **EXACT)
    torch.testing.assert_close(project(Z, U)[:, 1], Z @ U[1], **EXACT)


@given(token_shapes, seeds, precisions)
def test_gradients_agree_with_autograd(shape, seed, eps):
    Z = random(2, *shape, seed=seed).requires_grad_()
    U = random(3, shape[1], 2, seed=seed + 1)
    (gradient,) = torch.autograd.grad(coding_rate(Z, eps).sum(), Z)
    torch.testing.assert_close(coding_rate_gradient(Z, eps), gradient, **EXACT)
    (gradient,) = torch.autograd.grad(subspace_coding_rate(Z, U, eps).sum(), Z)
    torch.testing.assert_close(subspace_coding_rate_gradient(Z, U, eps), gradient, **EXACT)


@given(token_shapes, seeds, precisions)
def test_hessian_agrees_with_double_autograd(shape, seed, eps):
    Z, Delta = random(*shape, seed=seed), random(*shape, seed=seed + 1)
    _, expected = hvp(lambda tokens: coding_rate(tokens, eps), Z, Delta)
    alpha = rate_scale(*shape, eps)
    torch.testing.assert_close(hessian_vector(Z, Delta, alpha), expected, **EXACT)
    batched = hessian_vector(Z.expand(2, *shape), Delta.expand(2, *shape), alpha)
    torch.testing.assert_close(batched, expected.expand(2, *shape), **EXACT)


def full_hessian(Z, alpha):
    n, d = Z.shape
    basis = torch.eye(n * d, dtype=Z.dtype).unflatten(1, (n, d))
    return hessian_vector(Z.expand_as(basis), basis, alpha).flatten(1)


@given(token_shapes, seeds, precisions)
def test_curvature_stays_in_its_interval(shape, seed, eps):
    alpha = rate_scale(*shape, eps)
    low, high = curvature_interval(alpha)
    spectrum = torch.linalg.eigvalsh(full_hessian(random(*shape, seed=seed), alpha))
    assert low * (1 + 1e-9) <= spectrum.min()
    assert spectrum.max() <= high * (1 + 1e-9)


def test_curvature_interval_is_tight_and_the_papers_bound_is_not():
    alpha = 0.7
    low, high = curvature_interval(alpha)
    at_three = torch.full((1, 1), math.sqrt(3 / alpha), dtype=torch.float64)
    assert full_hessian(at_three, alpha).item() == pytest.approx(low, rel=1e-12)
    assert full_hessian(torch.zeros(1, 1, dtype=torch.float64), alpha).item() == pytest.approx(high, rel=1e-12)
    assert curvature_bound(alpha) == pytest.approx(2.25 * high) == pytest.approx(-18 * low)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finite_and_accurate_at_size(dtype):
    n, d, eps = 4096, 1024, 0.01
    Z = random(n, d, seed=1, dtype=dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    rate = coding_rate(Z, eps)
    assert rate.dtype == dtype
    torch.testing.assert_close(rate.double(), rate_by_singular_values(Z, eps), rtol=tolerance, atol=0)
    U = random(16, d, 64, seed=2, dtype=dtype)
    each = sum(rate_by_singular_values(Z.double() @ U_k.double(), eps) for U_k in U)
    torch.testing.assert_close(subspace_coding_rate(Z, U, eps).double(), each, rtol=tolerance, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "d"), [(4096, 1024), (197, 384)])
@pytest.mark.parametrize("size", [1, 1e4])
def test_repeated_and_zero_tokens(dtype, n, d, size):
    """At size 1e4 the eigenvalues of I + αZZᵀ reach from 1 to 1e18, beyond float64's digits."""
    eps = 0.01
    token = size * random(d, seed=3, dtype=dtype)
    repeated = token.expand(n, d)
    expected = 0.5 * math.log1p(d / (n * eps**2) * n * token.double().square().sum().item())
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    assert coding_rate(repeated, eps).item() == pytest.approx(expected, rel=tolerance)
    zero = torch.zeros(n, d, dtype=dtype)
    assert coding_rate(zero, eps).item() == 0
    assert coding_rate_gradient(zero, eps).abs().max() == 0
    # ∇R has the same row α/(1 + αN‖z‖²) z everywhere, what is left of αz when all but its rounding error cancels.
    alpha = rate_scale(n, d, eps)
    row = alpha / (1 + alpha * n * token.double().square().sum()) * token.double()
    error = (coding_rate_gradient(repeated, eps).double() - row).norm()
    rounding = 1e-7 if dtype == torch.float32 else 0
    assert error <= 1e-14 * alpha * repeated.double().norm() + rounding * row.expand(n, d).norm()
    assert subspace_coding_rate(zero, random(2, d, 4, dtype=dtype), eps).item() == 0


def test_half_precision_tokens_are_measured_in_float32():
    Z = random(5, 4, dtype=torch.float32).bfloat16()
    rate = coding_rate(Z, 0.5)
    assert rate.dtype == torch.float32
    torch.testing.assert_close(rate, coding_rate(Z.float(), 0.5))


def test_with_d_scaling_the_subspace_rate_bounds_the_rate():
    Z, U, eps = random(50, 12, 24, seed=5), subspaces(4, 24, 6, seed=6), 0.3
    assert (subspace_coding_rate(Z, U, eps, scaling="d") >= coding_rate(Z, eps)).all()


def test_bad_input_is_one_sentence():
    Z, U = random(3, 4), random(2, 4, 2)
    for eps in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="eps must be positive, got"):
            coding_rate(Z, eps)
    with pytest.raises(ValueError, match="eps must be positive"):
        subspace_coding_rate(Z, U, 0.0)
    with pytest.raises(ValueError, match="eps 1e-200 is too small"):
        coding_rate(Z, 1e-200)
    with pytest.raises(ValueError, match=r"Z must be tokens \(…, n, d\), got a tensor of shape \(0, 4\)"):
        coding_rate(Z[:0], 0.1)
    with pytest.raises(ValueError, match=r"alpha must be positive, got -1\.0"):
        hessian_vector(Z, Z, -1.0)
    with pytest.raises(ValueError, match="U holds NaN"):
        subspace_coding_rate(Z, U * math.nan, 0.1)
    with pytest.raises(ValueError, match="Delta holds NaN"):
        hessian_vector(Z, Z * math.nan, 1.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_tokens_that_are_not_numbers(bad):
    Z, U = random(3, 4), random(2, 4, 2)
    Z[1, 2] = bad
    for measure in (
        lambda: coding_rate(Z, 0.1),
        lambda: subspace_coding_rate(Z, U, 0.1),
        lambda: rate_reduction(Z, U, 0.1),
        lambda: coding_rate_gradient(Z, 0.1),
        lambda: subspace_coding_rate_gradient(Z, U, 0.1),
        lambda: hessian_vector(Z, Z, 1.0),
    ):
        with pytest.raises(ValueError, match="Z holds NaN or infinite values"):
            measure()


@pytest.mark.unhooked
def test_wrong_shapes_and_words_are_one_sentence():
    with pytest.raises(ValueError, match=r"Z must be tokens \(…, n, d\), got a tensor of shape \(4,\)"):
        coding_rate(random(4), 0.1)
    with pytest.raises(ValueError, match=r"U must be bases \(k, d, p\), got a tensor of shape \(4, 2\)"):
        subspace_coding_rate(random(3, 4), random(4, 2), 0.1)
    with pytest.raises(ValueError, match="scaling must be 'p' or 'd', got 'q'"):
        subspace_coding_rate(random(3, 4), random(2, 4, 2), 0.1, scaling="q")
    with pytest.raises(ValueError, match="dimension 4, but the subspaces lie in dimension 5"):
        subspace_coding_rate(random(3, 4), random(2, 5, 2), 0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "d"), [(20, 32), (32, 32), (64, 32), (4096, 1024)])
def test_gpu_agrees_with_cpu(n, d, dtype):
    Z, U, eps = random(2, n, d, dtype=dtype), random(3, d, 8, dtype=dtype), 0.01
    tolerance = {"rtol": 1e-6, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    for measure in (
        lambda Z, U: coding_rate(Z, eps),
        lambda Z, U: subspace_coding_rate(Z, U, eps),
        lambda Z, U: coding_rate_gradient(Z, eps),
        lambda Z, U: subspace_coding_rate_gradient(Z, U, eps),
        lambda Z, U: hessian_vector(Z, Z, 2.0),
    ):
        torch.testing.assert_close(measure(Z.cuda(), U.cuda()).cpu(), measure(Z, U), **tolerance)
