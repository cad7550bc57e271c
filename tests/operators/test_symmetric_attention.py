"""The fused kernel against its definition in float64: on CPU by Triton's interpreter, on a GPU in every precision.

TRITON_INTERPRET=1 pytest -m interpreted        pytest -m gpu
"""

import math
import os

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from opencrate.operators.attention import LARGE, attend, attention_maps
from opencrate.operators.kernels.symmetric_attention import symmetric_attention

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's own switch, which must be set before it is imported
DEVICE = "cpu" if INTERPRETED else "cuda"
# the interpreter does not know bfloat16
DTYPES = [torch.float32, torch.float16] + ([] if INTERPRETED else [torch.bfloat16])

on_gpu = pytest.mark.gpu
pytestmark = [
    # torch's own attention and cuBLAS say that they are not deterministic, which the fixture below asks of everybody
    pytest.mark.filterwarnings("ignore:.*deterministic:UserWarning"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS, but there was no current CUDA context:UserWarning"),
]


@pytest.fixture(autouse=True)
def unset_memory_is_nan():
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)  # what is not written stays NaN, and is found
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def tokens(n: int, p: int, dtype: torch.dtype, b: int = 1, k: int = 2, size: float = 1.0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(n * 1000 + p)
    norms = torch.linspace(0.5, 1.5, n).view(1, n, 1, 1)  # so that rows differ in their normalisers
    V, dO = (torch.randn(b, n, k, p, generator=draw) for _ in range(2))
    return (size * norms * V).to(DEVICE, dtype), dO.to(DEVICE, dtype)


def plain(V: Tensor, scale: float, causal: bool) -> Tensor:
    """The definition, as PyTorch computes it in V's precision."""
    heads = V.transpose(1, 2)
    if not causal:
        return (attention_maps(heads, scale) @ heads).transpose(1, 2)
    future = torch.ones(V.shape[1], V.shape[1], dtype=torch.bool, device=V.device).triu(1)
    maps = (scale * heads @ heads.mT).masked_fill(future, -math.inf).softmax(-1)
    return (maps @ heads).transpose(1, 2)


def with_gradient(function, V: Tensor, dO: Tensor, *arguments) -> tuple[Tensor, Tensor]:
    V = V.detach().requires_grad_()
    O = function(V, *arguments)
    return O.detach(), torch.autograd.grad(O, V, dO)[0]


def errors(found: tuple[Tensor, Tensor], exact: tuple[Tensor, Tensor]) -> list[float]:
    return [float((a.double() - b).norm() / b.norm().clamp_min(1e-30)) for a, b in zip(found, exact, strict=True)]


def require_close(V: Tensor, dO: Tensor, scale: float, causal: bool, fused: bool = False) -> None:
    """Within twice the error of plain PyTorch in this precision, or three times that of torch's fused attention: that
    finds dS from ⟨dO_i, O_i⟩ as ours does, which costs digits where an attention map is near the identity."""
    exact = with_gradient(plain, V.double(), dO.double(), scale, causal)
    ours = errors(with_gradient(symmetric_attention, V, dO, scale, causal), exact)
    torchs = errors(with_gradient(plain, V, dO, scale, causal), exact)
    if fused:
        by_sdpa = errors(with_gradient(lambda V: attend(V, scale, attention="sdpa"), V, dO), exact)
        torchs = [max(a, 1.5 * b) for a, b in zip(torchs, by_sdpa, strict=True)]
    for found, allowed in zip(ours, torchs, strict=True):
        assert found <= 2 * allowed + torch.finfo(V.dtype).eps, (ours, torchs)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [16, 48, 64])
@pytest.mark.parametrize("n", [*(pytest.param(n, marks=pytest.mark.interpreted) for n in (1, 63, 65)), 197, 257])
@pytest.mark.gpu
def test_outputs_and_gradients(n, p, dtype, causal):
    require_close(*tokens(n, p, dtype), p**-0.5, causal)


