"""Tiny-ImageNet: 200 of ImageNet's classes, 500 pictures each, at 64 pixels in patches of 8.

`tiny_imagenet_SIZE` has the paper's settings for ImageNet, with batch 512 and 100 epochs. `…_strong` is one recipe for
all networks: RandAugment, mixup, cutmix and 150 epochs; with so much augmentation a short warm-up lets large CRATEs
collapse (docs/LOG.md), so it has 20 epochs of it. The set is a folder `train/n01443537/….jpg`, `validation/…`, or the
same packed at 64 pixels, which is read in seconds.
"""

from dataclasses import replace

from ..data.settings import Augmentation, Dataset
from .recipe import Expected, Model, Optim, Recipe, Schedule
from .table import enter

TINY_IMAGENET = Dataset("folder", "data/tiny-imagenet", num_classes=200, size=64, crop_pct=1.0)
MODELS = {
    "tiny": Model("crate_tiny_patch8_64"),
    "small": Model("crate_small_patch8_64"),
    "base": Model("crate_base_patch8_64"),
    "vit_tiny": Model("vit_tiny_patch16_224", patch_size=8),
    "vit_small": Model("vit_small_patch16_224", patch_size=8),
}
NAMES = {"tiny": "CRATE-Tiny", "small": "CRATE-Small", "base": "CRATE-Base"}
NAMES |= {"vit_tiny": "timm's ViT-Tiny", "vit_small": "timm's ViT-Small"}


def _light(name: str, model: Model) -> Recipe:
    return Recipe(
        name=name,
        model=model,
        data=TINY_IMAGENET,
        augment=Augmentation(crop="resized"),
        optim=Optim("lion", lr=2.4e-4, weight_decay=0.5, batch=512),
        schedule=Schedule(epochs=100, warmup_epochs=5),
        definition="unit",
        expected=Expected(source="the paper's settings, batch 512, 100 epochs"),
    )


def _strong(name: str, model: Model) -> Recipe:
    return replace(
        _light(name, model),
        augment=Augmentation(crop="resized", scale=(0.25, 1.0), randaugment="torchvision-n2-m9", mixup=0.2, cutmix=1.0),
        schedule=Schedule(epochs=150, warmup_epochs=20),
        expected=Expected(source="RandAugment, mixup, cutmix, batch 512, 150 epochs"),
    )


for _size, _model in MODELS.items():
    _about = f"Tiny-ImageNet, {NAMES[_size]}, patches of 8 pixels"
    enter(f"tiny_imagenet_{_size}", f"{_about}.", _light, _model)
    enter(f"tiny_imagenet_{_size}_strong", f"{_about}, strong augmentation.", _strong, _model)
