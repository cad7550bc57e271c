import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opencrate import CRATE
from opencrate.objective import (
    attention_denoiser,
    project,
    rate_scale,
    subspace_coding_rate,
    subspace_coding_rate_gradient,
)
from opencrate.operators import COMPRESSIONS, compression
from opencrate.operators.compression import (
    Compression,
    attention_maps,
    gradient_step,
    lift,
    mixture_step,
    mssa,
    mssa_tied,
    neumann_step,
    softmax_step,
    ssa,
    ssa_reference,
)

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


@pytest.mark.parametrize("name", sorted(COMPRESSIONS))
def test_module_applies_the_function_of_its_name(name):
    module = Compression(name, 6, num_heads=3, head_dim=2, dtype=torch.float64)
    Z = random(2, 5, 6)
    assert module.U.shape == (3, 6, 2)
    arguments = {"scale": 2**-0.5} if module.has_attention else {}
    if name == "mssa":
        arguments |= {"W": module.W.weight, "bias": module.W.bias}
    torch.testing.assert_close(module(Z), COMPRESSIONS[name](Z, module.U, **arguments), **EXACT)
    module(Z).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_attention_dropout_is_for_training_alone():
    module = Compression("mssa", 6, 3, 2, attn_drop=0.5, dtype=torch.float64)
    Z = random(2, 5, 6)
    torch.manual_seed(0)
    assert not torch.equal(module(Z), module(Z))
    module.eval()
    assert torch.equal(module(Z), module(Z))
    plain = Compression("mssa", 6, 3, 2, dtype=torch.float64)
    plain.load_state_dict(module.state_dict())
    assert torch.equal(module(Z), plain(Z))


def test_one_head_as_wide_as_the_tokens_has_no_output_map():
    module = Compression("mssa", 6, num_heads=1, head_dim=6, dtype=torch.float64)
    assert [name for name, _ in module.named_parameters()] == ["UT"]
    Z = random(2, 5, 6)
    torch.testing.assert_close(module(Z), ssa_reference(Z, module.U, 6**-0.5).squeeze(-3), **EXACT)


def test_a_new_compression_is_one_function():
    @compression.register
    def shrink_towards_subspaces(Z, U, rate=0.5):
        return (1 - rate) * Z + rate * lift(project(Z, U), U)

    try:
        sizes = {"img_size": 8, "patch_size": 4, "embed_dim": 6, "depth": 2, "num_heads": 3, "num_classes": 4}
        model = CRATE(compress="shrink_towards_subspaces", compress_args={"rate": 0.25}, **sizes)
        assert model(torch.randn(2, 3, 8, 8)).shape == (2, 4)
        assert model.config()["compress_args"] == {"rate": 0.25}
    finally:
        del COMPRESSIONS["shrink_towards_subspaces"]


@pytest.mark.unhooked  # ours checks it, too
@pytest.mark.parametrize(
    ("wrong", "queries", "message"),
    [
        (
            lambda Z, U: Z.mean(-1, keepdim=True),
            None,
            r"'wrong' must return tokens of shape \(2, 5, 6\), got \(2, 5, 1\)",
        ),
        (lambda Z, U: Z[:, :3], None, r"must return tokens of shape \(2, 5, 6\), got \(2, 3, 6\)"),
        (lambda Z, U: None, None, r"must return tokens of shape \(2, 5, 6\), got None"),
        (lambda Z, U, queries=None: Z, 1, r"must return tokens of shape \(2, 1, 6\), got \(2, 5, 6\)"),
    ],
)
def test_what_an_operator_of_others_returns_is_checked(wrong, queries, message):
    wrong.__name__ = "wrong"
    try:
        compression.register(wrong)
        module = Compression("wrong", 6, 3, 2)
        with pytest.raises(ValueError, match=message):
            module(torch.ones(2, 5, 6), queries)
    finally:
        COMPRESSIONS.pop("wrong", None)


@pytest.mark.unhooked
def test_a_checked_operator_compiles_and_is_still_itself():
    def halved(Z, U, rate=0.5):
        return rate * Z

    try:
        checked = compression.register(halved)
        assert checked.__name__ == "halved"
        assert COMPRESSIONS.options("halved", {"rate": 0.25}) == {"rate": 0.25}
        module, Z = Compression("halved", 6, 3, 2, {"rate": 0.25}), torch.ones(2, 5, 6)
        compiled = torch.compile(module, fullgraph=True, backend="eager")
        assert torch.equal(compiled(Z), 0.25 * Z)
        assert torch.equal(torch.export.export(module, (Z,)).module()(Z), 0.25 * Z)
        assert torch.equal(torch.fx.symbolic_trace(module.operator)(Z, module.U), 0.5 * Z)
    finally:
        COMPRESSIONS.pop("halved", None)


