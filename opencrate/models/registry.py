"""The paper's sizes under timm's names: importing this module registers `crate_*`.

The class is imported when a network is built: this module may be imported while the modules that CRATE needs are not
ready yet, by the first of them that imports timm (`opencrate.timm_hook`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model

from ..errors import nearest, suggestion

if TYPE_CHECKING:
    from .crate import CRATE

# d, L and K of the paper's four sizes; p = d/K.
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"embed_dim": 384, "depth": 12, "num_heads": 6},
    "small": {"embed_dim": 576, "depth": 12, "num_heads": 12},
    "base": {"embed_dim": 768, "depth": 12, "num_heads": 12},
    "large": {"embed_dim": 1024, "depth": 24, "num_heads": 16},
}

VARIANTS: dict[str, dict[str, int]] = {
    f"crate_{size}_patch{patch_size}_{img_size}": {"img_size": img_size, "patch_size": patch_size, **SIZES[size]}
    for patch_size, img_size, sizes in [
        (16, 224, ("tiny", "small", "base", "large")),
        (8, 64, ("tiny", "small", "base")),
        (4, 32, ("tiny", "small", "base")),
    ]
    for size in sizes
}


def _default_cfg(img_size: int) -> dict[str, Any]:
    return {
        "url": "",
        "num_classes": 1000,
        "input_size": (3, img_size, img_size),
        "pool_size": None,
        "crop_pct": 0.875 if img_size > 64 else 1.0,
        "interpolation": "bicubic",
        "fixed_input_size": True,
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": (),  # ours is linear: timm would drop its weights for other channels, our filter adapts them
        "classifier": "head",
    }


default_cfgs = generate_default_cfgs({name: _default_cfg(variant["img_size"]) for name, variant in VARIANTS.items()})


def _filter(state: Any, model: "CRATE") -> Any:
    from ..checkpoints.key_maps import checkpoint_filter_fn

    return checkpoint_filter_fn(state, model)


def _entrypoint(name: str, variant: dict[str, int]) -> Callable[..., "CRATE"]:
    def create(pretrained: bool = False, **kwargs: Any) -> "CRATE":
        from .crate import CRATE

        return build_model_with_cfg(
            CRATE,
            name,
            pretrained,
            pretrained_filter_fn=_filter,
            feature_cfg={"out_indices": kwargs.pop("out_indices", 3), "feature_cls": "getter"},
            **{**variant, **kwargs},
        )

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f"CRATE with {variant}."
    return create


for _name, _variant in VARIANTS.items():
    register_model(_entrypoint(_name, _variant))


def network_suggestion(name: str) -> str:
    """The end of a sentence about an unknown network: the nearest name, or those of all CRATEs."""
    from timm.models import list_models

    of_timm = nearest(name, list_models()) and not name.startswith("crate")
    return suggestion(name, list_models() if of_timm else list_models("crate_*"))
