"""Classification: cross-entropy with label smoothing, mixup and cutmix; top-1 and top-5 accuracy."""

import math

import torch
from timm.data import Mixup
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..data import Batch
from ..randomness import seeded
from .task import Network, Report, Task

_MIXING = 2  # the last part of the random key, which keeps mixup's draws apart from those of crops and flips


class Classification(Task):
    """Batches are images (b, c, H, W) and classes (b,); mixup turns the classes into distributions (b, num_classes)."""

    headline = ("top1", "top5")
    counted = "pictures"

    def __init__(
        self, num_classes: int, label_smoothing: float = 0.0, mixup: float = 0.0, cutmix: float = 0.0, seed: int = 0
    ) -> None:
        self.chance_loss, self.label_smoothing, self.seed = math.log(num_classes), label_smoothing, seed
        self.mixup: Mixup | None = None
        if mixup or cutmix:
            self.mixup = Mixup(mixup, cutmix, label_smoothing=label_smoothing, num_classes=num_classes)
            self.label_smoothing = 0.0  # timm's Mixup smooths the labels itself

    def prepare(self, batch: Batch, step: int) -> Batch:
        """timm's mixup and cutmix; all processes draw the same mixture for a step."""
        if self.mixup is None:
            return batch
        with seeded(self.seed, step, _MIXING):
            mixed: Batch = self.mixup(*batch)
        return mixed

    def loss(self, model: Network, batch: Batch) -> tuple[Tensor, Report]:
        """Mean cross-entropy, and the share of correct predictions where the classes are not mixed."""
        images, targets = batch
        logits = model(images)
        loss = cross_entropy(logits.float(), targets, label_smoothing=self.label_smoothing)
        report = {"loss": loss.detach()}
        if targets.dim() == 1:
            report["accuracy"] = (logits.argmax(-1) == targets).float().mean()
        return loss, report

    def totals(self, model: Network, batch: Batch) -> Report:
        images, targets = batch
        logits = model(images).float()
        correct = logits.topk(min(5, logits.shape[-1])).indices == targets[:, None]
        return {
            "top1": 100 * correct[:, 0].sum(),  # in per cent
            "top5": 100 * correct.sum(),
            "loss": cross_entropy(logits, targets, reduction="sum", ignore_index=-1),
            "pictures": torch.sum(targets >= 0),
        }
