import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opencrate.objective import (
    attention_denoiser,
    project,
    rate_scale,
    subspace_coding_rate,
    subspace_coding_rate_gradient,
)
from opencrate.operators import (
    attention_maps,
    compressions,
    gradient_step,
    lift,
    mixture_step,
    mssa,
    mssa_tied,
    neumann_step,
    softmax_step,
    ssa,
)
from opencrate.operators.attention import ssa_reference

from ..strategies import random, seeds, subspaces, token_shapes, unit_tokens

EXACT = {"rtol": 1e-11, "atol": 1e-11}


def ssa_in_columns(Z, U_k):
    """Eq. SSA as the paper writes it, tokens in columns: (U_k* Z) softmax((U_k* Z)* (U_k* Z)), softmax by column."""
    V = U_k.T @ Z.T
    return V @ torch.softmax(V.T @ V, dim=0)


@given(token_shapes, seeds)
def test_ssa_is_the_papers_equation(shape, seed):
    (n, d), k, p = shape, 3, 2
    Z, U = random(n, d, seed=seed), random(k, d, p, seed=seed + 1)
    expected = torch.stack([ssa_in_columns(Z, U_k).T for U_k in U])
    torch.testing.assert_close(ssa(Z, U), expected, **EXACT)
    torch.testing.assert_close(ssa_reference(Z, U), expected, **EXACT)


def test_fused_attention_has_the_gradients_of_the_definition():
    Z, U = random(2, 7, 6).requires_grad_(), random(3, 6, 2, seed=1).requires_grad_()
    weight = random(2, 3, 7, 2, seed=2)
    ours = torch.autograd.grad((ssa(Z, U, 0.7) * weight).sum(), (Z, U))
    truth = torch.autograd.grad((ssa_reference(Z, U, 0.7) * weight).sum(), (Z, U))
    for gradient, expected in zip(ours, truth, strict=True):
        torch.testing.assert_close(gradient, expected, **EXACT)


def test_lift_is_the_adjoint_of_project():
    Z, U, V = random(2, 5, 6), random(3, 6, 2, seed=1), random(2, 3, 5, 2, seed=2)
    torch.testing.assert_close((project(Z, U) * V).sum(), (Z * lift(V, U)).sum(), **EXACT)


def test_free_output_map_becomes_the_tied_one():
    """mssa with W = γ[U_1, …, U_K] is mssa_tied, and both are eq. Multi-Head-SSA in columns."""
    Z, U, eps = random(5, 6), random(3, 6, 2, seed=1), 0.7
    gamma = rate_scale(5, 2, eps)
    stacked = torch.cat(list(U), dim=1)  # [U_1, …, U_K], (d, k·p)
    expected = gamma * stacked @ torch.cat([ssa_in_columns(Z, U_k) for U_k in U])
    torch.testing.assert_close(mssa_tied(Z, U, eps), expected.T, **EXACT)
    torch.testing.assert_close(mssa(Z, U, gamma * stacked), expected.T, **EXACT)
    bias = random(6, seed=3)
    torch.testing.assert_close(mssa(Z, U, stacked, bias), expected.T / gamma + bias, **EXACT)


def test_softmax_step_is_the_papers_equation():
    Z, U, kappa, eps = random(5, 6), random(3, 6, 2, seed=1), 0.2, 0.7
    kappa_gamma = kappa * 2 / (5 * eps**2)
    expected = (1 - kappa_gamma) * Z + kappa_gamma * mssa_tied(Z, U, eps)
    torch.testing.assert_close(softmax_step(Z, U, kappa, eps), expected, **EXACT)


@given(token_shapes, seeds, st.sampled_from([0.1, 0.5, 1.0]))
def test_exact_gradient_step_lowers_the_rate(shape, seed, eps):
    Z, U = random(2, *shape, seed=seed), random(3, shape[1], 2, seed=seed + 1)
    kappa = 1e-3 / rate_scale(shape[0], 2, eps) / torch.linalg.matrix_norm(U, 2).square().sum().item()
    before, after = (subspace_coding_rate(tokens, U, eps) for tokens in (Z, gradient_step(Z, U, kappa, eps)))
    assert (after < before).all()


@pytest.mark.parametrize("n", [3, 9])  # fewer tokens than dimensions of a subspace, and more
def test_gradient_step_is_autograds(n):
    Z, U, kappa, eps = random(2, n, 12).requires_grad_(), random(3, 12, 4, seed=1), 0.3, 0.5
    (gradient,) = torch.autograd.grad(subspace_coding_rate(Z, U, eps).sum(), Z)
    torch.testing.assert_close(gradient_step(Z, U, kappa, eps), Z - kappa * gradient, **EXACT)
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 5e-3)):
        rounded = gradient_step(Z.to(dtype), U.to(dtype), kappa, eps)
        expected = gradient_step(Z.to(dtype).double(), U.to(dtype).double(), kappa, eps)
        assert rounded.dtype == dtype
        torch.testing.assert_close(rounded.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("n", [3, 9])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e5])
