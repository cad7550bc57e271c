"""On a CUDA device: graphs, compilation, half precision, running out of memory, and going on."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from opencrate.data import Dataset
from opencrate.data.datasets.packing import pack
from opencrate.data.datasets.pictures import Folder
from opencrate.training import Options, train
from tests.runs import interrupted_at, losses, metrics, small_recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.unhooked,
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),  # true float32 is what these tests want
]


def options(folder, **changes):
    plain = Options(out=folder, device="cuda", compile="off", graphs="off", log_steps=1, tensorboard=False, workers=0)
    return replace(plain, **changes)


@pytest.fixture(scope="module")
def eager(tmp_path_factory):
    folder = tmp_path_factory.mktemp("eager")
    train(small_recipe(), options(folder))
    return losses(folder)


@pytest.mark.parametrize("micro_batch", [144, 36])
def test_graphs_give_the_losses_of_single_kernels(tmp_path, eager, micro_batch):
    train(small_recipe(), options(tmp_path, graphs="on", micro_batch=micro_batch))
    assert losses(tmp_path) == pytest.approx(eager, abs=1e-4, rel=0)


@pytest.mark.parametrize("graphs", ["on", "off"])
def test_compiled_layers_give_the_losses_of_eager_ones(tmp_path, eager, graphs):
    train(small_recipe(), options(tmp_path, compile="on", graphs=graphs))
    assert losses(tmp_path) == pytest.approx(eager, abs=1e-4, rel=0)


def test_an_operator_that_looks_at_values_is_not_recorded(tmp_path):
    recipe = small_recipe()
    recipe = replace(recipe, model=replace(recipe.model, compress="gradient_step"))
    train(recipe, options(tmp_path, graphs="on"))
    assert len(losses(tmp_path)) == 27


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_follows_single(tmp_path, eager, precision):
    train(small_recipe(precision=precision, optim={"clip": 1.0, "ema": 0.9}), options(tmp_path / "a"))
    train(small_recipe(optim={"clip": 1.0, "ema": 0.9}), options(tmp_path / "b"))
    assert losses(tmp_path / "a") == pytest.approx(losses(tmp_path / "b"), abs=0.05, rel=0)


def test_a_graphed_run_goes_on(tmp_path, eager, monkeypatch):
    with interrupted_at(13, monkeypatch):
        train(small_recipe(), options(tmp_path, graphs="on"))
    train(small_recipe(), options(tmp_path, graphs="on"))
    assert [line["step"] for line in metrics(tmp_path, "train")] == list(range(1, 28))
    assert losses(tmp_path) == pytest.approx(eager, abs=1e-4, rel=0)


def test_out_of_memory_names_the_micro_batch_to_lower(tmp_path):
    large = small_recipe(optim={"batch": 1400})
    large = replace(large, model=replace(large.model, embed_dim=2048, num_heads=32, depth=8))
    torch.cuda.set_per_process_memory_fraction(0.01)
    try:
        with pytest.raises(
            ValueError, match=r"out of memory with a micro-batch of 1400 on cuda:0: .*--micro-batch 700"
        ):
            train(large, options(tmp_path, micro_batch=1400))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Three classes of coloured noise, as folders and packed."""
    root, draw = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for split, count in (("train", 96), ("val", 16)):
        for name in "abc":
            folder = root / "folders" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                Image.fromarray(draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / f"{i}.png")
        pack(Folder(root / "folders" / split, 3), root / "packed" / split, side=32, shard=64)
    return root


@pytest.mark.parametrize("name", ["folder", "packed"])
def test_a_step_is_recorded_while_others_bring_pictures(tmp_path, pictures, name):
    """Workers or threads, which page-lock and send pictures meanwhile and do not wait for the recording."""
    root = pictures / ("packed" if name == "packed" else "folders")
    data = Dataset(name, str(root), num_classes=3, size=32, mean=(0.5,) * 3, std=(0.25,) * 3)
    recipe = small_recipe(data=data, augment={"crop": "resized"}, optim={"batch": 32})
    for graphs in ("off", "on"):
        train(recipe, options(tmp_path / graphs, graphs=graphs, workers=2))
    assert len(losses(tmp_path / "on")) == 3 * 9
    assert losses(tmp_path / "on") == pytest.approx(losses(tmp_path / "off"), abs=1e-4, rel=0)
