"""The random generators of a process: Python's, NumPy's and torch's are seeded, saved and restored together."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_process(*key: int) -> None:
    """Seed every random generator of this process and of its devices with the key."""
    _seed(torch.manual_seed, key)


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """A context in which the generators of the host are seeded with the key; afterwards they are as before."""
    before = random_states()
    _seed(torch.default_generator.manual_seed, key)
    try:
        yield
    finally:
        restore_random_states(before)


def _seed(seed_torch: Any, key: tuple[int, ...]) -> None:
    for_python, for_numpy, for_torch = np.random.SeedSequence(key).generate_state(3).tolist()
    random.seed(for_python)
    np.random.seed(for_numpy)
    seed_torch(for_torch)


def random_states(device: torch.device | None = None) -> dict[str, Any]:
    """The states of every random generator of this process, and of a CUDA device, as plain values."""
    name, keys, position, has_gauss, gauss = np.random.get_state()
    state = {
        "python": random.getstate(),
        "numpy": (str(name), torch.from_numpy(np.array(keys, dtype=np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
    }
    if device is not None and device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_states(state: dict[str, Any], device: torch.device | None = None) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if device is not None and device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
