"""Timing in alternation, recorded calls, peak memory, and the ceiling of a matrix product.

Variants take turns: in every round each has one window of the same length, so that a machine that slows down slows all
of them. A ratio is the median of the rounds' ratios. The clock is the host's, read when the device has finished.
"""

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Call = Callable[[], object]
Clock = Callable[[], float]

WARM_UP = 3  # calls before a graph is recorded
SIDES = {"cuda": 8192, "cpu": 2048}  # the size of the matrices whose product is the ceiling


@dataclass(frozen=True)
class Timing:
    """The seconds that a call takes, in each round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def spread(self) -> float:
        """Half the range of the rounds, relative to their median."""
        return (max(self.rounds) - min(self.rounds)) / 2 / self.median

    def times_as_fast_as(self, other: "Timing") -> float:
        """The median over the rounds of the other's time divided by this one's."""
        pairs = zip(self.rounds, other.rounds, strict=True)
        return statistics.median(theirs / ours for ours, theirs in pairs)


def device_clock(device: torch.device) -> Clock:
    def read() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return read


def alternate(
    calls: dict[str, Call], seconds: float, rounds: int, clock: Clock
) -> tuple[dict[str, Timing], dict[str, str]]:
    """Time the calls in turns: a timing for each, or the reason why there is none.

    The number of calls in a window is determined before the first round. Each round begins with another variant, and
    every second round goes backwards, so that no variant always follows the same one.
    """
    failures: dict[str, str] = {}
    numbers: dict[str, int] = {}
    measured: dict[str, list[float]] = {}
    for name, call in calls.items():
        with _catch_failure(name, failures):
            numbers[name] = _calls_in(seconds, call, clock)
    names = list(numbers)
    for turn in range(rounds):
        first = turn % max(len(names), 1)
        for name in (names[first:] + names[:first])[:: -1 if turn % 2 else 1]:
            if name not in failures:
                with _catch_failure(name, failures):
                    measured.setdefault(name, []).append(_window(calls[name], numbers[name], clock))
    return {name: Timing(tuple(measured[name])) for name in names if name not in failures}, failures


def _window(call: Call, number: int, clock: Clock) -> float:
    begin = clock()
    for _ in range(number):
        call()
    return (clock() - begin) / number


def _calls_in(seconds: float, call: Call, clock: Clock) -> int:
    """The number of calls that take that long; measuring it is the warm-up."""
    call()
    number, spent = 1, _window(call, 1, clock)
    while number * spent < seconds / 4:
        number *= 4
        spent = _window(call, number, clock)
    return max(1, round(seconds / spent))


@contextmanager
def _catch_failure(name: str, failures: dict[str, str]) -> Iterator[None]:
    """Keep the reason of an error, and go on with the other variants."""
    try:
        yield
    except Exception as error:  # compilers, drivers and allocators raise many kinds
        failures[name] = failure_reason(error)


def failure_reason(error: BaseException) -> str:
    """A few words on why a variant has no result."""
    text = str(error)
    memory = ("out of memory", "not enough memory")  # the compiler and the CPU allocator raise other classes
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in text.lower() for words in memory):
        return "out of memory"
    if "InvalidCxxCompiler" in text or "No working C++ compiler" in text:
        return "torch.compile finds no C++ compiler"
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"[:100].rstrip(": ")


def record_graph(call: Call) -> Call:
    """The call as a CUDA graph, a single launch. It reads and writes the memory with which it was recorded."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph.replay


def release_memory(device: torch.device) -> None:
    """Free unused memory, so that the peak of a call can be measured."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc keeps freed memory otherwise
        if trim is not None:
            trim(0)


def peak_memory(call: Call, device: torch.device) -> int | None:
    """Bytes that a call allocates at its peak; None where the system does not report it."""
    call()
    release_memory(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    try:
        before = _process_memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        call()
        return max(0, _process_memory("VmHWM") - before)
    except (OSError, KeyError):
        return None


def _process_memory(field: str) -> int:
    """Bytes of a field of /proc/self/status: VmRSS is held now, VmHWM is the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)[field].split()[0]) * 1024


def matrix_product(device: torch.device, precision: str) -> tuple[Call, int]:
    """A large matrix product of random numbers, which shows what the device can do, and its number of operations."""
    side = SIDES[device.type]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b, c = (torch.randn(side, side, device=device).to(dtype) for _ in range(3))
    return lambda: torch.mm(a, b, out=c), 2 * side**3
