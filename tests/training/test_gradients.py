"""Weights without gradient are named by the first step; frozen weights train, save and resume."""

import pytest
import torch
from torch import nn

from opencrate.checkpoints import load_any
from opencrate.data import Split
from opencrate.distributed import World
from opencrate.recipes import Objective
from opencrate.tasks import Classification
from opencrate.training import loop, train
from opencrate.training.building import build_model, build_optimizer
from opencrate.training.step import Stepper
from tests.runs import FORKS, _train, free_port, interrupted_at, losses, small_options, small_recipe

SENTENCE = (
    "these weights get no gradient: blocks.1.spare; use them, remove them, or freeze them with requires_grad_(False)"
)


def with_a_spare_weight(recipe, *arguments):
    """A network one of whose layers has a weight that it does not use."""
    model = build_model(recipe, *arguments)
    model.blocks[1].spare = nn.Parameter(torch.ones(3))
    return model


def frozen(recipe, *arguments):
    model = build_model(recipe, *arguments)
    model.pos_embed.requires_grad_(False)
    model.blocks[0].requires_grad_(False)
    return model


@pytest.mark.parametrize("changes", [{}, {"objective": Objective(orthogonal_U=0.1)}], ids=["plain", "regularised"])
def test_one_sentence_before_anything_is_saved(tmp_path, monkeypatch, changes):
    monkeypatch.setattr(loop, "build_model", with_a_spare_weight)
    with pytest.raises(ValueError) as caught:  # noqa: PT011, compared below
        train(small_recipe(**changes), small_options(tmp_path, save_steps=1))
    assert str(caught.value) == SENTENCE
    assert not (tmp_path / "checkpoints").exists()


def _train_as(build, folder, parallel, rank, port, stop_after):
    """One of two processes that train the network of `build`; its error goes to a file."""
    loop.build_model = build
    step = loop.Training._step

    def interrupted(self, batches):
        self.stop_request.number = 2 if self.progress.step == stop_after else None
        return step(self, batches)

    loop.Training._step = interrupted
    try:
        _train(small_recipe(probe=0), small_options(folder, parallel=parallel), rank, 2, port, None)
    except (ValueError, KeyboardInterrupt) as error:
        (folder / f"error-{rank}.txt").write_text(str(error))


def errors_of_two(build, folder, parallel, stop_after=None):
    port = free_port()
    arguments = [(build, folder, parallel, rank, port, stop_after) for rank in range(2)]
    processes = [FORKS.Process(target=_train_as, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        process.kill()
    files = [folder / f"error-{rank}.txt" for rank in range(2)]
    return [file.read_text() if file.exists() else "" for file in files]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_one_sentence_on_several_processes(tmp_path, parallel):
    assert errors_of_two(with_a_spare_weight, tmp_path, parallel) == [SENTENCE] * 2
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_frozen_weights_resume_on_several_processes(tmp_path, parallel):
    for folder, stop_after in (("whole", None), ("stopped", 13)):
        (tmp_path / folder).mkdir()
        errors = errors_of_two(frozen, tmp_path / folder, parallel, stop_after)
        assert all(error.startswith("stopped at step 14") == (folder == "stopped") for error in errors), errors
    errors_of_two(frozen, tmp_path / "stopped", parallel)
    assert len(losses(tmp_path / "stopped")) == 27
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")


def test_many_weights_are_counted():
    model = nn.Linear(4, 3)
    model.spare = nn.ParameterList(torch.ones(1) for _ in range(7))
    stepper = Stepper(
        model, torch.optim.SGD(model.parameters()), Classification(3), Split(2), World(0, 1, torch.device("cpu"))
    )
    batches = iter([(torch.ones(2, 4), torch.tensor([0, 1]))])
    with pytest.raises(
        ValueError, match=r"^these weights get no gradient: spare\.0, .*, spare\.4 and 2 more; use them"
    ):
        stepper.step(batches, 0)


@pytest.mark.parametrize("decay", ["all", "matrices"])
def test_frozen_weights_stay_and_the_run_resumes_to_the_bit(tmp_path, monkeypatch, decay):
    monkeypatch.setattr(loop, "build_model", frozen)
    recipe = small_recipe(optim={"decay": decay, "ema": 0.9})
    train(recipe, small_options(tmp_path / "whole"))
    with interrupted_at(13, monkeypatch):
        train(recipe, small_options(tmp_path / "stopped"))
    train(recipe, small_options(tmp_path / "stopped"))
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")
    one, other = (load_any(tmp_path / name).state_dict() for name in ("whole", "stopped"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert losses(tmp_path / "whole")[-1] < losses(tmp_path / "whole")[0]


def test_frozen_weights_are_not_changed(tmp_path, monkeypatch):
    built = []
    monkeypatch.setattr(loop, "build_model", lambda *given: built.append(frozen(*given)) or built[-1])
    begun = []
    monkeypatch.setattr(
        loop, "build_optimizer", lambda recipe, model: begun.append(copied(model)) or build_optimizer(recipe, model)
    )
    train(small_recipe(), small_options(tmp_path))
    ended = copied(built[0])
    changed = {name for name in ended if not torch.equal(ended[name], begun[0][name])}
    assert changed == {name for name, weight in built[0].named_parameters() if weight.requires_grad}


def copied(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}
