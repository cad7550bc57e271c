"""Fine-tuning a checkpoint on another set of pictures, as in the paper (appendix B.1).

AdamW, learning rate 5e-5, weight decay 0.01, batch 512, 224 pixels, random crop, flip and RandAugment with n = 2 and
m = 14. That has three readings; ours is torchvision's RandAugment(2, 14), which the published numbers used (the
footnote names timm's, whose magnitudes are clipped at 10). The paper gives neither epochs nor schedule: those are ours.
"""

from dataclasses import replace

from ..data.settings import Augmentation, Dataset
from .recipe import Expected, Model, Optim, Recipe, Schedule
from .table import register_finetuning

SOURCE = "paper, table 1 (CRATE-Base); epochs ours"


def _finetuning(name: str, data: Dataset, crop: str, top1: float) -> Recipe:
    return Recipe(
        name=f"finetune_{name}",
        model=Model(start="CHECKPOINT"),
        data=data,
        augment=Augmentation(crop=crop, randaugment="torchvision-n2-m14"),  # type: ignore[arg-type]
        optim=Optim("adamw", lr=5e-5, weight_decay=0.01, batch=512),
        schedule=Schedule(epochs=50, warmup_epochs=5),
        label_smoothing=0.1,
        expected=Expected(top1, source=SOURCE),
    )


@register_finetuning
def cifar10() -> Recipe:
    """CIFAR-10 at 224 pixels."""
    return _finetuning("cifar10", Dataset("torch/cifar10", num_classes=10, crop_pct=1.0), "padded", 96.8)


@register_finetuning
def cifar100() -> Recipe:
    """CIFAR-100 at 224 pixels."""
    return _finetuning("cifar100", Dataset("torch/cifar100", num_classes=100, crop_pct=1.0), "padded", 82.7)


@register_finetuning
def flowers102() -> Recipe:
    """Oxford Flowers-102 at 224 pixels."""
    return _finetuning("flowers102", Dataset("torch/flowers102", num_classes=102), "resized", 88.7)


@register_finetuning
def pets() -> Recipe:
    """Oxford-IIIT Pets at 224 pixels."""
    return _finetuning("pets", Dataset("torch/pets", num_classes=37), "resized", 85.3)


@register_finetuning
def fashion_mnist() -> Recipe:
    """Fashion-MNIST at 32 pixels, crop and flip only."""
    small = Dataset("torch/fashion_mnist", num_classes=10, size=32, mean=(0.286,) * 3, std=(0.353,) * 3, crop_pct=1.0)
    base = _finetuning("fashion_mnist", small, "padded", 0.0)
    return replace(
        base,
        augment=Augmentation(crop="padded"),
        schedule=Schedule(epochs=20, warmup_epochs=2),
        expected=Expected(source="ours"),
    )
