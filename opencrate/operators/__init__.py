"""One optimisation step each: compression against the subspaces U_[K], sparsification in the dictionary D."""

from . import compression, sparsification
from .compression import (
    COMPRESSIONS,
    Compression,
    attention_maps,
    gradient_step,
    lift,
    mixture_step,
    mssa,
    mssa_tied,
    neumann_step,
    softmax_step,
    ssa,
)
from .sparsification import (
    SPARSIFICATIONS,
    Sparsification,
    ista,
    ista_unrolled,
    prox_mm,
    prox_mm_tight,
    proximal_step,
    solve_lasso,
)

__all__ = [
    "COMPRESSIONS",
    "SPARSIFICATIONS",
    "Compression",
    "Sparsification",
    "attention_maps",
    "compression",
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
    "sparsification",
    "ssa",
]