def test_gradient_step_is_right_for_random_tokens_of_any_size(size, n):
    """Beside the objective's own gradient, whose factors take a second round."""
    Z, U, kappa, eps = size * random(2, n, 12), random(3, 12, 4, seed=1), 1e8, 0.5
    expected = subspace_coding_rate_gradient(Z, U, eps)
    move = (gradient_step(Z, U, kappa, eps) - Z) / kappa
    assert ((move + expected).norm() / expected.norm()).item() < 1e-12


def test_gradient_step_has_its_derivatives():
    Z, U = random(4, 5).requires_grad_(), random(2, 5, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(gradient_step, (Z, U))
    assert torch.autograd.gradgradcheck(gradient_step, (Z, U))
    batch = random(3, 4, 5)
    one_by_one = torch.stack([torch.func.jacrev(gradient_step)(one, U.detach()) for one in batch])
    together = torch.func.vmap(torch.func.jacrev(gradient_step), (0, None))(batch, U.detach())
    torch.testing.assert_close(together, one_by_one, **EXACT)
    forward = torch.func.vmap(torch.func.jacfwd(gradient_step), (0, None))(batch, U.detach())
    torch.testing.assert_close(forward, one_by_one, **EXACT)


def test_neumann_step_is_the_first_order_of_the_exact_one():
    """Their difference falls like the square of γ‖V Vᵀ‖, the next term of the series."""
    U, kappa, eps = subspaces(3, 12, 4), 0.3, 0.5
    errors = []
    for size in (0.2, 0.1, 0.05):
        Z = size * unit_tokens(9, 12)
        move = gradient_step(Z, U, kappa, eps) - Z
        errors.append(((neumann_step(Z, U, kappa, eps) - Z - move).norm() / move.norm()).item())
    assert errors[0] / errors[1] == pytest.approx(16, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(16, rel=0.1)


def test_mixture_step_of_one_token_is_the_denoiser():
    U, sigma = subspaces(4, 12, 3), 0.4
    Z = random(8, 1, 12)  # eight samples of one token each
    torch.testing.assert_close(mixture_step(Z, U, sigma), attention_denoiser(Z, U, sigma), **EXACT)


def test_mixture_step_of_many_tokens_weighs_the_heads():
    Z, U, sigma = random(5, 6), random(3, 6, 2, seed=1), 0.8
    heads = ssa_reference(Z, U)
    expected = torch.zeros_like(Z)
    for i in range(5):
        weight = torch.softmax(torch.stack([(U_k.T @ Z[i]).square().sum() for U_k in U]) / (2 * sigma**2), dim=0)
        expected[i] = sum(weight[k] * U[k] @ heads[k, i] for k in range(3))
    torch.testing.assert_close(mixture_step(Z, U, sigma), expected, **EXACT)


FUNCTIONS = {
    "mssa_tied": mssa_tied,
    "softmax_step": softmax_step,
    "gradient_step": gradient_step,
    "neumann_step": neumann_step,
    "mixture_step": mixture_step,
}


def build(name, options=None, num_heads=3, head_dim=2, **arguments):
    return compressions.build(
        name, options, dim=6, num_heads=num_heads, head_dim=head_dim, dtype=torch.float64, **arguments
    )


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_module_moves_as_the_function_of_its_name(name):
    module, Z = build(name), random(2, 5, 6)
    assert module.U.shape == (3, 6, 2)
    arguments = {"scale": 2**-0.5} if module.has("maps") else {}
    result = FUNCTIONS[name](Z, module.U, **arguments)
    expected = result if name == "mssa_tied" else result - Z  # tied MSSA is a move itself, the others are steps
    torch.testing.assert_close(module(Z), expected, **EXACT)


def test_mssa_has_a_free_output_map():
    module, Z = build("mssa"), random(2, 5, 6)
    expected = mssa(Z, module.U, module.W.weight, module.W.bias, 2**-0.5)
    torch.testing.assert_close(module(Z), expected, **EXACT)
    assert build("mssa", {"bias": False}).W.bias is None


def test_attention_dropout_is_for_training_alone():
    module = build("mssa", attn_drop=0.5)
    Z = random(2, 5, 6)
    torch.manual_seed(0)
    assert not torch.equal(module(Z), module(Z))
    module.eval()
    assert torch.equal(module(Z), module(Z))
    plain = build("mssa")
    plain.load_state_dict(module.state_dict())
    assert torch.equal(module(Z), plain(Z))


def test_one_head_as_wide_as_the_tokens_has_no_output_map():
    module = build("mssa", num_heads=1, head_dim=6)
    assert [name for name, _ in module.named_parameters()] == ["UT"]
    Z = random(2, 5, 6)
    torch.testing.assert_close(module(Z), ssa_reference(Z, module.U, 6**-0.5).squeeze(-3), **EXACT)


def test_orthonormal_bases_stay_so():
    module, Z = build("mssa", {"basis": "orthonormal"}), random(2, 5, 6)
    eye = torch.eye(2, dtype=torch.float64).expand(3, 2, 2)
    torch.testing.assert_close(module.U.mT @ module.U, eye, **EXACT)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    module(Z).square().sum().backward()
    optimizer.step()
    torch.testing.assert_close(module.U.mT @ module.U, eye, **EXACT)
    again = build("mssa", {"basis": "orthonormal"})
    again.load_state_dict(module.state_dict())
    assert torch.equal(again(Z), module(Z))
    module.reset_parameters()
    torch.testing.assert_close(module.U.mT @ module.U, eye, **EXACT)


@pytest.mark.parametrize("basis", ["free", "orthonormal"])
def test_bases_are_drawn_again_as_they_were_at_first(basis):
    """Uniformly within ±1/√d, as torch.nn.Linear draws its weights."""
    module = compressions.build("mssa", {"basis": basis}, dim=64, num_heads=4)
    weights = module.UT if basis == "free" else module.parametrizations.UT.original
    first = weights.detach().clone()
    module.reset_parameters()
    assert not (first == weights).any()
    for drawn in (weights,) if basis == "orthonormal" else (first, weights):
        torch.testing.assert_close(drawn.abs().max(), torch.tensor(1 / 8), rtol=0.01, atol=0)
        torch.testing.assert_close(drawn.std(), torch.tensor(1 / 8 / 3**0.5), rtol=0.05, atol=0)


def test_a_causal_mssa_sees_no_later_token():
    module, Z = build("mssa", {"causal": True}), random(2, 5, 6)
    torch.testing.assert_close(module(Z)[:, :3], module(Z[:, :3]), **EXACT)
    assert torch.equal(module.maps(Z), module.maps(Z).tril())
    V = module.projections(Z)
    torch.testing.assert_close(module(Z), module.output(module.maps(Z) @ V), **EXACT)


def test_decoding_token_by_token_is_the_causal_pass():
    module, Z, state, moves = build("mssa", {"causal": True}), random(2, 5, 6), None, []
    for t in range(5):
        move, state = module.step(Z[:, t : t + 1], state)
        moves.append(move)
    torch.testing.assert_close(torch.cat(moves, 1), module(Z), **EXACT)
    assert state.shape == (2, 3, 5, 2)  # one tensor, not keys and values
    with pytest.raises(ValueError, match="only a causal network decodes token by token"):
        build("mssa").step(Z[:, :1], None)
    with pytest.raises(ValueError, match="compression 'gradient_step' cannot decode token by token"):
        build("gradient_step").step(Z[:, :1], None)


def test_bad_input_is_one_sentence():
    with pytest.raises(ValueError, match=r"unknown compression 'msa'; did you mean 'mssa'\?"):
        build("msa")
    with pytest.raises(ValueError, match=r"unknown compression 'xyz'; known: gradient_step, .*mssa, mssa_tied"):
        build("xyz")
    with pytest.raises(ValueError, match=r"softmax_step has no option 'kapa'; did you mean 'kappa'\?"):
        build("softmax_step", {"kapa": 1.0})
    with pytest.raises(ValueError, match="eps must be positive, got 0"):
        build("mssa_tied", {"eps": 0.0})
    with pytest.raises(ValueError, match="kappa must be positive, got -1"):
        build("gradient_step", {"kappa": -1.0})
    with pytest.raises(ValueError, match="basis must be 'free' or 'orthonormal', got 'round'"):
        build("mssa", {"basis": "round"})
    with pytest.raises(ValueError, match="causal must be true or false, got 1"):
        build("mssa", {"causal": 1})
    Z, U = random(5, 6), random(3, 6, 2)
    for step in (mssa_tied, gradient_step, neumann_step, softmax_step):
        with pytest.raises(ValueError, match="eps must be positive"):
            step(Z, U, eps=0.0)
    for step in (gradient_step, neumann_step, softmax_step):
        with pytest.raises(ValueError, match="kappa must be positive"):
            step(Z, U, kappa=-1.0)
    with pytest.raises(ValueError, match="sigma must be positive"):
        mixture_step(Z, U, sigma=0.0)


def test_attention_maps_are_distributions():
    maps = attention_maps(random(2, 3, 5, 2), 0.7)
    assert maps.shape == (2, 3, 5, 5)
    torch.testing.assert_close(maps.sum(-1), torch.ones(2, 3, 5, dtype=torch.float64))
