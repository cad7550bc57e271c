"""One optimisation step each: compression against the subspaces U_[K], sparsification in the dictionary D.

The pure functions are the definitions; the classes hold weights and call them.
"""

from .attention import attention_maps, lift, ssa
from .base import Compression, Sparsification, SubspaceCompression, compressions, sparsifications
from .gradient import gradient_step, neumann_step, softmax_step
from .ista import ista, ista_unrolled, solve_lasso
from .mixture import mixture_step
from .mssa import mssa, mssa_tied
from .none import NoSparsification
from .prox_mm import prox_mm, prox_mm_tight, proximal_step

__all__ = [
    "Compression",
    "NoSparsification",
    "Sparsification",
    "SubspaceCompression",
    "attention_maps",
    "compressions",
    "gradient_step",
    "ista",
    "ista_unrolled",
    "lift",
    "mixture_step",
    "mssa",
    "mssa_tied",
    "neumann_step",
    "prox_mm",
    "prox_mm_tight",
    "proximal_step",
    "softmax_step",
    "solve_lasso",
    "sparsifications",
    "ssa",
]
