import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import timing
from benchmarks.timing import Timing, alternate, failure_reason, matrix_product, peak_memory


class Machine:
    """A clock that only calls move, each by its own time; `slow` makes the machine slower with every window."""

    def __init__(self, slow: float = 1.0) -> None:
        self.now, self.slow, self.factor, self.order = 0.0, slow, 1.0, ""

    def clock(self) -> float:
        return self.now

    def call(self, name: str, seconds: float):
        def run() -> None:
            self.now += seconds * self.factor
            self.order += name

        return run


def test_median_spread_and_ratio():
    ours, theirs = Timing((1.0, 2.0, 4.0)), Timing((3.0, 4.0, 4.0))
    assert (ours.median, ours.spread) == (2.0, 0.75)
    assert ours.times_as_fast_as(theirs) == 2.0  # of 3, 2 and 1
    assert ours.times_as_fast_as(ours) == 1.0


def test_variants_take_turns_and_each_begins_a_round():
    machine = Machine()
    calls = {name: machine.call(name, 1.0) for name in "abc"}
    timings, failures = alternate(calls, 1.0, 4, machine.clock)
    assert failures == {}
    assert machine.order == "aabbcc" + "abc" + "acb" + "cab" + "cba"  # two calls each to warm up
    assert timings["a"].rounds == (1.0,) * 4


def test_a_window_holds_as_many_calls_as_last_that_long():
    machine = Machine()
    timings, _ = alternate({"a": machine.call("a", 0.01)}, 1.0, 1, machine.clock)
    assert timings["a"].median == pytest.approx(0.01)
    warm_up = 1 + 1 + 4 + 16 + 64
    assert len(machine.order) == warm_up + 100


def test_a_machine_that_slows_down_does_not_change_a_ratio():
    machine = Machine()
    slow, fast = machine.call("s", 2.0), machine.call("f", 1.0)

    def fast_then_tired() -> None:
        fast()
        machine.factor *= 1.1

    timings, _ = alternate({"slow": slow, "fast": fast_then_tired}, 0.1, 9, machine.clock)
    assert timings["fast"].rounds[-1] > 2 * timings["fast"].rounds[0]
    assert timings["fast"].times_as_fast_as(timings["slow"]) == pytest.approx(2.0, rel=0.1)


def test_a_call_that_fails_is_left_out():
    machine = Machine()

    def failing() -> None:
        machine.now += 1.0
        if machine.now > 4:
            raise RuntimeError("\n\nit broke\nin detail")

    timings, failures = alternate({"a": failing, "b": machine.call("b", 1.0)}, 1.0, 3, machine.clock)
    assert failures == {"a": "RuntimeError: it broke"}
    assert timings.keys() == {"b"}
    assert alternate({}, 1.0, 3, machine.clock) == ({}, {})


def test_reasons_in_a_few_words():
    assert failure_reason(torch.OutOfMemoryError("CUDA out of memory. Tried …")) == "out of memory"
    assert failure_reason(RuntimeError("DefaultCPUAllocator: not enough memory: you tried …")) == "out of memory"
    compiler = "InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')"
    assert (
        failure_reason(RuntimeError(f"backend='inductor' raised:\n{compiler}")) == "torch.compile finds no C++ compiler"
    )
    assert len(failure_reason(ValueError("x" * 1000))) <= 100


def test_peak_memory_of_a_call():
    taken = peak_memory(lambda: torch.ones(64 * 2**20).sum(), torch.device("cpu"))  # 256 MiB of float32
    if taken is None:
        pytest.skip("this system does not tell")
    assert 250 * 2**20 < taken < 300 * 2**20


def test_the_ceiling_is_a_matrix_product(monkeypatch):
    monkeypatch.setitem(timing.SIDES, "cpu", 64)
    product, operations = matrix_product(torch.device("cpu"), "fp32")
    with FlopCounterMode(display=False) as counter:
        product()
    assert counter.get_total_flops() == operations == 2 * 64**3
