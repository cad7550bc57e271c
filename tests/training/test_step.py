"""Which steps are recorded as CUDA graphs: decided when a run is built, before there is anything on the device."""

import pytest
import torch

from opencrate.data import Split
from opencrate.distributed import World
from opencrate.recipes import Objective
from opencrate.tasks import Classification
from opencrate.tasks.regularised import RegularisedNetwork
from opencrate.training import step
from opencrate.training.step import Stepper
from tests.networks import small


def is_recorded(network, monkeypatch, device="cuda", world=1, **options):
    monkeypatch.setattr(step, "_GraphedPass", lambda stepper: "recorded")
    optimizer, place = torch.optim.SGD(network.parameters()), World(0, world, torch.device(device))
    options = {"graphs": True, **options}
    return Stepper(network, optimizer, Classification(5), Split(2), place, **options).passes == "recorded"


@pytest.mark.filterwarnings("ignore:.*CUDA is not available:UserWarning")
def test_steps_that_are_recorded(monkeypatch):
    assert is_recorded(small(), monkeypatch)
    assert is_recorded(small(), monkeypatch, precision="bf16")
    assert is_recorded(RegularisedNetwork(small(), Objective(orthogonal_U=0.1)), monkeypatch)
    assert not is_recorded(RegularisedNetwork(small(), Objective(0.3, (1,))), monkeypatch)
    assert not is_recorded(small(compress="gradient_step"), monkeypatch)
    assert not is_recorded(small(), monkeypatch, precision="fp16")
    assert not is_recorded(small(), monkeypatch, world=2)
    assert not is_recorded(small(), monkeypatch, device="cpu")
    assert not is_recorded(small(), monkeypatch, graphs=False)
