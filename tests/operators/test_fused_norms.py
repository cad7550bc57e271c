"""LayerNorm between the products, against float64 autograd: on CPU by Triton's interpreter, on a GPU in every type."""

import os

import pytest
import torch
from torch import nn

from opencrate.operators.fused_norms import add_norm, relu_norm

from ..networks import small

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = [torch.float32, torch.float16] + ([] if INTERPRETED else [torch.bfloat16])
pytestmark = [pytest.mark.gpu, pytest.mark.interpreted]


def norm_of(d: int) -> nn.LayerNorm:
    norm = nn.LayerNorm(d)
    nn.init.normal_(norm.weight, 1.0, 0.3)
    nn.init.normal_(norm.bias)
    return norm.to(DEVICE)


def plain(kind, tensors, norm, dtype):
    """The definition by autograd, in `dtype`."""
    if kind == "add":
        Z, M, b = tensors
        return (
            torch.nn.functional.layer_norm(
                Z + M + b, norm.normalized_shape, norm.weight.to(dtype), norm.bias.to(dtype), norm.eps
            ),
        )
    Z = torch.relu(tensors[0] - 0.3)
    return Z, torch.nn.functional.layer_norm(
        Z, norm.normalized_shape, norm.weight.to(dtype), norm.bias.to(dtype), norm.eps
    )


def gradients(outputs, given, wanted):
    return torch.autograd.grad(outputs, wanted, [g.to(o.dtype) for g, o in zip(given, outputs, strict=True)])


@pytest.mark.parametrize("kind", ["add", "relu"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("b", "n", "d"), [(1, 1, 16), (2, 5, 24), (3, 7, 96), (2, 65, 384)])
def test_values_and_gradients(kind, dtype, b, n, d):
    torch.manual_seed(n)
    norm = norm_of(d)
    shapes = [(b, n, d)] * (2 if kind == "add" else 1) + ([(d,)] if kind == "add" else [])
    tensors = [torch.randn(shape, device=DEVICE).to(dtype) for shape in shapes]
    given = [torch.randn(b, n, d, device=DEVICE).to(dtype) for _ in range(1 if kind == "add" else 2)]

    def run(function, to):
        inputs = [tensor.to(to).requires_grad_() for tensor in tensors]
        weights = [norm.weight, norm.bias]
        outputs = function(inputs)
        return [*outputs, *gradients(outputs, given, [*inputs, *weights])]

    exact = run(lambda t: plain(kind, t, norm, torch.float64), torch.float64)
    torchs = run(lambda t: plain(kind, t, norm, dtype), dtype)
    ours = run(lambda t: (add_norm(*t, norm),) if kind == "add" else relu_norm(t[0], 0.3, norm), dtype)
    for mine, theirs, true in zip(ours, torchs, exact, strict=True):
        size = true.norm().clamp_min(1e-20)
        error, bar = ((x.double() - true.double()).norm() / size for x in (mine, theirs))
        assert error <= 2 * bar + 2 * torch.finfo(dtype).eps, (error, bar)


def test_two_runs_give_the_same_bits():
    norm, P = norm_of(96), torch.randn(3, 50, 96, device=DEVICE).half().requires_grad_()
    first, second = (
        torch.autograd.grad([o.sum() for o in relu_norm(P, 0.1, norm)], [P, norm.weight]) for _ in range(2)
    )
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@pytest.mark.skipif(not INTERPRETED, reason="in float32, which the network fuses nowhere else")
def test_a_networks_step_is_the_same():
    from opencrate.models.training_path import class_tokens

    model = small().train()
    images = torch.randn(3, 3, 16, 16)
    model(images).square().sum().backward()
    plain_gradients = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    logits = model.forward_head(class_tokens(model, model.embed(images)))
    torch.testing.assert_close(logits, model(images), rtol=1e-5, atol=1e-5)
    logits.square().sum().backward()
    for (name, weight), expected in zip(model.named_parameters(), plain_gradients, strict=True):
        torch.testing.assert_close(weight.grad, expected, rtol=2e-4, atol=2e-5, msg=name)


@pytest.mark.skipif(INTERPRETED, reason="CUDA's own test")
def test_a_compiled_step_on_a_gpu():
    model = small(embed_dim=64, num_heads=4).cuda().train()
    images = torch.randn(8, 3, 16, 16, device="cuda")
    found = {}
    for name, network in (("fused", model), ("compiled", torch.compile(model, fullgraph=True))):
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            network(images).float().square().mean().backward()
        found[name] = [weight.grad.clone() for weight in model.parameters()]
    for a, b in zip(*found.values(), strict=True):
        assert (a - b).norm() <= 0.05 * b.norm() + 1e-6