def test_the_signature_says_what_an_operator_needs():
    """Only what it names is passed; what cannot be passed is refused at once."""
    before = dict(COMPRESSIONS)

    def output_map_alone(Z, U, W=None):
        return Z + project(Z, U).transpose(-3, -2).flatten(-2) @ W.T

    def scale_alone(Z, U, scale=1.0):
        return scale * Z

    def dropout_alone(Z, U, dropout=0.0):
        return dropout * Z

    try:
        for operator in (output_map_alone, scale_alone, dropout_alone):
            compression.register(operator)
        Z = random(2, 5, 6)
        module = Compression("output_map_alone", 6, 3, 2, dtype=torch.float64)
        assert module.W.bias is None
        torch.testing.assert_close(module(Z), output_map_alone(Z, module.U, module.W.weight))
        assert torch.equal(Compression("scale_alone", 6, 3, 2)(Z), 2**-0.5 * Z)
        assert torch.equal(Compression("dropout_alone", 6, 3, 2, attn_drop=0.5)(Z), 0.5 * Z)

        # Registering again, as a notebook does, replaces; registering as another kind changes the kind.
        compression.register(increment=True, recorded=False)(scale_alone)
        assert Compression("scale_alone", 6, 3, 2).is_increment
        assert not Compression("scale_alone", 6, 3, 2).is_recorded
        compression.register(scale_alone)
        assert not Compression("scale_alone", 6, 3, 2).is_increment
        assert Compression("scale_alone", 6, 3, 2).is_recorded
        assert not Compression("gradient_step", 6, 3, 2).is_recorded

        for wrong, message in [
            (lambda X, basis: X, "must begin with the arguments Z and U"),
            (lambda Z, U, rate: Z, "argument 'rate' of compression 'wrong' needs a name and a default"),
            (lambda Z, U, *rates: Z, "argument 'rates' of compression 'wrong' needs a name and a default"),
            (lambda Z, U, rate=None: Z, "'rate' of compression 'wrong' is an option, so its default must be a number"),
            (lambda Z, U, rate=float("inf"): Z, "rate must be a finite number, got inf"),
            (lambda Z, U, eps=-1.0: Z, "eps must be positive, got -1"),
            (lambda Z, U, bias=None: Z, "compression 'wrong' has a bias and no W"),
        ]:
            wrong.__name__ = "wrong"
            with pytest.raises(ValueError, match=message):
                compression.register(wrong)
        for nameless in (lambda Z, U: Z, functools.partial(scale_alone, scale=2.0)):
            with pytest.raises(ValueError, match="is registered under its function's name"):
                compression.register(nameless)
        with pytest.raises(ValueError, match="'scale' of scale_alone is given by the network, and is no option"):
            COMPRESSIONS.options("scale_alone", {"scale": 2.0})
        scale_alone.__name__ = "mssa"
        with pytest.raises(ValueError, match=r"'mssa' exists in opencrate\.operators\.compression: give yours another"):
            compression.register(scale_alone)
    finally:
        COMPRESSIONS.clear()
        COMPRESSIONS.update(before)


def test_bad_input_is_one_sentence():
    with pytest.raises(ValueError, match=r"unknown compression 'msa'; did you mean 'mssa'\?"):
        Compression("msa", 6, 3, 2)
    with pytest.raises(ValueError, match="unknown compression 'xyz'; known: gradient_step, mixture_step, mssa"):
        Compression("xyz", 6, 3, 2)
    with pytest.raises(ValueError, match=r"softmax_step has no option 'kapa'; did you mean 'kappa'\?"):
        Compression("softmax_step", 6, 3, 2, {"kapa": 1.0})
    with pytest.raises(ValueError, match="eps must be positive, got 0"):
        Compression("mssa_tied", 6, 3, 2, {"eps": 0.0})
    with pytest.raises(ValueError, match="kappa must be positive, got -1"):
        Compression("gradient_step", 6, 3, 2, {"kappa": -1.0})
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
