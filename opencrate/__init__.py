"""opencrate: CRATE, the white-box transformer, whose layers are steps of one objective.

    max over Z of  R(Z) − R^c(Z; U_[K]) − λ‖Z‖₀

Importing it registers `crate_*` with timm. Everything else is imported at its first use.
"""

from typing import TYPE_CHECKING

from .lazy import lazy_names
from .timm_hook import register_with_timm

if TYPE_CHECKING:
    from . import objective, operators
    from .checkpoints import Card, load, push_to_hub, save_pretrained
    from .measures import layerwise
    from .models import CRATE
    from .prediction import predict
    from .stack import Step, trajectory

__version__ = "0.1.0"

__all__ = [
    "CRATE",
    "Card",
    "Step",
    "__version__",
    "layerwise",
    "load",
    "objective",
    "operators",
    "predict",
    "push_to_hub",
    "save_pretrained",
    "trajectory",
]

__getattr__ = lazy_names(
    __name__,
    {
        "CRATE": "models",
        "Card": "checkpoints",
        "Step": "stack",
        "layerwise": "measures",
        "load": "checkpoints",
        "predict": "prediction",
        "push_to_hub": "checkpoints",
        "save_pretrained": "checkpoints",
        "trajectory": "stack",
    }
    # parts that can be used as attributes: opencrate.objective.coding_rate
    | {
        name: name
        for name in ("checkpoints", "layers", "measures", "models", "objective", "operators", "stack", "stems")
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_with_timm()
