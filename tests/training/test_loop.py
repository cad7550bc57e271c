"""The loop: when it saves, what it says at the start, and in which mode the network is."""

import pytest

from opencrate.recipes import Objective
from opencrate.training import loop, train
from opencrate.training.checkpoints import Checkpoints
from tests.runs import small_options, small_recipe

ONE_EPOCH = {"epochs": 1, "warmup_epochs": 0}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [9, 18, 27]),
        ({"save_epochs": 2}, [18, 27]),
        ({"save_steps": 4}, [4, 8, 9, 12, 16, 18, 20, 24, 27]),
        ({"save_minutes": 1e-9, "save_epochs": 3}, [step for step in range(1, 28) if step not in (9, 18)]),
        ({"save_minutes": 0.0, "save_epochs": 3}, [27]),
    ],
)
def test_checkpoints_are_written_after_every_epoch_and_when_they_are_due(tmp_path, monkeypatch, options, expected):
    saved, save = [], Checkpoints.save
    monkeypatch.setattr(
        Checkpoints, "save", lambda self, state, step, *rest: saved.append(step) or save(self, state, step, *rest)
    )
    train(small_recipe(probe=0), small_options(tmp_path, **options))
    assert saved == expected


def test_every_step_is_one_of_training(tmp_path, monkeypatch):
    """In whatever mode the network was built, as by `load`, and though it is evaluated between the epochs."""
    modes, step = [], loop.Training._step

    def observed(self, batches):
        modes.append({module.training for module in self.model.modules()})
        return step(self, batches)

    build = loop.build_model
    monkeypatch.setattr(loop, "build_model", lambda *given: build(*given).eval())
    monkeypatch.setattr(loop.Training, "_step", observed)
    train(small_recipe(), small_options(tmp_path))
    assert modes == [{True}] * 27


@pytest.mark.parametrize(("micro_batch", "batch"), [(144, "144"), (72, "144 in 2 parts"), (48, "144 in 3 parts")])
def test_the_parts_of_a_batch_are_said(tmp_path, capsys, micro_batch, batch):
    train(small_recipe(schedule=ONE_EPOCH, probe=0), small_options(tmp_path, micro_batch=micro_batch))
    printed = " ".join(capsys.readouterr().out.split())
    assert f"1 epochs of 9 steps, batch {batch}, fp32 on cpu; results go to" in printed


@pytest.mark.parametrize(
    ("objective", "by_layer"),
    [(Objective(), False), (Objective(orthogonal_U=0.1), False), (Objective(0.3, (1,)), True)],
    ids=["plain", "orthogonal", "between the layers"],
)
def test_a_loss_between_the_layers_has_them_compiled_one_by_one(tmp_path, monkeypatch, objective, by_layer):
    compiled = []
    monkeypatch.setattr(loop, "compile_model", lambda network, by_layer: compiled.append(by_layer))
    recipe = small_recipe(schedule=ONE_EPOCH, probe=0, objective=objective)
    train(recipe, small_options(tmp_path, compile="on"))
    assert compiled == [by_layer]
