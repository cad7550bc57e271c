"""Shape annotations: `Float[Tensor, "n d"]`, executed by the tests and read by people.

jaxtyping is needed only where the annotations are checked; without it they mean plain tensors.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Float
else:
    try:
        from jaxtyping import Float
    except ImportError:

        class Float:
            def __class_getitem__(cls, tensor_and_shape: tuple[type, str]) -> Any:
                return tensor_and_shape[0]
