"""The next byte: a small causal network learns a text with the engine's own step."""

import math
from itertools import count

import numpy as np
import pytest
import torch
from torch import nn

from opencrate.data import Feed, Split
from opencrate.distributed import World
from opencrate.tasks import NextByte, describe_metrics
from opencrate.training.step import Stepper

WORLD = World(0, 1, torch.device("cpu"))
TEXT = torch.tensor(list(b"the rate of the sum is more than the sum of the rates. " * 40))
LENGTH = 16


class Bytes(nn.Module):
    """Embedding, causal layers, logits; `blocks` are layers as in a CRATE."""

    def __init__(self, dim=32, depth=2):
        super().__init__()
        self.embed = nn.Embedding(256, dim)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(dim, 4, 64, 0.0, batch_first=True) for _ in range(depth))
        self.head = nn.Linear(dim, 256)

    def forward(self, inputs):
        mask = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1])
        Z = self.embed(inputs)
        for block in self.blocks:
            Z = block(Z, mask, is_causal=True)
        return self.head(Z)


class Windows(Feed):
    """Pieces of the text, each with its bytes' successors."""

    classes = ()

    def __len__(self):
        return len(TEXT) // LENGTH - 1

    def pieces(self, numbers):
        starts = LENGTH * numbers[:, None] + torch.arange(LENGTH)
        return TEXT[starts], TEXT[starts + 1]

    def train(self, epoch, start, split):
        for step in count(start):
            numbers = torch.randint(len(self), (split.batch,), generator=torch.Generator().manual_seed(step))
            for micro_batch in split.micro_batches(numbers):
                yield self.pieces(micro_batch)

    @property
    def targets(self):
        return [0] * len(self)

    def read(self, numbers, batch):
        for some in torch.tensor(list(numbers)).split(batch):
            yield self.pieces(some)


def trained(steps, parts=1, precision="fp32"):
    torch.manual_seed(0)
    model, split = Bytes(), Split(24, parts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    stepper = Stepper(model, optimizer, NextByte(), split, WORLD, precision=precision)
    batches = Windows().train(0, 0, split)
    return model, [stepper.step(batches, step) for step in range(steps)]


def test_the_loss_falls():
    model, outcomes = trained(50)
    losses = [outcome.loss for outcome in outcomes]
    assert losses[0] == pytest.approx(math.log(256), abs=0.5)
    assert np.mean(losses[-5:]) < 0.5 * losses[0]
    assert all(outcome.report["bits_per_byte"] == pytest.approx(outcome.loss / math.log(2)) for outcome in outcomes)
    before, after = (NextByte().evaluate(network, Windows(), WORLD) for network in (trained(0)[0], model))
    assert after["bits_per_byte"] < 0.5 * before["bits_per_byte"]
    assert NextByte().is_better(after, before)
    assert not NextByte().is_better(before, after)
    assert describe_metrics(after) == f"{after['bits_per_byte']:.3f} bits per byte  loss {after['loss']:.3f}"


def test_micro_batches_add_up():
    whole, parts = ([outcome.loss for outcome in trained(5, parts)[1]] for parts in (1, 4))
    assert parts == pytest.approx(whole, abs=1e-5)


def test_half_precision():
    full, half = ([outcome.loss for outcome in trained(5, precision=precision)[1]] for precision in ("fp32", "bf16"))
    assert half != full
    assert half == pytest.approx(full, rel=0.02)


@pytest.mark.parametrize("batch", [7, 512])
def test_bits_per_byte_against_a_plain_loop(batch):
    """Byte by byte in float64, by NumPy; some bytes do not count."""
    model, feed = trained(3)[0].double().eval(), Windows()
    inputs, targets = feed.pieces(torch.arange(len(feed)))
    targets = targets.clone()
    targets[::3, ::2] = -1
    targets[1, 1] = 0  # a byte like any other
    feed.pieces = lambda numbers: (inputs[numbers], targets[numbers])
    bits, counted = 0.0, 0
    for row, wanted in zip(model(inputs).detach().numpy(), targets.numpy(), strict=True):
        for logits, byte in zip(row, wanted, strict=True):
            if byte >= 0:
                bits -= np.log2(np.exp(logits[byte]) / np.exp(logits).sum())
                counted += 1
    metrics = NextByte().evaluate(model, feed, WORLD, batch=batch)
    assert metrics["bytes"] == counted
    assert metrics["bits_per_byte"] == pytest.approx(bits / counted, rel=1e-5)


def test_nothing_to_predict():
    feed = Windows()
    feed.pieces = lambda numbers: (TEXT[:LENGTH][None], torch.full((1, LENGTH), -1))
    with pytest.raises(ValueError, match=r"^none of the bytes of the validation split could be read$"):
        NextByte().evaluate(Bytes(), feed, WORLD)
