"""Random inputs for the tests: tokens, subspaces and dictionaries, in float64 unless told otherwise."""

import torch
from hypothesis import strategies as st
from torch import Tensor

seeds = st.integers(0, 2**31 - 1)
# Fewer tokens than dimensions, as many, and more.
token_shapes = st.tuples(st.integers(1, 9), st.integers(1, 9))
precisions = st.sampled_from([0.1, 0.5, 1.0, 2.0])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=dtype)


def orthonormal(*shape: int, seed: int = 0) -> Tensor:
    """(…, d, p) with orthonormal columns."""
    return torch.linalg.qr(random(*shape, seed=seed)).Q


def subspaces(k: int, d: int, p: int, seed: int = 0) -> Tensor:
    """K orthonormal bases; where K·p ≤ d they are orthogonal to one another too, so that K·p = d covers the space."""
    if k * p > d:
        return orthonormal(k, d, p, seed=seed)
    return orthonormal(d, k * p, seed=seed).unflatten(1, (k, p)).transpose(0, 1)


def unit_tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.nn.functional.normalize(random(*shape, seed=seed), dim=-1)
