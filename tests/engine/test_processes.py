"""One process or many, one micro-batch or several, whole or in shards: the same losses to rounding."""

import pytest

from tests.runs import losses, metrics, run_processes, small_options, small_recipe

TWENTY = {"epochs": 4, "warmup_epochs": 1}  # 36 steps, of which the first twenty are compared


@pytest.mark.timeout(120)
def test_a_sharded_network_is_evaluated_on_uneven_shares(tmp_path):
    """359 pictures on 2 processes in batches of 18: one has a round more than the other."""
    recipe = small_recipe(schedule={"epochs": 1, "warmup_epochs": 0})
    found = []
    for parallel in ("ddp", "fsdp"):
        run_processes(recipe, small_options(tmp_path / parallel, parallel=parallel, micro_batch=179), 2)
        found.append(metrics(tmp_path / parallel, "validation")[0])
    assert found[0]["pictures"] == found[1]["pictures"] == 359
    assert found[0]["loss"] == pytest.approx(found[1]["loss"], abs=1e-5)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The losses of one process with whole batches."""
    folder = tmp_path_factory.mktemp("alone")
    run_processes(small_recipe(schedule=TWENTY), small_options(folder), 1)
    found = losses(folder)[:20]
    assert len(found) == 20
    assert found[-1] < found[0] - 0.01, "nothing was learnt, so nothing is compared"
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("world", "micro_batch", "parallel"),
    [(1, 36, "ddp"), (2, 144, "ddp"), (2, 18, "ddp"), (4, 36, "ddp"), (4, 9, "ddp"), (2, 72, "fsdp"), (2, 18, "fsdp")],
)
def test_losses_do_not_depend_on_how_it_is_run(tmp_path, alone, world, micro_batch, parallel):
    options = small_options(tmp_path, micro_batch=micro_batch, parallel=parallel)
    run_processes(small_recipe(schedule=TWENTY), options, world)
    assert losses(tmp_path)[:20] == pytest.approx(alone, abs=1e-5, rel=0)
