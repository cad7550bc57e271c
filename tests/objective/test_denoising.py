import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.mixture import GaussianMixture

from opencrate.objective import LowRankMixture, attention_denoiser, denoise

from ..strategies import generator, orthonormal, random, subspaces


def mixture(k=3, d=6, p=2, seed=0):
    """Arbitrary weights, subspaces that are not orthogonal to one another, and arbitrary variances."""
    weights = random(k, seed=seed).softmax(0)
    return LowRankMixture(weights, orthonormal(k, d, p, seed=seed + 1), random(k, p, seed=seed + 2).square() + 0.3)


def covariances(model):
    return torch.einsum("kdp,kp,kep->kde", model.U, model.variances, model.U)


def noisy(model, n, sigma, seed=0):
    clean, component = model.sample(n, generator(seed))
    return clean + sigma * random(*clean.shape, seed=seed + 1), clean, component


def test_density_is_scipys():
    model, sigma = mixture(), 0.4
    X, *_ = noisy(model, 20, sigma)
    noise = sigma**2 * np.eye(6)
    each = [multivariate_normal(np.zeros(6), S.numpy() + noise).pdf(X.numpy()) for S in covariances(model)]
    expected = np.log(sum(w * q for w, q in zip(model.weights.tolist(), each, strict=True)))
    np.testing.assert_allclose(model.log_prob(X, sigma).numpy(), expected, rtol=1e-10)


def test_density_in_float32_at_little_noise():
    exact = mixture(k=2, d=64, p=4)
    rounded = LowRankMixture(exact.weights.float(), exact.U.float(), exact.variances.float())
    X, *_ = noisy(exact, 50, 1e-3)
    torch.testing.assert_close(rounded.log_prob(X.float(), 1e-3).double(), exact.log_prob(X, 1e-3), rtol=1e-4, atol=0)


def test_responsibilities_are_scikit_learns():
    model, sigma = mixture(), 0.4
    X, *_ = noisy(model, 200, sigma)
    precisions = torch.linalg.inv(covariances(model) + sigma**2 * torch.eye(6, dtype=torch.float64))
    reference = GaussianMixture(3, covariance_type="full")
    reference.weights_, reference.means_ = model.weights.numpy(), np.zeros((3, 6))
    reference.precisions_cholesky_ = torch.linalg.cholesky(precisions).numpy()
    np.testing.assert_allclose(model.responsibilities(X, sigma).numpy(), reference.predict_proba(X.numpy()), atol=1e-10)


def test_score_is_the_gradient_of_the_log_density():
    model, sigma = mixture(), 0.4
    X = noisy(model, 20, sigma)[0].requires_grad_()
    (gradient,) = torch.autograd.grad(model.log_prob(X, sigma).sum(), X)
    torch.testing.assert_close(model.score(X, sigma), gradient, rtol=1e-9, atol=1e-9)


def test_posterior_mean_agrees_with_monte_carlo():
    """E[z | x] as the average of samples of z, weighted by the likelihood of x."""
    model, sigma = mixture(k=2, d=3, p=1), 0.7
    X, *_ = noisy(model, 5, sigma, seed=3)
    Z, _ = model.sample(400_000, generator(7))
    weight = (-(X[:, None] - Z).square().sum(-1) / (2 * sigma**2)).softmax(1)  # (x, z)
    estimate = weight @ Z
    effective = 1 / weight.square().sum(1, keepdim=True)
    spread = (weight @ Z.square() - estimate.square()).sqrt() / effective.sqrt()
    assert (spread < 0.01).all()  # so that the comparison below can fail
    assert ((model.posterior_mean(X, sigma) - estimate).abs() < 5 * spread).all()


def test_posterior_mean_is_the_best_denoiser():
    """No denoiser has a smaller mean squared error: not the attention form, nor a shrunken or stretched version."""
    model, sigma = mixture(), 0.5
    X, clean, _ = noisy(model, 50_000, sigma)

    def error(estimate):
        return (estimate - clean).square().sum(1).mean()

    best = model.posterior_mean(X, sigma)
    for other in (attention_denoiser(X, model.U, sigma), 0.97 * best, 1.03 * best, X):
        assert error(best) < error(other)


