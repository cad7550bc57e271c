"""Shape annotations, executed by the tests and read by people: b samples, n tokens, d dimensions, k subspaces of p.

jaxtyping is needed only where the annotations are checked; without it they mean plain tensors.
"""

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float
else:
    try:
        from jaxtyping import Float
    except ImportError:

        class Float:
            def __class_getitem__(cls, tensor_and_shape: tuple[type, str]) -> Any:
                return tensor_and_shape[0]


Tokens = Float[Tensor, "*batch n d"]
Token = Float[Tensor, "*batch d"]
PerSample = Float[Tensor, "*batch"]
Bases = Float[Tensor, "k d p"]  # U_[K]
Projections = Float[Tensor, "*batch k n p"]  # V_k = Z U_k
Dictionary = Float[Tensor, "d m"]  # D; its atoms are columns
Codes = Float[Tensor, "*batch n m"]
