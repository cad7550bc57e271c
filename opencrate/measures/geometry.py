"""What the weights and the tokens are, as geometry: how near to the frames, subspaces and ranks of the theory.

The theory has orthonormal bases U_k of incoherent subspaces and an orthogonal dictionary D; training needs neither.
All functions work in float64 and are free of the weights' overall size where the theory is.
"""

import torch
from torch import Tensor

from ..shapes import Float


def orthonormality_gap(U: Float[Tensor, "k d p"]) -> Float[Tensor, "k"]:
    """‖U_kᵀU_k/c − I‖_F/√p with c = ‖U_k‖²_F/p: 0 for a basis that is orthonormal up to its size; 1 for a dead one."""
    grams = U.double().mT @ U.double()
    p = grams.shape[-1]
    size = grams.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    shaped = grams / size.where(size > 0, 1.0)
    return (shaped - torch.eye(p, dtype=grams.dtype, device=grams.device)).flatten(1).norm(dim=1) / p**0.5


def orthogonality_gap(D: Float[Tensor, "d m"]) -> float:
    """‖DᵀD − I‖_F/√m, not free of size: ISTA's step depends on it."""
    D = D.double()
    return float((D.mT @ D - torch.eye(D.shape[-1], dtype=D.dtype, device=D.device)).norm() / D.shape[-1] ** 0.5)


def coherence(U: Float[Tensor, "k d p"]) -> Float[Tensor, "k k"]:
    """The cosine of the smallest angle between every two subspaces: 0 where they are orthogonal, 1 where they meet.

    1 on the diagonal; a dead head has no directions, and coherence 0 with the others.
    """
    bases = [_basis(basis) for basis in U.double()]
    cosines = torch.eye(len(bases), dtype=torch.float64, device=U.device)
    for i, one in enumerate(bases):
        for j, other in enumerate(bases[:i]):
            if one.shape[1] and other.shape[1]:
                cosines[i, j] = cosines[j, i] = torch.linalg.matrix_norm(one.mT @ other, ord=2).clamp(max=1.0)
    return cosines


def coherence_between(U: Float[Tensor, "k d p"]) -> tuple[float, float]:
    """The mean and the largest coherence of two different subspaces; 0 for a single one."""
    apart = coherence(U)[~torch.eye(len(U), dtype=torch.bool, device=U.device)]
    return (apart.mean().item(), apart.max().item()) if len(apart) else (0.0, 0.0)


def normalised_gram(U: Float[Tensor, "k d p"]) -> Float[Tensor, "kp kp"]:
    """[U_1 … U_K]ᵀ[U_1 … U_K] with columns of unit norm: the cosines between all directions (the paper's figure)."""
    columns = U.double().transpose(0, 1).flatten(1)  # (d, k·p)
    columns = torch.nn.functional.normalize(columns, dim=0)
    return columns.mT @ columns


def effective_rank(Z: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
    """exp of the entropy of the singular values' squares as shares of ‖Z‖²_F: between 1 and min(n, d); 0 for Z = 0."""
    Z = Z.double()
    gram = Z @ Z.mT if Z.shape[-2] <= Z.shape[-1] else Z.mT @ Z
    energies = torch.linalg.eigvalsh(gram).clamp_min(0)
    total = energies.sum(-1, keepdim=True)
    shares = energies / total.where(total > 0, 1.0)
    return torch.special.entr(shares).sum(-1).exp() * (total[..., 0] > 0)


def spread(Z: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
    """1 − ‖mean of z/‖z‖‖ over the tokens z: 0 where all have one direction, or where all are 0."""
    unit = torch.nn.functional.normalize(Z.double(), dim=-1)
    return unit.norm(dim=-1).mean(-1) - unit.mean(-2).norm(dim=-1)


def dead_heads(U: Float[Tensor, "k d p"]) -> list[int]:
    """The subspaces, counted from 1, onto which everything projects to 0."""
    return [k + 1 for k, basis in enumerate(U) if not basis.any()]


def _basis(columns: Tensor) -> Tensor:
    """An orthonormal basis of the columns' span, (d, rank)."""
    left, singular, _ = torch.linalg.svd(columns, full_matrices=False)
    return left[:, singular > singular[0] * max(columns.shape) * torch.finfo(columns.dtype).eps]
