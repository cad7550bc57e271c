"""The last layer for the class token alone: the same logits, and only where nobody sees another token."""

import pytest
import torch

from opencrate.operators.mssa import MSSA
from opencrate.speed import first_token, training_forms

from ..networks import small
from ..strategies import random

CAUSAL = {"compress_args": {"causal": True}}


@pytest.fixture
def calls(monkeypatch):
    """How often a last layer was computed for its class token alone."""
    calls, plain = [], first_token.first_token
    monkeypatch.setattr(first_token, "first_token", lambda *given: calls.append(given) or plain(*given))
    return calls


def both(model, images):
    return model(images), model.forward_head(model.forward_features(images))


@pytest.mark.parametrize("fast", [False, True], ids=["as written", "training forms"])
@pytest.mark.parametrize("arguments", [{}, {"num_heads": 1}, {"sparsify": "none"}, {"norm": "rmsnorm"}, {"depth": 1}])
def test_an_evaluation_has_the_logits_of_all_tokens(arguments, fast, calls):
    model = small(dtype=torch.float64, **arguments).eval()
    model.blocks[-1].compress.operator.mute([0])
    model = training_forms(model, first_token=True) if fast else model
    alone, whole = both(model, random(3, 3, 16, 16))
    torch.testing.assert_close(alone, whole, rtol=1e-12, atol=1e-12)
    assert len(calls) == 1


@pytest.mark.parametrize(
    "arguments",
    [{"global_pool": "avg"}, {"compress": "softmax_step"}, {"sparsify": "prox_mm"}, CAUSAL],
)
def test_all_tokens_are_computed_where_they_count(arguments, calls):
    model = small(dtype=torch.float64, **arguments).eval()
    torch.testing.assert_close(*both(model, random(2, 3, 16, 16)), rtol=0, atol=0)
    assert not calls


def watch_output(model, seen):
    model.blocks[-1].register_forward_hook(lambda module, inputs, output: seen.append(output.shape[1]))


def watch_input(model, seen):
    model.blocks[-1].sparsify.norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape[1]))


def watch_gradient(model, seen):
    model.blocks[-1].register_full_backward_hook(lambda module, inputs, outputs: seen.append(outputs[0].shape[1]))


def replace_forward(model, seen):
    plain = model.blocks[-1].forward
    model.blocks[-1].forward = lambda Z: seen.append(Z.shape[1]) or plain(Z)


@pytest.mark.parametrize("watch", [watch_output, watch_input, watch_gradient, replace_forward])
def test_who_looks_sees_all_tokens(watch):
    model, seen = small().eval(), []
    watch(model, seen)
    model(random(2, 3, 16, 16).float()).sum().backward()
    assert seen == [17]


def test_a_hook_on_every_module_sees_all_tokens():
    model, seen = small().eval(), {}
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: seen.update({module: output.shape[1]})
    )
    with handle:
        model(random(2, 3, 16, 16).float())
    assert seen[model.blocks[-1]] == 17


def test_a_compression_that_computes_otherwise_is_asked_for_all_tokens(calls):
    class Doubled(MSSA):
        def forward(self, Y):
            return 2 * super().forward(Y)

    model = small(dtype=torch.float64).eval()
    model.blocks[-1].compress.operator.__class__ = Doubled
    torch.testing.assert_close(*both(model, random(2, 3, 16, 16)), rtol=0, atol=0)
    assert not calls


@pytest.mark.unhooked
def test_a_compiler_and_a_tracer_take_the_network_as_it_is_written(calls):
    model, images = small().eval(), random(2, 3, 16, 16).float()
    expected = model.forward_head(model.forward_features(images))
    with torch.inference_mode():
        for other in (torch.compile(model, backend="eager", fullgraph=True), torch.fx.symbolic_trace(model)):
            torch.testing.assert_close(other(images), expected)
    assert not calls
