"""The stack knows neither pictures nor words: bytes in, the next byte out, with the same layers."""

import pytest
import torch
from torch import nn

from opencrate import CRATE, layerwise, trajectory
from opencrate.layers import NORMS
from opencrate.measures.audit import audit
from opencrate.stack import Network, build_layers
from opencrate.stems import ByteEmbed

from .networks import SMALL
from .strategies import random

TEXT = b"a white box for words, too; " * 40


def byte_network(dim=32, depth=2, length=64, **arguments) -> Network:
    torch.manual_seed(0)
    layers = build_layers(dim, depth, num_heads=4, compress_args={"causal": True}, **arguments)
    return Network(ByteEmbed(dim, length), layers, nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 256)))


def batch(size=8, length=64, seed=0):
    data = torch.tensor(list(TEXT))
    starts = torch.randint(len(data) - length - 1, (size,), generator=torch.Generator().manual_seed(seed))
    windows = torch.stack([data[start : start + length + 1] for start in starts])
    return windows[:, :-1], windows[:, 1:]


def loss_of(network, seed):
    text, following = batch(seed=seed)
    return nn.functional.cross_entropy(network(text).flatten(0, 1), following.flatten())


def test_bytes_train_for_fifty_steps():
    network = byte_network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    first = loss_of(network, 0).item()
    for step in range(50):
        optimizer.zero_grad()
        loss_of(network, step).backward()
        optimizer.step()
    assert first == pytest.approx(torch.tensor(256.0).log().item(), abs=0.5)  # chance
    assert loss_of(network, 99).item() < 0.5 * first


def test_trajectory_walks_bytes():
    network, (text, _) = byte_network().eval(), batch(2)
    with torch.inference_mode():
        steps = list(trajectory(network, text))
        assert torch.equal(network.head(steps[-1].Z_next), network(text))
    assert [step.number for step in steps] == [1, 2]
    assert steps[0].maps.shape == (2, 4, 64, 64)
    assert torch.equal(steps[0].maps, steps[0].maps.tril())
    assert len(layerwise(network, [text]).rows) == len(audit(network, [text]).weights) == 2


def test_a_causal_network_decodes_with_one_cached_tensor_a_layer():
    network, (text, _) = byte_network().double().eval(), batch(2, 12)
    states, logits = [None] * len(network.layers), []
    with torch.no_grad():
        for t in range(text.shape[1]):
            Z = network.stem(text[:, t : t + 1], start=t)
            for number, layer in enumerate(network.layers):
                half = layer.compress
                move, states[number] = half.operator.step(half.norm(Z), states[number])
                Z = layer.sparsify(half.skip(Z, move))
            logits.append(network.head(Z))
        torch.testing.assert_close(torch.cat(logits, 1), network(text), rtol=1e-12, atol=1e-12)
    assert states[0].shape == (2, 4, 12, 8)


def test_a_text_longer_than_the_positions_is_one_sentence():
    with pytest.raises(ValueError, match="a text of 65 bytes is longer than the 64 positions"):
        byte_network()(torch.zeros(1, 65, dtype=torch.long))


@pytest.mark.parametrize("norm", sorted(NORMS))
def test_norms_by_name(norm):
    model = CRATE(**SMALL, norm=norm, dtype=torch.float64).eval()
    images = random(2, 3, 16, 16)
    assert model.config()["norm"] == norm
    again = CRATE(**model.config()).double().eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(images), model(images))
    Y = model.blocks[0].compress.norm(random(2, 17, 24))
    torch.testing.assert_close(Y.square().mean(-1), torch.ones(2, 17, dtype=torch.float64), rtol=1e-4, atol=1e-4)


def test_an_unknown_norm_is_one_sentence():
    with pytest.raises(ValueError, match=r"unknown norm 'layernrm'; did you mean 'layernorm'\?"):
        CRATE(**SMALL, norm="layernrm")


def test_attention_only_has_no_second_norm():
    model = CRATE(**SMALL, sparsify="none").train()
    model(torch.randn(2, 3, 16, 16)).square().sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []
    assert not list(model.blocks[0].sparsify.parameters())
    with torch.no_grad():
        for step in trajectory(model.eval(), torch.randn(2, 3, 16, 16)):
            assert torch.equal(step.Z_next, step.Z_half)
            assert step.code is None
