"""What every registered operator promises, ours and users' alike."""

import copy
import inspect
import re
from pathlib import Path

import pytest
import torch

import opencrate
from opencrate import CRATE, trajectory
from opencrate.objective import lasso, subspace_coding_rate
from opencrate.operators import Compression, Sparsification, compressions, solve_lasso, sparsifications
from opencrate.operators.registry import SUPPLIED

from .. import user_operators
from ..networks import SMALL, own
from ..strategies import random

SHAPE = {"dim": 12, "num_heads": 3, "head_dim": 4}
EVERY = [(compressions, name) for name in sorted(compressions)] + [
    (sparsifications, name) for name in sorted(sparsifications)
]
HALF = {"compression": "compress", "sparsification": "sparsify"}
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def build(registry, name, dtype=torch.float64):
    torch.manual_seed(0)
    return registry.build(name, dtype=dtype, **SHAPE)


def network(registry, name, **arguments):
    torch.manual_seed(0)
    return CRATE(**SMALL, **{HALF[registry.kind]: name}, **arguments)


every_operator = pytest.mark.parametrize(("registry", "name"), EVERY, ids=lambda value: getattr(value, "kind", value))


@every_operator
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_tokens_in_tokens_out(registry, name, dtype):
    operator = build(registry, name, dtype)
    for shape in ((2, 5, 12), (1, 1, 12), (3, 17, 12)):
        result = operator(random(*shape).to(dtype))
        assert result.shape == shape
        assert result.dtype == dtype
        assert result.isfinite().all()


@every_operator
def test_every_weight_gets_a_gradient_and_the_derivative_is_right(registry, name):
    operator, Y = build(registry, name), random(2, 4, 12, seed=1).requires_grad_()
    if not list(operator.parameters()):
        pytest.skip("it has no weights")
    operator(Y).square().sum().backward()
    assert [key for key, weight in operator.named_parameters() if weight.grad is None] == []
    assert torch.autograd.gradcheck(lambda Y: operator(Y), Y, atol=1e-6)


@every_operator
def test_roles_agree_with_the_forward_pass(registry, name):
    operator, Y = build(registry, name).eval(), random(2, 5, 12, seed=2)
    if isinstance(operator, Sparsification):
        if operator.has("code"):
            code = operator.code(Y)
            torch.testing.assert_close(operator.decode(code), operator(Y), **EXACT)
            assert code.shape[:2] == (2, 5)
            if operator.has("aim"):
                assert operator.aim(Y, code).shape == (2,)
        elif not operator.has("aim"):
            assert operator.aim(Y, Y) is None
    else:
        if operator.has("maps"):
            maps = operator.maps(Y)
            assert maps.shape == (2, 3, 5, 5)
            torch.testing.assert_close(maps.sum(-1), torch.ones(2, 3, 5, dtype=torch.float64), **EXACT)
        if operator.has("aim"):
            expected = subspace_coding_rate(Y, operator.U, 0.1)
            torch.testing.assert_close(operator.aim(Y, 0.1), expected, **EXACT)
    if operator.token_wise:
        torch.testing.assert_close(operator(Y)[:, 2:4], operator(Y[:, 2:4]), **EXACT)


@every_operator
def test_a_token_wise_operator_is_said_to_be_one(registry, name):
    """What looks at other tokens says so: swapping two of them swaps their results, and changing one changes no other
    where the operator calls itself token-wise."""
    operator, Y = build(registry, name).eval(), random(1, 5, 12, seed=3)
    other = Y.clone()
    other[:, 4] = random(12, seed=4)
    unchanged = torch.allclose(operator(Y)[:, :4], operator(other)[:, :4], rtol=1e-12, atol=1e-12)
    assert unchanged or not operator.token_wise


