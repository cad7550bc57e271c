"""A mixture of low-rank Gaussians seen through noise: score, optimal denoiser, and the denoiser's attention form.

    z ~ Σ_k π_k N(0, U_k Λ_k U_kᵀ),   x = z + σw                                  eq. additive-gaussian-noise
    E[z | x] = x + σ² ∇log q(x)                                                   eq. tweedie
             ≈ Σ_k softmax_k(‖U_kᵀ x‖²/(2σ²)) U_k U_kᵀ x                          eq. mog-score-as-attention

The score is exact for any weights and covariances; the paper's proposition needs π_k det(Σ_k + σ²I)^{-1/2} to be the
same for all k. The attention form is right where σ² is far below the smallest eigenvalue in Λ (the text says σ).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ..errors import require_positive
from ..shapes import Bases, Float, PerSample, Token
from .rates import project, require_finite


@dataclass(frozen=True, eq=False)
class LowRankMixture:
    """π_k (k,), orthonormal bases U_k (k, d, p) and the variances along them, the diagonals of Λ_k (k, p)."""

    weights: Tensor
    U: Tensor
    variances: Tensor

    def __post_init__(self) -> None:
        k, _, p = self.U.shape
        if self.weights.shape != (k,) or self.variances.shape != (k, p):
            raise ValueError(
                f"{k} subspaces of dimension {p} need weights ({k},) and variances ({k}, {p}), "
                f"got {tuple(self.weights.shape)} and {tuple(self.variances.shape)}"
            )
        if not bool((self.weights > 0).all()) or not bool(torch.isclose(self.weights.sum(), self.weights.new_ones(()))):
            raise ValueError("weights must be positive and sum to 1")
        if not bool((self.variances >= 0).all()):
            raise ValueError("variances must not be negative")
        gram = self.U.mT @ self.U
        if not torch.allclose(gram, torch.eye(p, dtype=gram.dtype, device=gram.device).expand_as(gram), atol=1e-5):
            raise ValueError("the columns of every U_k must be orthonormal")

    @classmethod
    def from_covariances(cls, weights: Tensor, covariances: Float[Tensor, "k d d"]) -> "LowRankMixture":
        """Any positive semi-definite Σ_k, by their eigenvectors (p = d)."""
        if not torch.allclose(covariances, covariances.mT):
            raise ValueError("covariances must be symmetric")
        variances, U = torch.linalg.eigh(covariances)
        if not bool((variances >= -1e-6 * variances.abs().amax()).all()):
            raise ValueError("covariances must be positive semi-definite")
        return cls(weights, U, variances.clamp(min=0))

    def sample(self, n: int, generator: torch.Generator | None = None) -> tuple[Float[Tensor, "n d"], Tensor]:
        """n clean tokens, and the subspace from which each was drawn."""
        component = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        noise = torch.randn(n, self.U.shape[-1], generator=generator, dtype=self.U.dtype, device=self.U.device)
        coordinates = noise * self.variances[component].sqrt()
        return torch.einsum("ndp,np->nd", self.U[component], coordinates), component

    def log_prob(self, X: Token, sigma: float) -> PerSample:
        """log q(x), the density of the noisy token."""
        return self._joint_log_prob(X, sigma).logsumexp(-1)

    def responsibilities(self, X: Token, sigma: float) -> Float[Tensor, "*batch k"]:
        """P(subspace k | x)."""
        return self._joint_log_prob(X, sigma).softmax(-1)

    def posterior_mean(self, X: Token, sigma: float) -> Token:
        """E[z | x] = Σ_k P(k | x) U_k Λ_k (Λ_k + σ²)⁻¹ U_kᵀ x."""
        shrunk = self._project(X) * self.variances / (self.variances + sigma**2)  # (…, k, p)
        return torch.einsum("...k,...kp,kdp->...d", self.responsibilities(X, sigma), shrunk, self.U)

    def score(self, X: Token, sigma: float) -> Token:
        """∇log q(x) = (E[z | x] − x)/σ²: Tweedie's formula, read from right to left."""
        return (self.posterior_mean(X, sigma) - X) / sigma**2

    def _project(self, X: Tensor) -> Tensor:
        return project(X.unsqueeze(-2), self.U).squeeze(-2)  # (…, k, p)

    def _joint_log_prob(self, X: Tensor, sigma: float) -> Tensor:
        """log π_k + log N(x; 0, Σ_k + σ²I), by the p directions in which Σ_k is not zero."""
        require_positive("sigma", sigma)
        require_finite("X", X)
        d, p = self.U.shape[-2:]
        V, noisy = self._project(X), self.variances + sigma**2
        outside = X.unsqueeze(-2) - torch.einsum("...kp,kdp->...kd", V, self.U)  # from the subspace to x
        mahalanobis = (V.square() / noisy).sum(-1) + outside.square().sum(-1) / sigma**2
        logdet = noisy.log().sum(-1) + (d - p) * 2 * math.log(sigma)
        return self.weights.log() - 0.5 * (mahalanobis + logdet + d * math.log(2 * math.pi))


def attention_denoiser(X: Token, U: Bases, sigma: float) -> Token:
    """Σ_k softmax_k(‖U_kᵀ x‖²/(2σ²)) U_k U_kᵀ x: every subspace is a head, its softmax the choice among them."""
    require_positive("sigma", sigma)
    require_finite("X", X)
    V = project(X.unsqueeze(-2), U).squeeze(-2)  # (…, k, p)
    membership = (V.square().sum(-1) / (2 * sigma**2)).softmax(-1)
    return torch.einsum("...k,...kp,kdp->...d", membership, V, U)


def denoise(X: Token, sigmas: Sequence[float], denoiser: Callable[[Tensor, float], Tensor]) -> Iterator[Token]:
    """Yield X and each x^{l+1} = f(x^l, σ^l) + (σ^{l+1}/σ^l)(x^l − f(x^l, σ^l)), for noise levels that fall to 0.

    `denoiser` is f, for example `mixture.posterior_mean`. A single level is Tweedie's formula in one step; more levels
    take away a part of the noise at a time, so that each denoising starts from tokens closer to their subspaces.
    """
    levels = [*sigmas, 0.0]
    if any(later >= earlier for earlier, later in pairwise(levels)):
        raise ValueError(f"noise levels must fall and stay positive, got {list(sigmas)}")
    yield X
    for sigma, sigma_next in pairwise(levels):
        clean = denoiser(X, sigma)
        X = clean + (sigma_next / sigma) * (X - clean)
        yield X
