"""opencrate: CRATE, the white-box transformer, whose layers are steps of one objective.

    max over Z of  R(Z) − R^c(Z; U_[K]) − λ‖Z‖₀

Importing it registers `crate_*` with timm.
"""

from . import objective, operators
from .checkpoints import load, push_to_hub, save_pretrained
from .measures import layerwise
from .models import CRATE
from .stack import Step, trajectory

__version__ = "0.1.0"

__all__ = [
    "CRATE",
    "Step",
    "__version__",
    "layerwise",
    "load",
    "objective",
    "operators",
    "push_to_hub",
    "save_pretrained",
    "trajectory",
]
