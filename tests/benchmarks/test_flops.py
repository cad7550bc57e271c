import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.flops import flops_of
from opencrate import CRATE
from opencrate.speed import training_forms

BATCH = 3


def counted(network, training: bool) -> int:
    with FlopCounterMode(display=False) as counter:
        logits = network(torch.empty(BATCH, 3, 64, 64, device="meta"))
        if training:
            logits.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("all_tokens", [False, True])
def test_crates_operations_are_those_that_torch_counts(training, all_tokens):
    network = CRATE(
        img_size=64, embed_dim=96, depth=3, num_heads=2, head_dim=32, attention="reference", device="meta"
    ).train()
    training_forms(network, first_token=not all_tokens)
    forming = 3 * 2 * 96**3 * (2 if training else 1)  # A, once for a batch
    empty = 2 * BATCH * 96 * 768 * (2 if training else 1)  # the patch in the class token's place
    assert BATCH * flops_of(network, training, all_tokens) + forming + empty == counted(network, training)


@pytest.mark.parametrize("training", [False, True])
def test_a_vits_operations_are_those_that_torch_counts(training):
    with torch.device("meta"):
        network = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=3)
    assert BATCH * flops_of(network, training, all_tokens=True) == counted(network, training)


def test_a_last_layer_for_one_token_is_less_work():
    with torch.device("meta"):
        for name in ("crate_base_patch16_224", "vit_small_patch16_224"):
            network = timm.create_model(name)
            assert 0.92 < flops_of(network, True) / flops_of(network, True, all_tokens=True) < 0.96
