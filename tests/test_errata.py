"""Each claim of docs/ERRATA.md, shown. The numbers in the names are the numbers there."""

import math

import pytest
import timm
import torch
from torch.nn.functional import layer_norm, normalize

from opencrate import trajectory
from opencrate.objective import (
    LowRankMixture,
    attention_denoiser,
    coding_rate,
    curvature_bound,
    curvature_interval,
    expansion_objective,
    hessian_vector,
    lasso,
    project,
    rate_scale,
    subspace_coding_rate,
)
from opencrate.operators import (
    gradient_step,
    ista,
    mssa_tied,
    neumann_step,
    prox_mm_tight,
    proximal_step,
    softmax_step,
    solve_lasso,
)

from .networks import small
from .strategies import generator, orthonormal, random, subspaces, unit_tokens

# CRATE-Tiny's sizes: 196 patches and the class token, d = 384, K = 6, p = 64.
N, D_MODEL, K, P = 197, 384, 6, 64


@pytest.fixture
def tokens():
    """Unit tokens and orthonormal, mutually orthogonal subspaces: the paper's assumptions."""
    return unit_tokens(N, D_MODEL), subspaces(K, D_MODEL, P, seed=1)


@pytest.fixture
def tiny():
    torch.manual_seed(0)
    return timm.create_model("crate_tiny_patch16_224").eval()


def test_1_1_layernorm_stands_before_both_halves_and_nothing_skips_ista():
    layer, Z = small(dtype=torch.float64).blocks[0], random(2, 17, 24)
    Z_half = layer.compress(Z)
    Y = layer_norm(Z_half, (24,), layer.sparsify.norm.weight, layer.sparsify.norm.bias)
    torch.testing.assert_close(layer(Z), ista(Y, layer.D, 0.1, 0.1))
    # So scaling or shifting Z^{l+1/2} changes nothing: no un-normalised path crosses the layer.
    torch.testing.assert_close(layer.sparsify(3 * Z_half + 2), layer.sparsify(Z_half), rtol=0, atol=1e-4)


def test_1_2_networks_scale_the_logits_and_have_a_free_output_map_with_bias():
    step = small().blocks[0].compress.operator
    assert step.scale == step.head_dim**-0.5
    assert step.W.weight.shape == (24, 24)
    assert step.W.bias is not None
    half, Z = small().blocks[0].compress, random(2, 17, 24, dtype=torch.float32)
    torch.testing.assert_close(half(Z), Z + half.operator(half.norm(Z)))


def test_1_3_neither_subspaces_nor_dictionary_are_orthogonal(tiny):
    layer = tiny.blocks[0]
    assert 0.1 * torch.linalg.matrix_norm(layer.D, 2).item() ** 2 == pytest.approx(0.78, abs=0.04)
    gram = layer.U.mT @ layer.U
    assert (gram - torch.eye(P)).abs().amax() > 0.5


@torch.no_grad()
def test_1_4_the_two_readings_of_the_measured_rate_differ(tiny):
    """R^c of the text (MSSA output, raw) and of the authors' script (MSSA input, unit projections), at ε² = 0.01."""
    step = next(iter(trajectory(tiny, torch.randn(1, 3, 224, 224, generator=generator(0)))))
    text = subspace_coding_rate(step.Z_half, tiny.blocks[0].U, eps=0.1).item()
    script = sum(coding_rate(head, eps=0.1) for head in normalize(step.projections, dim=-1)[0]).item()
    assert text == pytest.approx(1550, rel=0.01)
    assert script == pytest.approx(835, rel=0.01)


def test_2_1_the_gradient_step_needs_its_factors(tokens):
    Z, U = tokens
    for eps in (0.1, 0.5, 1.0):
        gamma = rate_scale(N, P, eps)
        kappa = 0.1 / gamma
        raw = subspace_coding_rate(Z, U, eps)
        assert subspace_coding_rate(gradient_step(Z, U, kappa, eps), U, eps) < raw
        assert subspace_coding_rate(softmax_step(Z, U, kappa, eps), U, eps) < raw
        plain = Z + mssa_tied(Z, U, eps) / gamma  # Z + [U]SSA
        assert subspace_coding_rate(plain, U, eps) > raw
        assert subspace_coding_rate(Z + mssa_tied(Z, U, eps), U, eps) > raw
        assert subspace_coding_rate(normalize(plain, dim=-1), U, eps) < raw


def test_2_2_the_neumann_series_does_not_converge_at_small_eps(tokens):
    Z, U = tokens

    def series_ratio(eps):
        V = project(Z, U)
        return rate_scale(N, P, eps) * torch.linalg.matrix_norm(V @ V.mT, 2).max().item()

    assert series_ratio(0.1) == pytest.approx(38, rel=0.15)
    kappa = 0.1 / rate_scale(N, P, 0.1)
    before = subspace_coding_rate(Z, U, 0.1)
    assert subspace_coding_rate(neumann_step(Z, U, kappa, 0.1), U, 0.1) > 1.5 * before
    assert subspace_coding_rate(gradient_step(Z, U, kappa, 0.1), U, 0.1) < before
    # Where the ratio is below 1 the step is a fair copy of the exact one.
    assert series_ratio(1.0) < 1
    kappa = 0.1 / rate_scale(N, P, 1.0)
    exact, neumann = (step(Z, U, kappa, 1.0) - Z for step in (gradient_step, neumann_step))
    assert (neumann - exact).norm() < 0.1 * exact.norm()