@pytest.mark.parametrize(("n", "p"), [(33, 80), (130, 128), (64, 24), (192, 32), (255, 64), (40, 33)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.gpu
@pytest.mark.interpreted
def test_other_head_sizes_and_lengths(n, p, dtype):
    require_close(*tokens(n, p, dtype, b=2, k=1), 0.7 * p**-0.5, False, fused=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.gpu
@pytest.mark.interpreted
def test_logits_that_differ_by_hundreds(dtype):
    require_close(*tokens(70, 64, dtype, size=6.0), 64**-0.5, False, fused=True)


@pytest.mark.gpu
@pytest.mark.interpreted
def test_no_token_no_picture_and_other_strides():
    assert symmetric_attention(torch.zeros(0, 5, 2, 16, device=DEVICE), 1.0).shape == (0, 5, 2, 16)
    V, dO = tokens(40, 16, torch.float32, k=4)
    strided = V.transpose(1, 2).contiguous().transpose(1, 2)  # the same numbers, heads before tokens in memory
    ours, others = (with_gradient(symmetric_attention, tensor, dO, 0.25) for tensor in (V, strided))
    for a, b in zip(ours, others, strict=True):
        assert torch.equal(a, b)


@pytest.mark.gpu
@pytest.mark.interpreted
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # opcheck's own
def test_the_operator_is_registered_as_torch_wants_it():
    V, dO = tokens(17, 16, torch.float32)
    O, L = torch.ops.opencrate.symmetric_attention(V, 0.25, False)
    for causal in (False, True):
        torch.library.opcheck(torch.ops.opencrate.symmetric_attention.default, (V, 0.25, causal))
        arguments = (V.detach().clone().requires_grad_(), 0.25, causal)
        torch.library.opcheck(torch.ops.opencrate.symmetric_attention.default, arguments)
    torch.library.opcheck(torch.ops.opencrate.symmetric_attention_backward.default, (dO, V, O, L, 0.25, False))


@pytest.mark.gpu
@pytest.mark.interpreted
def test_two_runs_give_the_same_bits_also_when_recomputed():
    V, dO = tokens(197, 64, torch.float16)
    first, second = (with_gradient(symmetric_attention, V, dO, 0.125) for _ in range(2))
    again = with_gradient(lambda V: checkpoint(symmetric_attention, V, 0.125, use_reentrant=False), V, dO)
    for a, b, c in zip(first, second, again, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


@on_gpu
@pytest.mark.parametrize(("n", "k"), [(197, 12), (197, 6), (65, 6), (1025, 12)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_at_least_as_right_as_torchs_attention(n, k, dtype):
    V, dO = tokens(n, 64, dtype, b=2, k=k)
    exact = with_gradient(plain, V.double(), dO.double(), 0.125, False)
    ours = errors(with_gradient(symmetric_attention, V, dO, 0.125), exact)
    torchs = errors(with_gradient(lambda V: attend(V, 0.125, attention="sdpa"), V, dO), exact)
    assert ours[0] <= 1.05 * torchs[0]
    assert ours[1] <= torchs[1]


@on_gpu
def test_compiled_whole_and_exported():
    V, dO = tokens(197, 64, torch.bfloat16, b=2)

    class Attention(torch.nn.Module):
        def forward(self, V: Tensor) -> Tensor:
            return attend(V, 0.125, attention="symmetric")

    compiled = torch.compile(Attention(), fullgraph=True)
    for a, b in zip(with_gradient(compiled, V, dO), with_gradient(Attention(), V, dO), strict=True):
        assert torch.equal(a, b)
    exported = torch.export.export(Attention(), (V,)).module()
    assert torch.equal(exported(V), Attention()(V))


@on_gpu
def test_chosen_on_a_gpu_in_half_precision_and_recordable():
    V, _ = tokens(197, 64, torch.bfloat16, b=96, k=4)
    assert V.numel() >= LARGE
    assert torch.equal(attend(V, 0.125), symmetric_attention(V, 0.125))
    assert torch.equal(attend(V[:1], 0.125), attend(V[:1], 0.125, attention="sdpa"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        O = attend(V, 0.125)
    graph.replay()
    assert torch.equal(O, symmetric_attention(V, 0.125))


@pytest.mark.skipif(INTERPRETED, reason="the interpreter runs the kernel on CPU")
def test_refused_in_one_sentence():
    V = torch.zeros(1, 3, 2, 16)
    with pytest.raises(ValueError, match="kernel runs on CUDA, not on cpu"):
        attend(V, attention="symmetric")
    with pytest.raises(ValueError, match="has no dropout"):
        attend(V, dropout=0.1, attention="symmetric")
    with pytest.raises(ValueError, match="did you mean 'symmetric'"):
        attend(V, attention="symetric")
    with pytest.raises(ValueError, match="p = 130 in float32"):
        symmetric_attention(torch.zeros(1, 3, 2, 130), 1.0)
    with pytest.raises(ValueError, match="p = 16 in float64"):
        symmetric_attention(V.double(), 1.0)
    with pytest.raises(ValueError, match=r"axes \(batch, token, head, p\)"):
        symmetric_attention(V[0], 1.0)


@pytest.mark.parametrize("attention", ["auto", "sdpa", "reference"])
@pytest.mark.parametrize("queries", [None, 1, 2])
def test_every_way_gives_the_definition(attention, queries):
    V = torch.randn(2, 5, 7, 3, 4, dtype=torch.float64)  # more axes before the tokens
    heads = V.transpose(-3, -2)
    exact = (attention_maps(heads, 0.3) @ heads).transpose(-3, -2)[..., :queries, :, :]
    torch.testing.assert_close(attend(V, 0.3, attention=attention, queries=queries), exact, rtol=1e-12, atol=1e-12)