@every_operator
def test_options_are_written_down_and_build_it_again(registry, name, tmp_path):
    model = network(registry, name).eval()
    half = HALF[registry.kind]
    options = registry.options(name)
    assert model.config()[f"{half}_args"] == options
    assert not set(options) & set(SUPPLIED)
    opencrate.save_pretrained(model, tmp_path / "saved")
    again = opencrate.load(tmp_path / "saved")
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(again(images), model(images))
    assert again.config() == model.config()
    described = opencrate.checkpoints.read(tmp_path / "saved").describe()
    assert described[registry.kind].startswith(name)
    for option, value in options.items():
        assert f"{option}={value}" in described[registry.kind]


OPTIONS = {
    "mssa": {"bias": True, "causal": False, "basis": "free"},
    "mssa_tied": {"eps": 0.5, "basis": "free"},
    "softmax_step": {"kappa": 0.5, "eps": 0.5, "basis": "free"},
    "gradient_step": {"kappa": 0.5, "eps": 0.5, "basis": "free"},
    "neumann_step": {"kappa": 0.5, "eps": 0.5, "basis": "free"},
    "mixture_step": {"sigma": 1.0, "basis": "free"},
    "ista": {"eta": 0.1, "lam": 0.1},
    "ista_unrolled": {"eta": 0.1, "lam": 0.1, "steps": 2},
    "prox_mm": {"lam": 0.1, "eps": 0.5},
    "prox_mm_tight": {"lam": 0.1, "eps": 0.5},
    "none": {},
}


def test_options_left_out_mean_what_they_have_always_meant():
    """A recipe writes only what differs from the defaults: another default would train another network."""
    assert set(OPTIONS) == {*own(compressions), *own(sparsifications)}
    for name, options in OPTIONS.items():
        assert (compressions if name in compressions else sparsifications).options(name) == options


@pytest.mark.parametrize("name", sorted(set(OPTIONS) - {"mssa", "none"}))
def test_a_function_has_the_defaults_of_the_operator_of_its_name(name):
    function = inspect.signature(getattr(opencrate.operators, name)).parameters
    options = {option: value for option, value in OPTIONS[name].items() if option in function}
    assert {option: function[option].default for option in options} == options


@every_operator
def test_trajectory_walks_what_forward_computes(registry, name):
    model, images = network(registry, name, dtype=torch.float64).eval(), random(2, 3, 16, 16)
    with torch.no_grad():
        steps = list(trajectory(model, images))
        torch.testing.assert_close(model.forward_head(steps[-1].Z_next), model(images), **EXACT)
    assert [step.number for step in steps] == [1, 2, 3]
    for step, layer in zip(steps, model.layers, strict=True):
        assert step.layer is layer
        assert (step.code is not None) == layer.sparsify.operator.has("code")


@every_operator
def test_it_resumes_bit_by_bit(registry, name):
    """Training goes on from a state dictionary and the optimiser's as if nothing had happened."""

    def optimizer_of(model):
        return torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(model, optimizer, seed):
        optimizer.zero_grad()
        model(random(2, 3, 16, 16, seed=seed).float()).square().sum().backward()
        optimizer.step()

    model = network(registry, name).train()
    optimizer = optimizer_of(model)
    step(model, optimizer, 1)
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    step(model, optimizer, 2)
    again = network(registry, name).train()
    restored = optimizer_of(again)
    again.load_state_dict(kept[0])
    restored.load_state_dict(kept[1])
    step(again, restored, 2)
    for weight, expected in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(weight, expected)


