"""Noisy tokens move onto their subspaces (section 2.2 of the paper): python examples/denoising.py [PICTURE]."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from opencrate.objective import LowRankMixture, attention_denoiser, denoise

COLOURS = ["#0072B2", "#D55E00", "#009E73"]  # told apart by colour-blind readers too
picture = Path(sys.argv[1] if len(sys.argv) > 1 else "out/denoising.png")
generator = torch.Generator().manual_seed(0)

# Three lines through the origin of the plane: K = 3 subspaces of dimension p = 1 in d = 2.
angles = torch.tensor([10.0, 70.0, 130.0], dtype=torch.float64).deg2rad()
U = torch.stack([angles.cos(), angles.sin()], dim=-1).unsqueeze(-1)  # (k, d, p)
mixture = LowRankMixture(torch.full((3,), 1 / 3, dtype=torch.float64), U, torch.ones(3, 1, dtype=torch.float64))


def noisy_tokens(n: int, sigma: float) -> tuple[torch.Tensor, torch.Tensor]:
    Z, component = mixture.sample(n, generator)
    return Z + sigma * torch.randn(Z.shape, generator=generator, dtype=Z.dtype), component


def distance(X: torch.Tensor) -> float:
    """Root mean squared distance from the nearest line."""
    along = torch.einsum("nd,kdp->nk", X, U).square().amax(1)
    return (X.square().sum(1) - along).clamp(min=0).mean().sqrt().item()


X, component = noisy_tokens(400, 0.25)
path = torch.stack(list(denoise(X, [0.25, 0.15, 0.08, 0.04], mixture.posterior_mean)))  # (steps, n, d)
print("distance from the nearest subspace, step by step:", "  ".join(f"{distance(Z):.4f}" for Z in path))

sigmas, errors = [0.4, 0.2, 0.1, 0.05, 0.025, 0.0125], []
print("\n  sigma   error of the attention form (root mean square against the exact posterior mean)")
for sigma in sigmas:
    X_sigma = noisy_tokens(100_000, sigma)[0]
    difference = attention_denoiser(X_sigma, U, sigma) - mixture.posterior_mean(X_sigma, sigma)
    errors.append(difference.square().sum(1).mean().sqrt().item())
    print(f"{sigma:7.4f}   {errors[-1]:.5f}")

figure, axes = plt.subplots(1, 4, figsize=(14, 3.6), layout="constrained")
for axis, step in zip(axes[:3], (0, 2, 4), strict=True):
    for k, colour in enumerate(COLOURS):
        axis.axline((0, 0), slope=angles[k].tan().item(), color=colour, alpha=0.25, linewidth=4)
        axis.plot(*path[: step + 1, component == k].permute(2, 0, 1), color=colour, alpha=0.25, linewidth=0.7)
        axis.scatter(*path[step, component == k].T, s=7, color=colour, zorder=3)
    axis.set(title=f"after {step} steps" if step else "noisy tokens", xlim=(-3, 3), ylim=(-3, 3), aspect="equal")
axes[3].loglog(sigmas, errors, "o", color="black", label="measured")
axes[3].loglog(sigmas, [sigma**2 for sigma in sigmas], "--", color="grey", label="σ²")
axes[3].set_xticks(sigmas, [f"{sigma:g}" for sigma in sigmas], rotation=45)
axes[3].minorticks_off()
axes[3].set(title="error of the attention form", xlabel="noise level σ", ylabel="root mean square")
axes[3].legend(frameon=False)
picture.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(picture, dpi=150)
print(f"\nwrote {picture}")
