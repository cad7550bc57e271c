"""How much memory this process has, as Linux tells."""

import gc
import re
from collections.abc import Callable
from pathlib import Path

import pytest

STATUS = Path("/proc/self/status")


def resident(what: str = "VmRSS") -> int:
    """Bytes in memory now, or with VmHWM the most there were."""
    if not STATUS.exists():
        pytest.skip("only Linux tells a process's memory in /proc")
    gc.collect()
    return 1024 * int(re.search(rf"{what}:\s+(\d+) kB", STATUS.read_text())[1])


def peak_growth(work: Callable[[], object]) -> int:
    """How far the memory rises while this works, in bytes."""
    before = resident()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    except OSError:
        pytest.skip("the peak of memory cannot be set back here")
    work()
    return resident("VmHWM") - before
