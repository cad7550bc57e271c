"""On a CUDA device: graphs, compilation, half precision, running out of memory, and going on."""

from dataclasses import replace

import pytest
import torch

from opencrate.engine import Options, train
from tests.runs import interrupted_at, losses, metrics, small_recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.unhooked,
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),  # true float32 is what these tests want
]


def options(folder, **changes):
    return replace(Options(out=folder, device="cuda", log_steps=1, tensorboard=False, workers=0), **changes)


@pytest.fixture(scope="module")
def eager(tmp_path_factory):
    folder = tmp_path_factory.mktemp("eager")
    train(small_recipe(), options(folder))
    return losses(folder)


@pytest.mark.parametrize("micro_batch", [144, 36])
def test_graphs_give_the_losses_of_single_kernels(tmp_path, eager, micro_batch):
    train(small_recipe(graphs=True), options(tmp_path, micro_batch=micro_batch))
    assert losses(tmp_path) == pytest.approx(eager, abs=1e-4, rel=0)


@pytest.mark.parametrize("graphs", [True, False])
def test_compiled_layers_give_the_losses_of_eager_ones(tmp_path, eager, graphs):
    train(small_recipe(compile=True, graphs=graphs), options(tmp_path))
    assert losses(tmp_path) == pytest.approx(eager, abs=1e-4, rel=0)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_follows_single(tmp_path, eager, precision):
    train(small_recipe(precision=precision, optim={"clip": 1.0, "ema": 0.9}), options(tmp_path / "a"))
    train(small_recipe(optim={"clip": 1.0, "ema": 0.9}), options(tmp_path / "b"))
    assert losses(tmp_path / "a") == pytest.approx(losses(tmp_path / "b"), abs=0.05, rel=0)


def test_a_graphed_run_goes_on(tmp_path, eager, monkeypatch):
    with interrupted_at(13, monkeypatch):
        train(small_recipe(graphs=True), options(tmp_path))
    train(small_recipe(graphs=True), options(tmp_path))
    assert [found["step"] for found in metrics(tmp_path, "train")] == list(range(1, 28))
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
