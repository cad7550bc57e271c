import numpy as np
import pytest
import torch
from hypothesis import given
from sklearn.linear_model import Lasso

from opencrate.objective import expansion_objective, lasso, rate_scale
from opencrate.operators import (
    ista,
    ista_unrolled,
    prox_mm,
    prox_mm_tight,
    proximal_step,
    solve_lasso,
    sparsifications,
)
from opencrate.operators.ista import ista_matrix, ista_reference

from ..strategies import orthonormal, random, seeds, token_shapes

EXACT = {"rtol": 1e-11, "atol": 1e-11}


@given(token_shapes, seeds)
def test_ista_is_the_papers_equation(shape, seed):
    """Eq. ista-block with tokens in columns: ReLU(Z + ηD*(Z − DZ) − ηλ1)."""
    Z, D, eta, lam = random(*shape, seed=seed), random(shape[1], shape[1], seed=seed + 1), 0.2, 0.3
    columns = Z.T
    expected = torch.relu(columns + eta * D.T @ (columns - D @ columns) - eta * lam).T
    torch.testing.assert_close(ista(Z, D, eta, lam), expected, **EXACT)
    torch.testing.assert_close(ista_reference(Z, D, eta, lam), expected, **EXACT)


def test_one_product_has_the_gradients_of_three():
    Z, D = random(2, 7, 6).requires_grad_(), random(6, 6, seed=1).requires_grad_()
    weight = random(2, 7, 6, seed=2)
    ours = torch.autograd.grad((ista(Z, D) * weight).sum(), (Z, D))
    truth = torch.autograd.grad((ista_reference(Z, D) * weight).sum(), (Z, D))
    for gradient, expected in zip(ours, truth, strict=True):
        torch.testing.assert_close(gradient, expected, **EXACT)


def test_ista_matrix_by_hand():
    D = torch.tensor([[1.0, 2.0], [0.0, 1.0]], dtype=torch.float64)
    # DᵀD = [[1, 2], [2, 5]], so I + ½(D − DᵀD) = [[1, 0], [−1, −1]].
    assert ista_matrix(D, 0.5).tolist() == [[1.0, 0.0], [-1.0, -1.0]]


@pytest.mark.parametrize(("d", "m"), [(8, 8), (6, 10), (12, 5)])
def test_ista_to_convergence_solves_scikit_learns_lasso(d, m):
    X, D, lam = random(4, d), random(d, m, seed=1) / d**0.5, 0.1
    ours = solve_lasso(X, D, lam, steps=50_000)
    # scikit-learn minimises ‖x − Da‖²/(2d) + alpha‖a‖₁.
    reference = Lasso(alpha=lam / d, positive=True, fit_intercept=False, tol=1e-14, max_iter=1_000_000)
    expected = np.stack([reference.fit(D.numpy(), x.numpy()).coef_ for x in X])
    assert 0.2 < (ours > 0).double().mean() < 0.9  # neither empty nor dense, so that both terms count
    np.testing.assert_allclose(ours.numpy(), expected, rtol=0, atol=1e-6)


def test_every_ista_step_lowers_the_lasso():
    X, D, lam = random(3, 5, 6), random(6, 9, seed=1), 0.2
    A, values = torch.zeros(3, 5, 9, dtype=torch.float64), []
    for _ in range(30):
        values.append(lasso(A, X, D, lam))
        A = solve_lasso(X, D, lam, steps=1, start=A)
    assert (torch.stack(values).diff(dim=0) < 0).all()


def test_ista_is_one_step_of_the_solver():
    Z, D = random(2, 5, 6), random(6, 6, seed=1)
    torch.testing.assert_close(ista(Z, D, 0.05, 0.2), solve_lasso(Z, D, 0.2, 1, 0.05, start=Z), **EXACT)
    torch.testing.assert_close(ista_unrolled(Z, D, 0.05, 0.2, steps=1), ista(Z, D, 0.05, 0.2), **EXACT)
    torch.testing.assert_close(
        ista_unrolled(Z, D, 0.05, 0.2, steps=3), solve_lasso(Z, D, 0.2, 3, 0.05, start=Z), **EXACT
    )


def nonnegative_orthonormal_tokens(n, d, seed):
    """Rows with disjoint supports: the tokens for which both prox_mm are exact majorise-minimise steps."""
    owner = torch.arange(d) % n
    values = random(d, seed=seed).abs() + 0.1
    rows = torch.where(torch.arange(n)[:, None] == owner, values, 0)
    return torch.nn.functional.normalize(rows, dim=1)


@pytest.mark.parametrize(("step", "tight"), [(prox_mm, False), (prox_mm_tight, True)])
def test_prox_mm_is_the_majorise_minimise_step_of_orthonormal_tokens(step, tight):
    """The constants 4/9 and 8 follow from eq. mm-iter with the exact gradient."""
    for seed in range(20):
        code, D = nonnegative_orthonormal_tokens(4, 12, seed), orthonormal(12, 12, seed=seed)
        expected = proximal_step(code, eps=0.7, lam=0.1, tight=tight)
        torch.testing.assert_close(step(code @ D.T, D, lam=0.1, eps=0.7), expected, **EXACT)


@pytest.mark.parametrize("step", [prox_mm, prox_mm_tight])
def test_prox_mm_descends(step):
    """φ falls from D*Z to the new tokens, for every weight of sparsity and every precision."""
    for seed in range(50):
        code, D = nonnegative_orthonormal_tokens(4, 12, seed), orthonormal(12, 12, seed=seed)
        for eps in (0.3, 1.0, 3.0):
            for lam in (0.01, 0.3, 1.0):
                after = expansion_objective(step(code @ D.T, D, lam=lam, eps=eps), eps, lam)
                assert after < expansion_objective(code, eps, lam)


