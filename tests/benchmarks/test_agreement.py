import math

import torch

from benchmarks.agreement import Errors, Judge, is_close, relative_error
from benchmarks.comparison import Comparison, Task

from ..strategies import random
from .families import BrokenFamily, SmallFamily


def judge(family: SmallFamily, network: str, training: bool = True, precision: str = "fp32", batch: int = 4) -> Judge:
    images, targets = random(batch, 3, 32, 32).float(), torch.arange(batch)
    exact, plain = family.build(network, torch.float64), family.build(network)
    return Judge(exact, plain, images, targets, precision, 2, training)


def test_relative_error():
    assert relative_error(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0], dtype=torch.float64)) == 0.1


def test_bounds():
    assert is_close(2e-2, 1e-2, 2.0, "bf16")
    assert not is_close(2.5e-2, 1e-2, 2.0, "bf16")
    assert not is_close(math.nan, 1e-2, 2.0, "bf16")
    plain = Errors(1e-6, 1e-6, 2e-6)
    assert Errors(1e-6, 1e-6, 3e-6).objection(plain, 2.0, "fp32") == ""
    assert "worst gradient: error 1.0e-03" in Errors(1e-6, 1e-6, 1e-3).objection(plain, 2.0, "fp32")
    assert "outputs: error nan" in Errors(math.nan).objection(Errors(1e-6), 2.0, "fp32")


def test_networks_that_compute_the_same():
    family = SmallFamily()
    crate, vit = judge(family, "pseudocode"), judge(family, "vit")
    for referee, network in ((crate, "pseudocode"), (crate, "opencrate"), (vit, "vit")):
        assert referee.objection(referee.errors(family.build(network)), 2.0) == ""
    inference = judge(family, "pseudocode", training=False)
    assert inference.objection(inference.errors(family.build("folded")), 2.0) == ""


def test_the_bar_rises_with_the_precisions_own_error():
    exact, half = judge(SmallFamily(), "vit"), judge(SmallFamily(), "vit", precision="bf16")
    assert exact.plain.outputs < 1e-5
    assert 1e-3 < half.plain.outputs < 3e-2
    assert "outputs" in exact.objection(half.plain, 2.0)
    assert half.objection(exact.plain, 2.0) == ""


def test_a_wrong_gradient_of_one_weight_is_seen_though_the_outputs_are_right():
    family = SmallFamily()
    referee, network = judge(family, "pseudocode"), family.build("opencrate")
    network.blocks[1].compress.norm.bias.register_hook(lambda gradient: 1.001 * gradient)
    errors = referee.errors(network)
    assert errors.outputs < 1e-5
    assert "gradient" in referee.objection(errors, 2.0)


def test_a_missing_gradient_is_no_agreement():
    family = SmallFamily()
    referee, network = judge(family, "pseudocode"), family.build("opencrate")
    network.pos_embed.requires_grad_(False)
    assert "nan" in referee.objection(referee.errors(network), 2.0)


def test_a_network_that_computes_something_else_is_not_timed():
    comparison = Comparison(
        Task("training", 2, memory=True), BrokenFamily(), ("opencrate-eager", "pseudocode-eager"), "fp32", 2.0
    )
    broken, right = comparison.run(0.001, 2, lambda _: None)
    assert broken.status == "disagrees"
    assert broken.why.startswith("disagrees (outputs: error ")
    assert broken.timings == {}
    assert broken.peak is None
    assert right.status == "measured"
    assert len(right.timings["step"].rounds) == 2


def test_a_variant_that_cannot_be_built_does_not_stop_the_others():
    class Failing(SmallFamily):
        def build(self, network, dtype=torch.float32):
            if network == "opencrate":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB.")
            return super().build(network, dtype)

    task, variants = Task("inference", 2, memory=True), ("opencrate-eager", "folded-eager", "vit-eager")
    rows = Comparison(task, Failing(), variants, "fp32", 2.0).run(0.001, 1, lambda _: None)
    assert [(row.status, row.why) for row in rows] == [("failed", "out of memory"), ("measured", ""), ("measured", "")]
    assert all(row.peak is None or row.peak > 0 for row in rows)
