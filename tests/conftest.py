import pytest
import torch
from hypothesis import settings

settings.register_profile("opencrate", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("opencrate")


@pytest.fixture
def rng() -> torch.Generator:
    """Random numbers that are the same in every run."""
    return torch.Generator().manual_seed(0)
