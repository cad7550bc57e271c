"""The network and the photos that come with the package."""

import re
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from PIL import Image
from torchvision.transforms import functional as F

import opencrate
from opencrate.shipped import NETWORK, PHOTOS


@pytest.fixture(scope="module")
def network():
    return opencrate.load(NETWORK).float().eval()


def test_it_is_small_and_for_cifar10(network):
    assert (NETWORK / "model.safetensors").stat().st_size < 25e6
    assert sum(weight.numel() for weight in network.parameters()) == 5_381_098
    assert network.pretrained_cfg["label_names"][3] == "cat"


@pytest.mark.parametrize(("photo", "name"), [("01_cat", "cat"), ("07_cat_face", "cat"), ("02_horse", "horse")])
def test_it_knows_what_it_was_trained_for(network, photo, name):
    picture = Image.open(PHOTOS / f"{photo}.jpg").resize((32, 32), Image.Resampling.BICUBIC)
    record = network.pretrained_cfg
    image = F.normalize(F.to_tensor(picture), record["mean"], record["std"])[None]
    with torch.inference_mode():
        assert record["label_names"][network(image).argmax()] == name


def test_every_layer_leaves_fewer_entries(network):
    """The paper's effect, on photos that it was not trained for."""
    pictures = [F.to_tensor(Image.open(file).resize((32, 32))) for file in sorted(PHOTOS.glob("*.jpg"))]
    table = opencrate.layerwise(network, torch.stack(pictures).sub(0.47).div(0.25), "unit")
    left = [row["nonzero"] for row in table.rows]
    assert left[0] > 0.4
    assert left[-1] < 0.1
    assert max(after - before for before, after in pairwise(left)) < 0.03
    assert table.rows[-1]["Rc"] < 0.6 * table.rows[0]["Rc"]


def test_every_photo_has_its_licence():
    table = (PHOTOS.parent / "README.md").read_text(encoding="utf-8").split("| photos |")[1]
    named = [cell.strip(" …") for line in table.splitlines()[2:] for cell in line.split("|")[1].split(",")]
    for file in PHOTOS.iterdir():
        assert any(file.stem[3:].startswith(name) for name in named), file


def test_it_is_the_default():
    command = [sys.executable, "-m", "opencrate", "audit", "--samples", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "no checkpoint was given, so this is the network that comes with opencrate" in done.stderr
    assert done.stdout.startswith("audit of 2 pictures, ε = 0.1")
    assert len(re.findall(r"^ +\d+   too few", done.stdout, re.MULTILINE)) == 12
