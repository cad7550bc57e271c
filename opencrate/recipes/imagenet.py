"""ImageNet-1k as in the paper: its table 1, and its ablations (appendix B.3 and B.4).

Lion, learning rate 2.4e-4, weight decay 0.5, batch 2,048, 150 epochs with 5 of linear warm-up and then a cosine, random
crop and flip only, label smoothing 0.1 (appendix B.1). What the paper does not say is taken from its authors' code:
every weight is decayed, D and U are free.
"""

from dataclasses import replace

from ..data.settings import Augmentation, Dataset
from .recipe import Expected, Model, Optim, Recipe, Schedule
from .table import enter, register


def _imagenet1k(name: str, model: str, top1: float, time: str = "") -> Recipe:
    return Recipe(
        name=name,
        model=Model(model),
        data=Dataset("folder", "data/imagenet", num_classes=1000, size=224, crop_pct=0.875),
        augment=Augmentation(crop="resized", flip=0.5),
        optim=Optim("lion", lr=2.4e-4, weight_decay=0.5, batch=2048),
        schedule=Schedule(epochs=150, warmup_epochs=5),
        label_smoothing=0.1,
        expected=Expected(top1, "16 × A100 40 GB" if time else "", time, "paper, table 1"),
    )


enter("imagenet1k_tiny", "ImageNet-1k, CRATE-Tiny.", _imagenet1k, "crate_tiny_patch16_224", 66.7)
enter("imagenet1k_small", "ImageNet-1k, CRATE-Small.", _imagenet1k, "crate_small_patch16_224", 69.2)


@register
def imagenet1k_base() -> Recipe:
    """ImageNet-1k, CRATE-Base."""
    return _imagenet1k("imagenet1k_base", "crate_base_patch16_224", 70.8, "10 h (240 s an epoch)")


enter("imagenet1k_large", "ImageNet-1k, CRATE-Large.", _imagenet1k, "crate_large_patch16_224", 71.3)
enter("imagenet1k_vit_tiny", "ImageNet-1k, timm's ViT-Tiny.", _imagenet1k, "vit_tiny_patch16_224", 71.5)
enter("imagenet1k_vit_small", "ImageNet-1k, timm's ViT-Small.", _imagenet1k, "vit_small_patch16_224", 72.4)


# What differs from imagenet1k_base, and the accuracy that the paper reports for it.
HYPERPARAMETERS: dict[str, tuple[dict[str, dict[str, object]], float]] = {
    "eta_0.02": ({"model": {"sparsify_args": {"eta": 0.02, "lam": 0.1}}}, 70.7),
    "eta_0.5": ({"model": {"sparsify_args": {"eta": 0.5, "lam": 0.1}}}, 66.7),
    "lam_0.02": ({"model": {"sparsify_args": {"eta": 0.1, "lam": 0.02}}}, 70.8),
    "lam_0.5": ({"model": {"sparsify_args": {"eta": 0.1, "lam": 0.5}}}, 70.5),
    "epochs_90": ({"schedule": {"epochs": 90}}, 69.5),
    "epochs_300": ({"schedule": {"epochs": 300}}, 70.9),
    "wd_1.0": ({"optim": {"weight_decay": 1.0}}, 70.3),
    "wd_0.05": ({"optim": {"weight_decay": 0.05}}, 70.2),
    "lr_4.8e-4": ({"optim": {"lr": 4.8e-4}}, 70.2),
    "lr_1.2e-4": ({"optim": {"lr": 1.2e-4}}, 70.3),
}
ARCHITECTURES: dict[str, tuple[dict[str, dict[str, object]], float]] = {
    "mssa_tied": ({"model": {"compress": "mssa_tied"}}, 63.3),
    "prox_mm": ({"model": {"sparsify": "prox_mm"}}, 68.6),
}


def _ablation(name: str, changes: dict[str, dict[str, object]], top1: float, table: str) -> Recipe:
    base = imagenet1k_base()
    parts = {part: replace(getattr(base, part), **values) for part, values in changes.items()}
    return replace(base, name=name, **parts, expected=Expected(top1, source=f"paper, {table}"))


for _ablations, _table in (
    (HYPERPARAMETERS, "table of parameters"),
    (ARCHITECTURES, "table of variants, whose options it does not state"),
):
    for _key, (_changes, _top1) in _ablations.items():
        _change = _key if _ablations is ARCHITECTURES else _key.replace("_", " ", 1)
        _about = f"ImageNet-1k, CRATE-Base with {_change}."
        enter(f"imagenet1k_base_{_key}", _about, _ablation, _changes, _top1, _table)