@pytest.mark.unhooked
@every_operator
def test_it_exports(registry, name):
    model, images = network(registry, name).eval(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        exported = torch.export.export(model, (images,)).module()
        torch.testing.assert_close(exported(images), model(images), rtol=1e-4, atol=1e-5)


def test_the_dictionary_is_the_solver_behind_a_second_dictionary():
    operator, Y = build(sparsifications, "dictionary"), random(2, 5, 12, seed=5)
    expected = solve_lasso(Y, operator.D, 0.1, 2, 0.1) @ operator.D1.mT
    torch.testing.assert_close(operator(Y), expected, rtol=0, atol=1e-12)
    assert torch.equal(operator.aim(Y, operator.code(Y)), lasso(operator.code(Y), Y, operator.D, 0.1))
    assert operator.code(Y).shape == (2, 5, 48)


def test_users_operators_are_short():
    source = Path(user_operators.__file__).read_text(encoding="utf-8")
    blocks = re.split(r"^@(?=\w+\.register)", source, flags=re.MULTILINE)[1:]
    assert len(blocks) == 3
    assert all(len(block.strip().splitlines()) <= 30 for block in blocks)


class TestRegistering:
    def test_a_class_is_refused_that_cannot_be_built_from_plain_options(self):
        for arguments, message in [
            ("self", "must take `dim`"),
            ("self, **rest", "must take `dim`"),
            ("self, dim, *rest", "'rest' of compression 'wrong' is an option, so it needs a default"),
            ("self, dim, rate", "'rate' of compression 'wrong' is an option, so it needs a default"),
            ("self, dim, rate=None", "it needs a default that is a number, a truth value or a string"),
            ("self, dim, rate=float('inf')", "rate must be a finite number, got inf"),
            ("self, dim, eps=-1.0", "eps must be positive, got -1"),
        ]:
            scope = {}
            exec(f"def __init__({arguments}): pass", scope)
            wrong = type("Wrong", (Compression,), {"__init__": scope["__init__"]})
            with pytest.raises(ValueError, match=message):
                compressions.register("wrong")(wrong)
        assert "wrong" not in compressions

    @pytest.mark.unhooked
    def test_names(self):
        with pytest.raises(ValueError, match=r"'mssa' exists in opencrate\.operators\.mssa; choose another name"):
            compressions.register("mssa")(type("Mine", (user_operators.TSSA,), {}))
        with pytest.raises(ValueError, match="a compression is registered under a name"):
            compressions.register(user_operators.TSSA)
        compressions.register("tssa")(user_operators.TSSA)  # again, as a notebook does

    @pytest.mark.unhooked
    def test_what_the_network_supplies_is_no_option(self):
        with pytest.raises(ValueError, match="'num_heads' of mssa is set by the network and is not an option"):
            compressions.options("mssa", {"num_heads": 2})
        with pytest.raises(ValueError, match="the options of mssa must be a dictionary, got 3"):
            compressions.options("mssa", 3)
        with pytest.raises(ValueError, match=r"steps must be a whole number, got 1\.5"):
            sparsifications.options("ista_unrolled", {"steps": 1.5})
        assert sparsifications.options("ista_unrolled", {"steps": 3.0})["steps"] == 3

    def test_a_constructor_with_arguments_has_the_options_of_its_base(self):
        assert compressions.options("mssa") == {"bias": True, "causal": False, "basis": "free"}
        tied = compressions.build("mssa_tied", {"eps": 0.2, "basis": "orthonormal"}, dim=12, num_heads=2, attn_drop=0.5)
        torch.testing.assert_close(tied.U.mT @ tied.U, torch.eye(6).expand(2, 6, 6))
        assert (tied.eps, tied.attn_drop, tied.options) == (0.2, 0.5, {"eps": 0.2, "basis": "orthonormal"})

    @pytest.mark.parametrize(
        ("result", "message"),
        [
            (lambda Y: Y.mean(-1, keepdim=True), r"'wrong' must return tokens of shape \(2, 5, 12\), got \(2, 5, 1\)"),
            (lambda Y: Y[:, :3], r"must return tokens of shape \(2, 5, 12\), got \(2, 3, 12\)"),
            (lambda Y: None, r"must return tokens of shape \(2, 5, 12\), got None"),
        ],
    )
    def test_a_wrong_result_is_said_where_it_is_made(self, result, message):
        class Wrong(Compression):
            def __init__(self, dim):
                super().__init__()

            def forward(self, Y):
                return result(Y)

        compressions.register("wrong")(Wrong)
        try:
            with pytest.raises(ValueError, match=message):
                build(compressions, "wrong")(random(2, 5, 12))
        finally:
            del compressions["wrong"]
