"""LayerNorm's scale and shift inside the products: against LayerNorm itself, values and gradients."""

import pytest
import torch
from torch import nn

from opencrate.layers import HalfStep, Layer
from opencrate.operators import sparsifications
from opencrate.speed import norm_folding, training_forms
from opencrate.speed.first_token import FirstTokenLayer
from opencrate.speed.norm_folding import OFFSET, absorb, folds, normalise, normalise_saving_output

from ..networks import small
from ..strategies import random

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def norm_of(d):
    norm = nn.LayerNorm(d).double()
    norm.weight.data = 1 + 0.3 * random(d, seed=1)
    norm.bias.data = random(d, seed=2)
    return norm


def test_the_product_is_the_norms():
    norm, Z, weight, bias = norm_of(12), random(2, 5, 12), random(7, 12, seed=3), random(7, seed=4)
    expected = norm(Z) @ weight.mT + bias
    torch.testing.assert_close(normalise(Z, norm.eps) @ absorb(norm, weight, bias).mT, expected, **EXACT)


def test_the_backward_pass_from_the_result():
    Z = random(2, 5, 12).requires_grad_()
    given = random(2, 5, 12, seed=1)
    expected = torch.autograd.grad((torch.nn.functional.layer_norm(Z, (12,)) + OFFSET), Z, given)
    torch.testing.assert_close(torch.autograd.grad(normalise_saving_output(Z, 1e-5), Z, given), expected, **EXACT)
    assert torch.autograd.gradcheck(lambda Z: normalise_saving_output(Z, 1e-5), Z)
    assert torch.autograd.gradgradcheck(lambda Z: normalise_saving_output(Z, 1e-5), Z)


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_a_networks_step_is_the_same(monkeypatch, pool):
    model = small(global_pool=pool).double().train()
    images = random(3, 3, 16, 16)

    def step():
        model.zero_grad()
        logits = model(images)
        logits.square().sum().backward()
        return [logits, *(weight.grad.clone() for weight in model.parameters())]

    plain = step()
    names = list(model.state_dict())
    training_forms(model, first_token=True)
    assert list(model.state_dict()) == names
    called = []
    monkeypatch.setattr(norm_folding, "folds", lambda *_: True)
    monkeypatch.setattr(norm_folding, "absorb", lambda *given: called.append(given) or absorb(*given))
    for absorbed, expected in zip(step(), plain, strict=True):
        torch.testing.assert_close(absorbed, expected, **EXACT)
    assert len(called) == 2 * len(model.blocks)


def test_operators_without_a_fast_form_stay_as_they_are():
    """Another operator, or a subclass with a code of its own, keeps the half-step that is written for all."""

    class Doubled(type(sparsifications.build("ista", dim=24))):
        def code(self, Y):
            return 2 * Y.relu()

    model, Z = small(compress="gradient_step").train(), torch.randn(2, 5, 24)
    model.blocks[0].sparsify.operator = Doubled(24)
    training_forms(model, first_token=True)
    first, second = model.blocks[0], model.blocks[1]
    assert type(first.compress) is type(first.sparsify) is HalfStep
    assert type(second.sparsify) is norm_folding.NormFoldedISTA
    torch.testing.assert_close(first.sparsify(Z), 2 * first.sparsify.norm(Z).relu())


def test_a_last_layer_of_another_class_computes_all_tokens():
    class Own(Layer):
        pass

    for depth in (1, 3):
        model = small(depth=depth)
        model.blocks[-1].__class__ = Own
        assert type(training_forms(model, first_token=True).blocks[-1]) is Own
        assert type(training_forms(small(depth=depth), first_token=True).blocks[-1]) is FirstTokenLayer


def test_only_on_cuda_in_half_precision_and_in_training(monkeypatch):
    model = training_forms(small().train())
    for dtype in (torch.float32, torch.bfloat16):
        assert not folds(model.blocks[0].compress.norm, torch.zeros(1, 2, 3, dtype=dtype), torch.zeros(1))
    for name in ("folds", "absorb"):
        monkeypatch.setattr(norm_folding, name, lambda *_: pytest.fail("asked in evaluation"))
    model.eval()(torch.randn(1, 3, 16, 16))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch 2.11's own compiler's
def test_on_a_gpu_the_gradients_are_as_near_as_the_plain_ones(monkeypatch):
    """Of a compiled step in bf16, against float64: no weight's error is above twice that of LayerNorm as it is."""
    model = training_forms(small(embed_dim=64, num_heads=4).cuda().train(), first_token=True)
    images = torch.randn(64, 3, 16, 16, device="cuda")

    def gradients(network, images):
        model.zero_grad()
        network(images).double().square().mean().backward()
        return {name: weight.grad.double() for name, weight in model.named_parameters()}

    def in_half(network):
        torch.compiler.reset()
        with torch.autocast("cuda", torch.bfloat16):
            return gradients(network, images)

    asked = []
    monkeypatch.setattr(norm_folding, "folds", lambda *given: asked.append(folds(*given)) or asked[-1])
    eager, compiled = in_half(model), in_half(torch.compile(model))
    assert asked
    assert all(asked)
    monkeypatch.setattr(norm_folding, "folds", lambda *_: False)
    plain = in_half(model)
    exact = gradients(model.double(), images.double())
    for name, truth in exact.items():
        bar = (plain[name] - truth).norm() + 0.003 * truth.norm()
        assert (eager[name] - truth).norm() <= 2 * bar, name
        assert (compiled[name] - truth).norm() <= 2 * bar, name