def test_any_covariance_by_its_eigenvectors():
    factors = random(2, 4, 4, seed=5)
    S = factors @ factors.mT
    weights = torch.tensor([0.2, 0.8], dtype=torch.float64)
    model = LowRankMixture.from_covariances(weights, S)
    torch.testing.assert_close(covariances(model), S)
    X, sigma = random(10, 4, seed=6), 0.3
    noise = sigma**2 * torch.eye(4, dtype=torch.float64)
    each = torch.stack(
        [torch.distributions.MultivariateNormal(torch.zeros(4).double(), S_k + noise).log_prob(X) for S_k in S]
    )
    torch.testing.assert_close(model.log_prob(X, sigma), (each.T + weights.log()).logsumexp(1))
    singular = LowRankMixture.from_covariances(
        weights, torch.diag(torch.tensor([1.0, 0, 0, 0]).double()).expand(2, 4, 4)
    )
    assert singular.posterior_mean(X, sigma)[:, 1:].abs().max() == 0


def test_samples_have_the_mixtures_moments():
    model = mixture(k=2, d=3, p=2)
    Z, component = model.sample(200_000, generator(1))
    torch.testing.assert_close(component.bincount() / len(Z), model.weights.float(), rtol=0, atol=5e-3)
    for k in range(2):
        drawn = Z[component == k]
        torch.testing.assert_close(drawn.T @ drawn / len(drawn), covariances(model)[k], rtol=0, atol=3e-2)
    outside = Z - torch.einsum("ndp,nep,ne->nd", model.U[component], model.U[component], Z)
    assert outside.abs().max() < 1e-12


def test_attention_form_becomes_exact_as_the_noise_vanishes():
    """With equal weights and variances, as the paper's proposition assumes; the error falls like σ² (slope 2)."""
    U = subspaces(3, 12, 3, seed=2)
    model = LowRankMixture(torch.full((3,), 1 / 3, dtype=torch.float64), U, torch.ones(3, 3, dtype=torch.float64))
    sigmas = [0.2, 0.1, 0.05, 0.025]
    errors = []
    for sigma in sigmas:
        X, *_ = noisy(model, 20_000, sigma)
        difference = attention_denoiser(X, U, sigma) - model.posterior_mean(X, sigma)
        errors.append(difference.square().sum(1).mean().sqrt().item())
    assert errors[-1] < 2e-3
    slopes = [math.log2(a / b) for a, b in pairwise(errors)]
    assert slopes[-1] == pytest.approx(2, abs=0.1)
    assert all(slope > 1.5 for slope in slopes)


def test_denoising_in_steps_moves_tokens_onto_their_subspaces():
    model, sigma = mixture(k=3, d=8, p=2), 0.2
    X, _, component = noisy(model, 500, sigma)
    U = model.U[component]

    def distance(tokens):
        return (tokens - torch.einsum("ndp,nep,ne->nd", U, U, tokens)).norm(dim=1).median().item()

    path = [distance(tokens) for tokens in denoise(X, [0.2, 0.1, 0.05, 0.02], model.posterior_mean)]
    assert len(path) == 5
    assert all(later < earlier for earlier, later in pairwise(path))
    assert path[-1] < 1e-3 * path[0]


def test_one_step_of_the_loop_is_tweedies_formula():
    model, X = mixture(), random(4, 6)
    start, end = denoise(X, [0.3], model.posterior_mean)
    assert torch.equal(start, X)
    torch.testing.assert_close(end, X + 0.3**2 * model.score(X, 0.3))


def test_bad_input_is_one_sentence():
    model, X = mixture(), random(4, 6)
    for call in (lambda: model.score(X, 0.0), lambda: attention_denoiser(X, model.U, -1.0)):
        with pytest.raises(ValueError, match="sigma must be positive"):
            call()
    with pytest.raises(ValueError, match="X holds NaN"):
        model.posterior_mean(X * math.nan, 0.1)
    with pytest.raises(ValueError, match="noise levels must fall"):
        list(denoise(X, [0.1, 0.2], model.posterior_mean))
    with pytest.raises(ValueError, match="orthonormal"):
        LowRankMixture(model.weights, 2 * model.U, model.variances)
    with pytest.raises(ValueError, match="must not be negative"):
        LowRankMixture(model.weights, model.U, model.variances - model.variances.mean())  # some are, some are not
    with pytest.raises(ValueError, match="sum to 1"):
        LowRankMixture(2 * model.weights, model.U, model.variances)
    with pytest.raises(ValueError, match=r"variances \(3, 2\), got"):
        LowRankMixture(model.weights, model.U, model.variances[:, :1])
    with pytest.raises(ValueError, match="must not be negative"):
        LowRankMixture(model.weights, model.U, -model.variances)
    with pytest.raises(ValueError, match="symmetric"):
        LowRankMixture.from_covariances(model.weights, covariances(model) + torch.eye(6).roll(1).double())
    with pytest.raises(ValueError, match="positive semi-definite"):
        LowRankMixture.from_covariances(model.weights, -covariances(model))
