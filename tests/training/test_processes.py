"""One process or many, one micro-batch or several, whole or in shards: the same losses to rounding."""

from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load_file

from opencrate.distributed import World
from opencrate.recipes import Objective
from opencrate.training import train
from tests.runs import losses, metrics, run_processes, small_options, small_recipe

TWENTY = {"epochs": 4, "warmup_epochs": 1}  # 36 steps, of which the first twenty are compared


@pytest.mark.timeout(120)
def test_a_sharded_network_is_evaluated_on_uneven_shares(tmp_path):
    """359 pictures on 2 processes in batches of 179: one has a round more than the other."""
    recipe = small_recipe(schedule={"epochs": 1, "warmup_epochs": 0}, optim={"batch": 358})
    validations = []
    for parallel in ("ddp", "fsdp"):
        run_processes(recipe, small_options(tmp_path / parallel, parallel=parallel, micro_batch=179), 2, seconds=40)
        validations.append(metrics(tmp_path / parallel, "validation")[0])
    assert validations[0]["pictures"] == validations[1]["pictures"] == 359
    assert validations[0]["loss"] == pytest.approx(validations[1]["loss"], abs=1e-5)
    held, sharded = (load_file(tmp_path / parallel / "model" / "model.safetensors") for parallel in ("ddp", "fsdp"))
    assert held.keys() == sharded.keys()
    assert all(torch.allclose(weight, sharded[name], atol=1e-5) for name, weight in held.items())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The losses of one process with whole batches."""
    folder = tmp_path_factory.mktemp("alone")
    run_processes(small_recipe(schedule=TWENTY), small_options(folder), 1)
    first = losses(folder)[:20]
    assert len(first) == 20
    assert first[-1] < first[0] - 0.01, "nothing was learnt, so nothing is compared"
    return first


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("world", "micro_batch", "parallel"),
    [(1, 36, "ddp"), (2, 144, "ddp"), (2, 18, "ddp"), (4, 36, "ddp"), (4, 9, "ddp"), (2, 72, "fsdp"), (2, 18, "fsdp")],
)
def test_losses_do_not_depend_on_how_it_is_run(tmp_path, alone, world, micro_batch, parallel):
    options = small_options(tmp_path, micro_batch=micro_batch, parallel=parallel)
    run_processes(small_recipe(schedule=TWENTY), options, world)
    assert losses(tmp_path)[:20] == pytest.approx(alone, abs=1e-5, rel=0)


@pytest.mark.timeout(120)
def test_what_an_objective_adds_to_the_loss_does_not_either(tmp_path):
    objective = Objective(0.3, (1,), orthogonal_U=0.1, orthogonal_D=0.1)
    recipe = small_recipe(schedule={"epochs": 2, "warmup_epochs": 1}, objective=objective, probe=0)
    reports = []
    for world, micro_batch in ((1, 144), (2, 36)):
        folder = tmp_path / str(world)
        run_processes(recipe, small_options(folder, micro_batch=micro_batch), world)
        reports.append([line[name] for line in metrics(folder, "train") for name in ("loss", *objective.weights())])
    assert len(reports[0]) == 18 * 4
    assert reports[1] == pytest.approx(reports[0], abs=1e-5, rel=0)
    assert reports[0][-3] > reports[0][1] + 0.01, "the objective did not rise, so nothing is compared"


def test_an_objective_needs_whole_layers_on_every_process(tmp_path, monkeypatch):
    monkeypatch.setattr("opencrate.training.run.joined", lambda device: nullcontext(World(0, 2, torch.device("cpu"))))
    monkeypatch.setattr(World, "on_main", lambda self, action: action())
    with pytest.raises(ValueError, match=r"^what is added to the loss \(objective\) needs --parallel ddp$"):
        train(
            small_recipe(objective=Objective(orthogonal_U=0.1)), small_options(tmp_path, processes=2, parallel="fsdp")
        )