@given(token_shapes, seeds)
def test_the_general_step_descends_from_any_tokens(shape, seed):
    Z, eps, lam = random(*shape, seed=seed).abs(), 0.5, 0.2
    before = expansion_objective(Z, eps, lam)
    for tight in (False, True):
        assert expansion_objective(proximal_step(Z, eps, lam, tight=tight), eps, lam) <= before


def test_the_tight_step_gains_more():
    Z, eps, lam = random(200, 6, 8).abs(), 0.5, 0.2
    gain = {
        tight: expansion_objective(Z, eps, lam) - expansion_objective(proximal_step(Z, eps, lam, tight=tight), eps, lam)
        for tight in (False, True)
    }
    assert gain[True].mean() > 5 * gain[False].mean()
    assert (gain[True] > gain[False]).double().mean() > 0.95


def test_prox_mm_by_hand():
    Z, D = torch.tensor([[1.0, -1.0]], dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    assert rate_scale(1, 2, 1.0) == 2
    torch.testing.assert_close(prox_mm(Z, D, lam=0.9, eps=1.0), torch.tensor([[1 + 4 / 27 - 0.2, 0.0]]).double())
    torch.testing.assert_close(prox_mm_tight(Z, D, lam=0.1, eps=1.0), torch.tensor([[1 + 8 / 3 - 0.4, 0.0]]).double())


FUNCTIONS = {"ista": ista, "ista_unrolled": ista_unrolled, "prox_mm": prox_mm, "prox_mm_tight": prox_mm_tight}


def build(name, options=None, dim=6):
    return sparsifications.build(name, options, dim=dim, dtype=torch.float64)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_module_applies_the_function_of_its_name(name):
    module, Z = build(name, {"lam": 0.3}), random(2, 5, 6)
    torch.testing.assert_close(module(Z), FUNCTIONS[name](Z, module.D, lam=0.3), **EXACT)
    assert (module(Z) >= 0).all()
    assert module.replaces


@torch.inference_mode()
def test_weights_made_in_inference_mode_may_change():
    operator, Y = sparsifications.build("ista", {}, dim=4), torch.rand(1, 3, 4)
    for _ in range(2):
        torch.testing.assert_close(operator.code(Y), ista(Y, operator.D, operator.eta, operator.lam))
        operator.D.mul_(2)


def test_the_matrix_is_formed_once_while_nothing_changes():
    module, Z = build("ista").eval(), random(2, 5, 6)

    def fresh():
        return ista(Z, module.D, 0.1, 0.1)

    with torch.no_grad():
        torch.testing.assert_close(module(Z), fresh(), **EXACT)
        kept = module.matrix()
        assert module.matrix() is kept
        module.D.mul_(2)  # in place, as an optimiser does
        torch.testing.assert_close(module(Z), fresh(), **EXACT)
        module.load_state_dict({"D": random(6, 6, seed=5)})
        torch.testing.assert_close(module(Z), fresh(), **EXACT)
        module.D.data = random(6, 6, seed=6)  # other memory
        torch.testing.assert_close(module(Z), fresh(), **EXACT)
        module.eta = 0.2
        torch.testing.assert_close(module(Z), ista(Z, module.D, 0.2, 0.1), **EXACT)
        module.eta = 0.1
        module.train()
        assert module._kept is None
    with torch.inference_mode():
        torch.testing.assert_close(module(Z), fresh(), **EXACT)
    half = module.float().eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert half(Z.float()).dtype == torch.bfloat16
    with torch.no_grad():
        expected = ista(Z.float(), half.D, 0.1, 0.1)  # and not what was kept under autocast
        torch.testing.assert_close(half(Z.float()), expected, rtol=1e-5, atol=1e-5)
    assert half.matrix().requires_grad  # with gradients it is formed anew


def test_bad_input_is_one_sentence():
    with pytest.raises(ValueError, match=r"unknown sparsification 'istaa'; did you mean 'ista'\?"):
        build("istaa")
    with pytest.raises(ValueError, match=r"lam must not be negative, got -0\.1"):
        build("ista", {"lam": -0.1})
    with pytest.raises(ValueError, match="eta must be positive, got 0"):
        build("ista", {"eta": 0.0})
    with pytest.raises(ValueError, match="eps must be positive, got -1"):
        build("prox_mm", {"eps": -1.0})
    with pytest.raises(ValueError, match=r"prox_mm has no option 'eta'; (did you mean|known)"):
        build("prox_mm", {"eta": 0.1})
    Z, D = random(2, 3), random(3, 3)
    for step in (ista, ista_unrolled, prox_mm, prox_mm_tight):
        with pytest.raises(ValueError, match="lam must not be negative"):
            step(Z, D, lam=-1.0)
    with pytest.raises(ValueError, match="lam must not be negative"):
        proximal_step(Z.abs(), 0.5, -1.0)
    with pytest.raises(ValueError, match="eta must be positive"):
        ista(Z, D, eta=-0.1)
    with pytest.raises(ValueError, match="lam must not be negative"):
        solve_lasso(Z, D, -1.0, 1)
    with pytest.raises(ValueError, match="steps must be positive"):
        solve_lasso(Z, D, 0.1, 0)
    assert (solve_lasso(Z, torch.zeros_like(D), 0.1, 3) == 0).all()
