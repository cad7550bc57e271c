"""One thread for tests that compute in small pieces: a conftest.py that imports the fixture has it for its folder."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
