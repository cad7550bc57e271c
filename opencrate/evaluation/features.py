"""The quality of frozen features: nearest neighbours and a linear probe; and ImageNet's reassessed labels (ReaL)."""

import math
from typing import Any

import torch
from timm.data import RealLabelsImagenet
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, pad

from ..data import Feed
from ..data.feeds.feed import Watched
from ..data.feeds.loading import Loaded
from ..distributed import World, autocast

Classified = tuple[Tensor, Tensor]  # features (n, d) and classes (n,)
TEMPERATURE = 0.07  # of the votes of neighbours


@torch.no_grad()  # not inference mode: a linear probe backpropagates through what is computed from the features
def features(model: Any, feed: Feed, world: World, precision: str = "fp32", batch: int = 512) -> Classified:
    """The features before the classifier (n, d) and the classes (n,) of all pictures that decode; for one process."""
    parts = []
    model.eval()
    for images, targets in feed.evaluate(batch):
        with autocast(world.device, precision):
            rows = model.forward_head(model.forward_features(images), pre_logits=True)
        parts.append((rows.float()[targets >= 0], targets[targets >= 0]))
    rows, classes = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return rows, classes


@torch.inference_mode()
def knn(training: Classified, validation: Classified, k: int = 20) -> float:
    """Accuracy in per cent of the k nearest training features by cosine, each voting with weight exp(cosine/0.07)."""
    known, classes = normalize(training[0], dim=-1), training[1]
    if not 1 <= k <= len(known):
        raise ValueError(f"k must be between 1 and the number of training pictures, {len(known)}, got {k}")
    correct = 0
    for rows, targets in zip(validation[0].split(1024), validation[1].split(1024), strict=True):
        near = (normalize(rows, dim=-1) @ known.T).topk(k)
        votes = torch.zeros(len(rows), int(classes.max()) + 1, device=rows.device)
        votes.scatter_add_(1, classes[near.indices], (near.values / TEMPERATURE).exp())
        correct += int((votes.argmax(-1) == targets).sum())
    return 100 * correct / len(validation[0])


def linear_probe(training: Classified, validation: Classified, weight_decay: float = 1e-3, steps: int = 200) -> float:
    """Accuracy in per cent of logistic regression on standardised features, fitted by L-BFGS.

    Minimises the mean cross-entropy + weight_decay/2 ‖W‖²: that of scikit-learn with C = 1/(n · weight_decay).
    """
    mean, std = training[0].mean(0), training[0].std(0).clamp_min(1e-6)
    rows, targets = (training[0] - mean) / std, training[1]
    classes = int(torch.cat([targets, validation[1]]).max()) + 1
    W = torch.zeros(classes, rows.shape[1], device=rows.device, requires_grad=True)
    bias = torch.zeros(classes, device=rows.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([W, bias], max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(rows @ W.T + bias, targets) + weight_decay / 2 * W.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        predicted = ((validation[0] - mean) / std @ W.T + bias).argmax(-1)
    return 100 * (predicted == validation[1]).double().mean().item()


@torch.inference_mode()
def real(model: nn.Module, feed: Feed, world: World, precision: str = "fp32", batch: int = 512) -> float:
    """Top-1 accuracy in per cent on ImageNet's validation pictures with their reassessed labels (timm ships them)."""
    files = feed.feed if isinstance(feed, Watched) else feed
    if not isinstance(files, Loaded):
        raise ValueError("ImageNet-ReaL needs the names of files: give the folder of ImageNet's validation pictures")
    names = [files.pictures.name(i) for i in range(len(files))]
    try:
        labels = RealLabelsImagenet(names, topk=(1,))
    except AssertionError as error:
        raise ValueError(f"ImageNet-ReaL has labels for 50,000 validation pictures, got {len(names)}") from error
    model.eval()
    for images, targets in feed.evaluate(batch):
        with autocast(world.device, precision):
            logits = model(images).float()
        logits = pad(logits, (0, 1), value=-math.inf)
        logits[targets < 0, -1] = math.inf  # a picture that does not decode is wrong: no picture has this class
        try:
            labels.add_result(logits)
        except KeyError as error:
            raise ValueError(f"{error.args[0]} is not the name of a file of ImageNet's validation set") from error
    return labels.get_accuracy(k=1)
