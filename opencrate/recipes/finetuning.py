"""Fine-tuning a checkpoint on another set of pictures, as in the paper (appendix B.1), at 224 or at 64 pixels.

AdamW, learning rate 5e-5, weight decay 0.01, batch 512, 224 pixels, random crop, flip and RandAugment with n = 2 and
m = 14. That has three readings; ours is torchvision's RandAugment(2, 14), which the published numbers used (the
footnote names timm's, whose magnitudes are clipped at 10). The paper gives neither epochs nor schedule: those are ours.
"""

from dataclasses import replace
from typing import Literal

from ..data.settings import Augmentation, Dataset
from .recipe import Expected, Model, Optim, Recipe, Schedule
from .scratch import FASHION_MNIST
from .table import FINETUNING, enter

SOURCE = "paper, table 1 (CRATE-Base); epochs ours"


def _finetuning(name: str, data: Dataset, crop: Literal["padded", "resized"], top1: float) -> Recipe:
    return Recipe(
        name=f"finetune_{name}",
        model=Model(start="CHECKPOINT"),
        data=data,
        augment=Augmentation(crop=crop, randaugment="torchvision-n2-m14"),
        optim=Optim("adamw", lr=5e-5, weight_decay=0.01, batch=512),
        schedule=Schedule(epochs=50, warmup_epochs=5),
        label_smoothing=0.1,
        expected=Expected(top1, source=SOURCE),
    )


def _fashion_mnist(name: str) -> Recipe:
    return replace(
        _finetuning(name, FASHION_MNIST, "padded", 0.0),
        augment=Augmentation(crop="padded"),
        schedule=Schedule(epochs=20, warmup_epochs=2),
        expected=Expected(source="ours"),
    )


CIFAR10 = Dataset("torch/cifar10", num_classes=10, crop_pct=1.0)
CIFAR100 = Dataset("torch/cifar100", num_classes=100, crop_pct=1.0)
FLOWERS102 = Dataset("torch/flowers102", num_classes=102)
PETS = Dataset("torch/pets", num_classes=37)

enter("cifar10", "CIFAR-10 at 224 pixels.", _finetuning, CIFAR10, "padded", 96.8, table=FINETUNING)
enter("cifar100", "CIFAR-100 at 224 pixels.", _finetuning, CIFAR100, "padded", 82.7, table=FINETUNING)
enter("flowers102", "Oxford Flowers-102 at 224 pixels.", _finetuning, FLOWERS102, "resized", 88.7, table=FINETUNING)
enter("pets", "Oxford-IIIT Pets at 224 pixels.", _finetuning, PETS, "resized", 85.3, table=FINETUNING)
enter("fashion_mnist", "Fashion-MNIST at 32 pixels, crop and flip only.", _fashion_mnist, table=FINETUNING)


def _at_64(name: str, data: Dataset, crop: Literal["padded", "resized"], epochs: int) -> Recipe:
    """The paper's settings at 64 pixels, with epochs for some thousand steps."""
    recipe = _finetuning(name, replace(data, name="folder", root=f"data/{name[:-3]}", size=64), crop, 0.0)
    schedule, expected = Schedule(epochs, warmup_epochs=epochs // 10), Expected(source="epochs ours")
    return replace(recipe, schedule=schedule, definition="unit", expected=expected)


enter("cifar10_64", "CIFAR-10 at 64 pixels.", _at_64, CIFAR10, "padded", 50, table=FINETUNING)
enter("cifar100_64", "CIFAR-100 at 64 pixels.", _at_64, CIFAR100, "padded", 50, table=FINETUNING)
enter("flowers102_64", "Oxford Flowers-102 at 64 pixels.", _at_64, FLOWERS102, "resized", 500, table=FINETUNING)
enter("pets_64", "Oxford-IIIT Pets at 64 pixels.", _at_64, PETS, "resized", 300, table=FINETUNING)
