"""What an operator is: a small module that holds weights, and answers what tools ask of it.

    compression       Y → the move of every token, (…, n, d)
    sparsification    Y → code → tokens, (…, n, d)

Y is the tokens behind a half-step's norm. A role that an operator does not override says "I have none": tools then
leave out what depends on it, and never guess by name or type.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..objective.rates import project, subspace_coding_rate
from .registry import Options, Registry


@dataclass(frozen=True)
class Certificate:
    """What a theorem says of a step, whatever the tokens are."""

    statement: str  # a sentence
    condition: str = ""  # on the weights; empty where there is none
    value: float | None = None  # what the condition is about
    holds: bool = True


class Operator(nn.Module):
    """The roles that both kinds share."""

    spec: tuple[str, Options] = ("", {})  # its registered name and its options
    replaces = False  # the result takes the tokens' place, instead of being added to them
    normalised = True  # a norm stands before it
    token_wise = False  # every token is treated by itself
    cuda_graph_safe = True  # it reads no value on the host
    aim_name = ""  # what `aim` is called in tables

    @property
    def name(self) -> str:
        return self.spec[0] or type(self).__name__

    @property
    def options(self) -> Options:
        return self.spec[1]

    def has(self, role: str) -> bool:
        """Whether the operator brings this role itself."""
        kind = Compression if isinstance(self, Compression) else Sparsification
        return getattr(type(self), role) is not getattr(kind, role)

    def certificates(self) -> tuple[Certificate, ...]:
        """What theorems say of the step with the weights as they are."""
        return ()

    def extra_repr(self) -> str:
        return ", ".join(f"{option}={value}" for option, value in self.spec[1].items())


class Compression(Operator):
    """Moves tokens toward their subspaces. One that has subspaces offers them as `U` (k, d, p)."""

    def projections(self, Y: Tensor) -> Tensor | None:
        """V_k = Y U_k for every subspace, (…, k, n, p)."""
        U = getattr(self, "U", None)
        return None if U is None else project(Y, U)

    def maps(self, Y: Tensor) -> Tensor | None:
        """Its own attention maps (…, k, n, n): row i says with which tokens token i is compressed."""
        return None

    def aim(self, Z: Tensor, eps: float) -> Tensor | None:
        """What the step is to lower, a value for every sample."""
        return None

    def step(self, y: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One more token y (…, 1, d) of a causal network: its move, and the state that the next token needs."""
        raise ValueError(f"compression {self.name!r} cannot decode token by token")

    def mute(self, heads: list[int]) -> None:
        """Let these heads, counted from 0, contribute nothing from now on."""
        raise ValueError(f"compression {self.name!r} does not say how a head is switched off")


class Sparsification(Operator):
    """Finds a sparse code of the tokens. One that codes in a dictionary offers it as `D` (d, m)."""

    def code(self, Y: Tensor) -> Tensor | None:
        """What is sparse, (…, n, m)."""
        return None

    def decode(self, code: Tensor) -> Tensor:
        """From the code back to tokens, (…, n, d)."""
        return code

    def aim(self, Y: Tensor, code: Tensor) -> Tensor | None:
        """What the code is to lower, a value for every sample."""
        return None

    def forward(self, Y: Tensor) -> Tensor:
        code = self.code(Y)
        if code is None:
            raise ValueError(f"sparsification {self.name!r} has neither `code` nor a `forward` of its own")
        return self.decode(code)


class SubspaceCompression(Compression):
    """A compression against learned subspaces U_[K]: its aim is R^c, its weights are `UT` (k·p, d).

    Rows k·p … (k+1)·p − 1 of `UT` are U_kᵀ, the layout that a matrix product reads without a copy. `basis` is "free",
    or "orthonormal": then U_kᵀU_k = I for every k, whatever the optimiser does.
    """

    aim_name = "R^c"

    def __init__(self, dim: int, num_heads: int, head_dim: int | None = None, basis: str = "free") -> None:
        super().__init__()
        self.num_heads, self.head_dim = num_heads, dim // num_heads if head_dim is None else head_dim
        self.muted: Tensor | None = None
        self.UT = nn.Parameter(torch.empty(num_heads * self.head_dim, dim))
        nn.init.kaiming_uniform_(self.UT, a=5**0.5)
        if basis == "orthonormal":
            nn.utils.parametrize.register_parametrization(self, "UT", OrthonormalHeads(num_heads))
        elif basis != "free":
            raise ValueError(f"basis must be 'free' or 'orthonormal', got {basis!r}")

    def reset_parameters(self) -> None:
        """Draw the bases again; with orthonormal ones, what they are made from."""
        parametrised: Any = getattr(self, "parametrizations", None)
        weights = self.UT if parametrised is None else parametrised.UT.original
        nn.init.kaiming_uniform_(weights, a=5**0.5)

    @property
    def U(self) -> Tensor:
        """The bases U_[K], (k, d, p): a view of the weights."""
        return self.UT.view(self.num_heads, self.head_dim, -1).transpose(1, 2)

    @property
    def active_U(self) -> Tensor:
        """The bases with zeros in place of muted heads."""
        return self.U if self.muted is None else self.U.index_fill(0, self.muted.to(self.UT.device), 0.0)

    def mute(self, heads: list[int]) -> None:
        before = [] if self.muted is None else self.muted.tolist()
        self.muted = torch.tensor(sorted({*before, *heads}))

    def without_muted(self, heads: Tensor) -> Tensor:
        """The heads' results (…, k, n, p) with zeros in place of muted ones."""
        return heads if self.muted is None else heads.index_fill(-3, self.muted.to(heads.device), 0.0)

    def aim(self, Z: Tensor, eps: float) -> Tensor | None:
        return subspace_coding_rate(Z, self.U, eps)


class OrthonormalHeads(nn.Module):
    """Parametrisation of `UT` (k·p, d): the rows of every head are made orthonormal by a QR decomposition."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def forward(self, weights: Tensor) -> Tensor:
        Q, R = torch.linalg.qr(weights.unflatten(0, (self.num_heads, -1)).mT)  # (k, d, p), (k, p, p)
        signs = torch.where(R.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(Q.dtype)  # then Q = UTᵀ where it is one
        return (Q * signs[:, None]).mT.flatten(0, 1)

    def right_inverse(self, UT: Tensor) -> Tensor:
        return UT


compressions: Registry[Compression] = Registry("compression")
sparsifications: Registry[Sparsification] = Registry("sparsification")
