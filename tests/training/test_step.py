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


def test_the_scale_of_fp16_is_adapted():
    """Halved by a gradient that is not finite, whose step is skipped, and raised again by others."""
    network = small()
    optimizer, before = torch.optim.SGD(network.parameters(), 1e-3), network.layers[0].U.detach().clone()
    stepper = Stepper(
        network, optimizer, Classification(5), Split(2), World(0, 1, torch.device("cpu")), precision="fp16"
    )
    stepper.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=1)
    batch = torch.randn(2, 3, 16, 16), torch.tensor([1, 2])
    stepper.step(iter([batch]), 0)
    assert stepper.scaler.get_scale() == 2.0**39
    assert torch.equal(network.layers[0].U, before)
    stepper.scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=1)
    stepper.step(iter([batch]), 1)
    assert stepper.scaler.get_scale() == 4.0
    assert not torch.equal(network.layers[0].U, before)


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
