"""One process or many, one micro-batch or several, whole or in shards: the same losses to rounding."""

import pytest

from tests.runs import losses, run_processes, small_options, small_recipe

TWENTY = {"epochs": 4, "warmup_epochs": 1}  # 36 steps, of which the first twenty are compared


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
