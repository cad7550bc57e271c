import pytest
import timm
import torch

from benchmarks.variants import count_parameters, nearest_vit

from ..strategies import random
from .families import SmallFamily


@pytest.mark.parametrize(
    ("size", "vit"), [("tiny", "vit_tiny"), ("small", "vit_small"), ("base", "vit_small"), ("large", "vit_base")]
)
def test_the_nearest_vit(size, vit):
    model = timm.create_model(f"crate_{size}_patch16_224", device="meta")
    assert nearest_vit(count_parameters(model)) == f"{vit}_patch16_224"


def test_all_crates_of_a_family_are_one_network():
    family, images = SmallFamily(), random(2, 3, 32, 32)
    networks = {name: family.build(name, torch.float64).eval() for name in ("pseudocode", "folded")}
    expected = family.build("opencrate", torch.float64).eval()(images)
    for name, network in networks.items():
        # a folded network's weights were rounded to float32, as its build is
        torch.testing.assert_close(network(images), expected, rtol=0, atol=1e-5 if name == "folded" else 1e-12)


def test_what_starts_as_ones_and_zeros_is_moved():
    family = SmallFamily()
    for network in (family.crate, family.vit):
        assert all(weight.std() > 0.05 for weight in network.parameters() if weight.dim() == 1)
