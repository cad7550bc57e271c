"""Compilers and exporters; they read the code as it is, so these tests run without the shape-checking hook."""

import shutil

import pytest
import torch

from opencrate.operators import compressions, sparsifications

from ..networks import own, small
from ..strategies import random

pytestmark = pytest.mark.unhooked
# Inductor needs a C++ compiler; in float64 torch 2.11's cannot differentiate its own fused attention on the CPU.
BACKENDS = [("aot_eager", torch.float64, 1e-10)]
if shutil.which("g++") or shutil.which("clang++"):
    BACKENDS.append(pytest.param("inductor", torch.float32, 1e-4, marks=pytest.mark.slow))


@pytest.fixture(autouse=True)
def forget_other_graphs():
    """Dynamo counts recompilations by code, and the networks of all tests share theirs."""
    torch._dynamo.reset()


@pytest.mark.parametrize(("backend", "dtype", "tolerance"), BACKENDS)
def test_compiles_as_one_graph(backend, dtype, tolerance):
    """The same logits and gradients, by the size of their difference relative to their own."""
    model, images = small(dtype=dtype).train(), random(2, 3, 16, 16, dtype=dtype)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    weights = list(model.parameters())
    for ours, truth in zip(
        (compiled(images), *torch.autograd.grad(compiled(images).square().sum(), weights)),
        (model(images), *torch.autograd.grad(model(images).square().sum(), weights)),
        strict=True,
    ):
        assert (ours - truth).norm() <= tolerance * truth.norm()


@pytest.mark.parametrize(
    "half",
    [*({"compress": name} for name in own(compressions)), *({"sparsify": name} for name in own(sparsifications))],
    ids=str,
)
def test_every_operator_compiles_as_one_graph(half):
    model, images = small(**half, depth=1), torch.randn(2, 3, 16, 16)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), model(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "arguments", [{}, {"dynamic_img_size": True}, {"compress": "mssa_tied", "sparsify": "prox_mm"}]
)
def test_exports_with_any_batch(arguments):
    model = small(**arguments)
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(model, (torch.randn(2, 3, 16, 16),), dynamic_shapes=({0: batch},))
    images = torch.randn(5, 3, 16, 16)
    torch.testing.assert_close(exported.module()(images), model(images), rtol=1e-5, atol=1e-5)


def test_symbolic_tracing():
    model, images = small(), torch.randn(2, 3, 16, 16)
    expected = model.forward_head(model.forward_features(images))
    assert torch.equal(torch.fx.symbolic_trace(model)(images), expected)


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_onnx_gives_the_same_logits(tmp_path, pool):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, file = small(global_pool=pool), tmp_path / "model.onnx"
    batch = torch.export.Dim("batch", min=1, max=64)
    torch.onnx.export(
        model, (torch.randn(2, 3, 16, 16),), file, dynamo=True, dynamic_shapes=({0: batch},), input_names=["images"]
    )
    images = torch.randn(5, 3, 16, 16)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"images": images.numpy()})
    torch.testing.assert_close(torch.from_numpy(logits), model(images), rtol=1e-4, atol=1e-4)
