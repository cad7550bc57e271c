"""What a layer optimises: pure functions of tokens (…, n, d), one value per sample."""

from .denoising import LowRankMixture, attention_denoiser, denoise
from .rates import (
    coding_rate,
    coding_rate_gradient,
    curvature_bound,
    curvature_interval,
    hessian_vector,
    project,
    rate_reduction,
    rate_scale,
    subspace_coding_rate,
    subspace_coding_rate_gradient,
)
from .sparsity import expansion_objective, l0, l1, lasso, nonzero_fraction, soft_threshold, sparse_rate_reduction

__all__ = [
    "LowRankMixture",
    "attention_denoiser",
    "coding_rate",
    "coding_rate_gradient",
    "curvature_bound",
    "curvature_interval",
    "denoise",
    "expansion_objective",
    "hessian_vector",
    "l0",
    "l1",
    "lasso",
    "nonzero_fraction",
    "project",
    "rate_reduction",
    "rate_scale",
    "soft_threshold",
    "sparse_rate_reduction",
    "subspace_coding_rate",
    "subspace_coding_rate_gradient",
]