def test_2_3_the_subspace_rate_bounds_the_rate_only_with_d_scaling(tokens):
    Z, U = tokens
    assert subspace_coding_rate(Z, U, 1.0) < coding_rate(Z, 1.0)
    for eps in (0.03, 0.1, 0.3, 1.0, 3.0):
        assert subspace_coding_rate(Z, U, eps, scaling="d") >= coding_rate(Z, eps)


def test_2_4_ista_solves_the_lasso_with_a_half():
    X, D, lam = random(3, 8), random(8, 8, seed=1) / 3, 0.3
    A = solve_lasso(X, D, lam, steps=20_000)
    value = lasso(A[None], X[None], D, lam)

    def without_half(code):
        return lam * code.abs().sum() + (X - code @ D.mT).square().sum()

    for seed in range(50):
        nearby = (A + 1e-3 * random(3, 8, seed=seed)).clamp(min=0)
        assert lasso(nearby[None], X[None], D, lam) > value
    # λ‖A‖₁ + ‖X − ADᵀ‖² has its minimum elsewhere: at the solution for λ/2.
    assert without_half(solve_lasso(X, D, lam / 2, steps=20_000)) < without_half(A) - 1e-3


def test_2_5_the_hessian_turns_with_the_dictionary_the_other_way():
    Z, Delta, D, alpha = random(4, 6), random(4, 6, seed=1), orthonormal(6, 6, seed=2), 0.8
    # Tokens are rows: DΔ is Δ Dᵀ, and D*Z is Z D.
    left = (Delta @ D.T * hessian_vector(Z, Delta @ D.T, alpha)).sum()
    torch.testing.assert_close(left, (Delta * hessian_vector(Z @ D, Delta, alpha)).sum())
    assert (left - (Delta * hessian_vector(Z @ D.T, Delta, alpha)).sum()).abs() > 1e-2
    # The Taylor expansion holds around D*Z^{l+1/2}, and Z_t = Z^{l+1/2} + t(Z − Z^{l+1/2}) runs towards Z.
    start, end, eps = Z @ D, Z @ D + 0.5 * Delta, math.sqrt(6 / (4 * alpha))
    move = end - start

    def remainder(path):
        nodes = torch.linspace(0, 1, 401, dtype=torch.float64)
        values = torch.stack([(1 - t) * (move * hessian_vector(path(t), move, alpha)).sum() for t in nodes])
        return torch.trapezoid(values, nodes)

    first_order = coding_rate(start, eps) + (move * torch.func.grad(lambda z: coding_rate(z, eps))(start)).sum()
    exact = coding_rate(end, eps) - first_order
    torch.testing.assert_close(remainder(lambda t: start + t * move), exact, rtol=0, atol=1e-5)
    assert (remainder(lambda t: end - t * move) - exact).abs() > 1e-3


def test_2_6_the_curvature_bound_is_18_times_too_long_for_the_expansion():
    alpha = 2.0
    assert curvature_bound(alpha) == 18 * -curvature_interval(alpha)[0]
    eps = math.sqrt(6 / (5 * alpha))
    improved = 0
    code, D = torch.eye(6, dtype=torch.float64)[:5], orthonormal(6, 6)
    assert expansion_objective(prox_mm_tight(code @ D.T, D, 0.1, eps), eps, 0.1) < expansion_objective(code, eps, 0.1)
    for seed in range(200):
        Z, lam = random(5, 6, seed=seed).abs(), 0.1
        before = expansion_objective(Z, eps, lam)
        short, long = (
            expansion_objective(proximal_step(Z, eps, lam, tight=tight), eps, lam) for tight in (False, True)
        )
        assert long < before
        improved += bool(long < short)
    assert improved >= 190


def test_2_7_the_noise_must_be_small_as_a_variance():
    """What counts is σ² against the eigenvalues λ, not σ: λ = 4, σ = 3 fails and λ = 0.01, σ = 0.02 does not."""
    U, weights = subspaces(3, 12, 3), torch.full((3,), 1 / 3, dtype=torch.float64)

    def relative_error(variance, sigma):
        mixture = LowRankMixture(weights, U, torch.full((3, 3), variance, dtype=torch.float64))
        X = mixture.sample(5_000, generator(0))[0] + sigma * random(5_000, 12)
        best = mixture.posterior_mean(X, sigma)
        return ((attention_denoiser(X, U, sigma) - best).norm() / best.norm()).item()

    assert relative_error(4.0, 3.0) > 1.0
    assert relative_error(0.01, 0.02) < 0.15


def test_2_8_the_base_size_has_22_80_million_parameters():
    model = timm.create_model("crate_base_patch16_224", device="meta")
    assert round(sum(weight.numel() for weight in model.parameters()) / 1e6, 2) == 22.80
