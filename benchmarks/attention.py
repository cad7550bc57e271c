"""Attention alone: how the cost of softmax(scale · V_k V_kᵀ) V_k grows with the number of tokens n, by `attend`.

The sweep keeps batch · n fixed, so that what grows is the cost of a token. Tensors are (b, n, k, p), as in the network.
The first heads of the first picture are compared with float64, where their n × n maps fit into memory. An
implementation with a much larger error than the plain matrix form in the same precision is not timed. On a GPU calls
are recorded as CUDA graphs, so that the time of launches is not measured.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opencrate.operators.attention import attend

from .agreement import is_close, relative_error
from .timing import Call, Timing, alternate, device_clock, failure_reason, record_graph, release_memory

IMPLEMENTATIONS = {"kernel": "symmetric", "sdpa": "sdpa", "plain": "reference"}
INPUTS = 3  # used in turns
SPREAD = 0.75  # standard deviation of V: a token attends neither to itself alone nor to all equally
CHECKED_HEADS = 2  # at most
COPIES = 6  # copies of the n × n maps that the plain form holds at its peak

NETWORK_SHAPES = ((512, 197, 12, 64), (512, 197, 6, 64), (512, 65, 6, 64), (64, 1025, 12, 64), (16, 4097, 12, 64))


class Shape(NamedTuple):
    """Pictures, tokens, heads, and the dimension of a head."""

    b: int
    n: int
    k: int
    p: int


@dataclass
class Measured:
    """The result of one implementation at one shape."""

    implementation: str
    status: str = "measured"  # or: disagrees, failed, left out
    why: str = ""
    output_error: float | None = None
    gradient_error: float | None = None
    same_bits: bool | None = None  # whether two runs give the same bits


def shapes_for(cuda: bool, quick: bool) -> list[tuple[str, Shape]]:
    """(kind, shape): the shapes of networks, with smaller batches on a CPU, and the sweep."""
    fewer = 1 if cuda else 64
    networks = [Shape(max(1, b // fewer), n, k, p) for b, n, k, p in NETWORK_SHAPES]
    tokens, heads = (65_536, 12) if cuda else (16_384, 1)
    sweep = [Shape(tokens // 2**i, 2**i, heads, 64) for i in range(6, 15)]
    if quick:
        networks, sweep = networks[1:3], [Shape(1024 // 2**i, 2**i, 2, 64) for i in range(6, 11)]
    return [("network", shape) for shape in networks] + [("sweep", shape) for shape in sweep]


def measure_attention(
    kind: str, shape: Shape, device: torch.device, precision: str, tolerance: float, seconds: float, rounds: int
) -> dict[str, Any]:
    """Errors, reproducibility, and milliseconds of forward and of forward and backward, for every implementation."""
    inputs = _Inputs(shape, device, precision)
    rows = {name: Measured(name) for name in IMPLEMENTATIONS}
    _check(rows, inputs, precision, tolerance)
    timings: dict[str, dict[str, Timing]] = {name: {} for name in rows}
    for what, backward in (("forward", False), ("forward_backward", True)):
        calls = {}
        for name, row in rows.items():
            if row.status == "measured":
                try:
                    calls[name] = inputs.call(IMPLEMENTATIONS[name], backward)
                except Exception as error:  # compilers, drivers and allocators raise many kinds
                    row.status, row.why = "failed", failure_reason(error)
        measured, failures = alternate(calls, seconds, rounds, device_clock(device))
        for name, timing in measured.items():
            timings[name][what] = timing
        for name, why in failures.items():
            rows[name].status, rows[name].why = "failed", why
        calls.clear()
        release_memory(device)
    return {
        "kind": kind,
        **shape._asdict(),
        "rows": [asdict(row) | {"timings": _as_json(row, timings)} for row in rows.values()],
    }


class _Inputs:
    """Random V and gradients of the output, several of each."""

    def __init__(self, shape: Shape, device: torch.device, precision: str) -> None:
        generator = torch.Generator(device).manual_seed(0)
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32

        def drawn() -> Tensor:
            return torch.randn(*shape, generator=generator, device=device).to(dtype)

        self.shape, self.device, self.scale = shape, device, shape.p**-0.5
        self.pairs = [((SPREAD * drawn()).requires_grad_(), drawn()) for _ in range(INPUTS)]

    def attend(self, V: Tensor, attention: str) -> Tensor:
        return attend(V, self.scale, attention=attention)

    def gradient(self, pair: tuple[Tensor, Tensor], attention: str) -> tuple[Tensor, Tensor]:
        output = self.attend(pair[0], attention)
        (gradient,) = torch.autograd.grad(output, pair[0], pair[1])
        return output.detach(), gradient

    def results(self, attention: str, heads: int, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """Output and gradient of the first picture's first heads, computed by themselves."""
        V, dO = (tensor.detach()[:1, :, :heads].contiguous() for tensor in self.pairs[0])
        if dtype is not None:
            V, dO = V.to(dtype), dO.to(dtype)
        return self.gradient((V.requires_grad_(), dO), attention)

    def call(self, attention: str, backward: bool) -> Call:
        """One pass over all inputs."""

        def forward() -> None:
            with torch.no_grad():
                for V, _ in self.pairs:
                    self.attend(V, attention)

        def forward_backward() -> None:
            for pair in self.pairs:
                self.gradient(pair, attention)

        call = forward_backward if backward else forward
        return record_graph(call) if self.device.type == "cuda" else call

    def obstacle(self, attention: str) -> str:
        """Why an implementation cannot run here; empty if it can."""
        if attention == "symmetric" and self.device.type != "cuda":
            return "needs a GPU"
        maps = self.shape.b * self.shape.k * self.shape.n**2 * self.pairs[0][0].element_size()
        if attention == "reference" and COPIES * maps > _memory(self.device) / 2:
            return "its n × n maps do not fit"
        return ""


