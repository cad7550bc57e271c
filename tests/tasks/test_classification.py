"""Accuracy and loss, against a plain loop in float64."""

import math

import numpy as np
import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from opencrate.data import Feed, Split
from opencrate.distributed import World
from opencrate.tasks import Classification
from opencrate.tasks.task import _evaluation_batches
from opencrate.training.step import Stepper
from tests.networks import small

WORLD = World(0, 1, torch.device("cpu"))
evaluate = Classification(8).evaluate  # it does not depend on the number of classes


class Given(Feed):
    """Pictures and classes as they are."""

    def __init__(self, images, targets):
        self.images, self.targets, self.classes = images, targets, ()

    def __len__(self):
        return len(self.images)

    def train(self, epoch, start, split):
        raise NotImplementedError

    def read(self, numbers, batch):
        for chosen in numbers.split(batch):
            yield self.images[chosen], self.targets[chosen]


@pytest.fixture
def feed(rng):
    targets = torch.randint(-1, 8, (50,), generator=rng)
    assert (targets == -1).any()
    return Given(torch.randn(50, 3, 16, 16, generator=rng), targets)


def plain_loop(model, feed):
    """One picture at a time, by numpy, in float64."""
    model = model.double()
    top1 = top5 = loss = counted = 0
    for image, target in zip(feed.images.double(), feed.targets.tolist(), strict=True):
        if target < 0:
            continue
        logits = model(image[None])[0].detach().numpy()
        ranking = np.argsort(-logits)
        top1, top5 = top1 + (ranking[0] == target), top5 + (target in ranking[:5])
        loss += np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[target]
        counted += 1
    return {"top1": 100 * top1 / counted, "top5": 100 * top5 / counted, "loss": loss / counted, "pictures": counted}


@pytest.mark.parametrize("batch", [7, 50, 512])
def test_against_a_plain_loop(feed, batch):
    wanted = plain_loop(small(num_classes=8), feed)
    assert 0 < wanted["top1"] < wanted["top5"] < 100
    assert evaluate(small(num_classes=8), feed, WORLD, batch=batch) == pytest.approx(wanted, rel=1e-5)


def test_pictures_that_do_not_decode_are_not_counted(feed):
    model = small(num_classes=8)
    counted = feed.targets >= 0
    metrics = evaluate(model, feed, WORLD)
    assert metrics["pictures"] == int(counted.sum())
    assert metrics == pytest.approx(
        evaluate(model, Given(feed.images[counted], feed.targets[counted]), WORLD), rel=1e-6
    )
    with pytest.raises(ValueError, match=r"^none of the pictures of the validation split could be read$"):
        evaluate(model, Given(feed.images, torch.full((50,), -1)), WORLD)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision(feed, precision):
    exact, rough = (evaluate(small(num_classes=8), feed, WORLD, each) for each in ("fp32", precision))
    assert rough["loss"] != exact["loss"]
    assert rough["loss"] == pytest.approx(exact["loss"], rel=0.02)


def test_fewer_than_five_classes(rng):
    feed = Given(torch.randn(10, 3, 16, 16, generator=rng), torch.randint(3, (10,), generator=rng))
    assert evaluate(small(num_classes=3), feed, WORLD)["top5"] == 100


def test_the_shares_of_two_processes_are_the_whole(feed):
    whole, shares = evaluate(small(num_classes=8), feed, WORLD), []
    for rank in range(2):
        world = World(rank, 2, torch.device("cpu"))
        world.__dict__["sum"] = lambda sums: sums  # alone, without a group
        shares.append(evaluate(small(num_classes=8), feed, world, batch=4))
    pictures = [share["pictures"] for share in shares]
    assert sum(pictures) == whole["pictures"]
    for name in ("top1", "top5", "loss"):
        assert np.average([share[name] for share in shares], weights=pictures) == pytest.approx(whole[name], rel=1e-5)


class Sharded(FSDPModule, torch.nn.Module):
    """As a network that every process has a part of."""

    def __new__(cls):
        return object.__new__(cls)


@pytest.mark.parametrize(("count", "batch", "world"), [(50, 7, 1), (9, 4, 2), (9, 5, 2), (10, 5, 2), (2, 1, 4)])
def test_all_processes_evaluate_a_sharded_network_equally_often(feed, count, batch, world):
    """They compute it together, so that one that has no picture left takes one that does not count."""
    feed = Given(feed.images[:count], torch.arange(count))
    sharded, rounds = [], []
    for model, results in ((Sharded(), sharded), (small(), rounds)):
        for rank in range(world):
            parts = list(_evaluation_batches(model, feed, World(rank, world, torch.device("cpu")), batch))
            counted = torch.cat([targets for _, targets in parts])
            assert counted[counted >= 0].tolist() == list(range(count))[rank::world]
            results.append(len(parts))
    assert sharded == [math.ceil(math.ceil(count / world) / batch)] * world
    assert rounds == [max(1, math.ceil(len(range(count)[rank::world]) / batch)) for rank in range(world)]


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_the_training_accuracy_is_counted_over_all_micro_batches(feed, parts):
    images, targets = feed.images, feed.targets.clamp_min(0)
    model, task = small(num_classes=8), Classification(8)
    wanted = (model(images).argmax(-1) == targets).double().mean().item()
    assert 0 < wanted < 0.5
    stepper = Stepper(model, torch.optim.SGD(model.parameters(), 1e-3), task, Split(50, parts), WORLD)
    outcome = stepper.step(zip(images.chunk(parts), targets.chunk(parts), strict=True), 0)
    assert outcome.report["accuracy"] == pytest.approx(wanted)


def test_the_loss_of_mixed_pictures_is_by_their_mixed_classes(feed):
    """Smoothed once, by timm, and reported without the graph behind it; no class is right for a mixed picture."""
    model, task = small(num_classes=8), Classification(8, label_smoothing=0.2, mixup=0.8)
    images, targets = task.prepare((feed.images.clone(), feed.targets.clamp_min(0)), 3)
    assert ((targets > 0.03) & (targets < 0.8)).any()
    loss, report = task.loss(model, (images, targets))
    wanted = -(targets * model(images).log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(loss, wanted)
    assert loss.requires_grad
    assert report == {"loss": loss.item()}
    assert not report["loss"].requires_grad


@pytest.mark.parametrize("mixing", [{"mixup": 0.8}, {"cutmix": 1.0}])
def test_either_mixing_mixes(feed, mixing):
    batch = feed.images.clone(), feed.targets.clamp_min(0)
    images, targets = Classification(8, **mixing).prepare((batch[0].clone(), batch[1]), 0)
    assert not torch.equal(images, batch[0])
    assert targets.shape == (50, 8)
    torch.testing.assert_close(targets.sum(1), torch.ones(50))
    assert Classification(8).prepare(batch, 0) is batch


def test_smoothed_labels(feed):
    model, targets = small(num_classes=8), feed.targets.clamp_min(0)
    loss, report = Classification(8, label_smoothing=0.2).loss(model, (feed.images, targets))
    log = model(feed.images).log_softmax(-1)
    wanted = -(0.8 * log[torch.arange(50), targets] + 0.2 * log.mean(-1)).mean()
    torch.testing.assert_close(loss, wanted)
    assert not report["loss"].requires_grad


@pytest.mark.parametrize("training", [True, False])
def test_the_network_is_left_as_it_was(feed, training):
    model = small(num_classes=8, proj_drop_rate=0.5).train(training)
    state = torch.get_rng_state()
    assert evaluate(model, feed, WORLD) == evaluate(model, feed, WORLD)
    assert model.training is training
    assert torch.equal(torch.get_rng_state(), state)