def _memory(device: torch.device) -> int:
    """Bytes that may be used; on a CPU a fixed amount, because more would take too long."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 4 * 2**30


def _check(rows: dict[str, Measured], inputs: _Inputs, precision: str, tolerance: float) -> None:
    """Compare as many heads as fit with float64, and two runs with each other."""
    heads = min(CHECKED_HEADS, _memory(inputs.device) // 4 // (COPIES * 8 * inputs.shape.n**2))
    exact, plain = [], []
    if heads:
        exact = list(inputs.results("reference", heads, torch.float64))
        plain = [relative_error(*pair) for pair in zip(inputs.results("reference", heads), exact, strict=True)]
    for row in rows.values():
        attention = IMPLEMENTATIONS[row.implementation]
        row.why = inputs.obstacle(attention)
        if row.why:
            row.status = "left out"
            continue
        try:
            results, again = (inputs.gradient(inputs.pairs[0], attention) for _ in range(2))
        except Exception as error:  # compilers, drivers and allocators raise many kinds
            row.status, row.why = "failed", failure_reason(error)
            continue
        row.same_bits = all(torch.equal(one, other) for one, other in zip(results, again, strict=True))
        if not heads:
            continue
        errors = [relative_error(ours[:1, :, :heads], right) for ours, right in zip(results, exact, strict=True)]
        row.output_error, row.gradient_error = (off if math.isfinite(off) else None for off in errors)
        for off, allowed in zip(errors, plain, strict=True):
            if not is_close(off, allowed, tolerance, precision):
                row.status, row.why = "disagrees", f"disagrees (error {off:.1e}, plain {allowed:.1e})"


def _as_json(row: Measured, timings: dict[str, dict[str, Timing]]) -> dict[str, Any]:
    if row.status != "measured":
        return {}
    return {
        what: {
            "ms": timing.median / INPUTS * 1e3,
            "spread": timing.spread,
            "times_as_fast_as": {
                name: timing.times_as_fast_as(timings[name][what])
                for name in ("sdpa", "plain")
                if what in timings[name]
            },
        }
        for what, timing in timings[row.implementation].items()
    }
