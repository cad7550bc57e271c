"""Agreement before speed: a variant's outputs and gradients against float64.

The bar is the error that the plain network (the eager pseudocode, the eager ViT) makes itself in the same precision: a
variant may be up to `tolerance` times as far from float64, plus a rounding. In bf16 that is the larger of its errors
with bf16 everywhere and under autocast, which keeps what it adds up in float32. What is checked is the network as it is
timed, compiled and at its batch size: the loss is that of the batch's first pictures alone, which float64 can follow.
"""

import copy
import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from opencrate.checkpoints.key_maps import to_authors
from opencrate.distributed import autocast
from opencrate.models import CRATE

__all__ = ["Errors", "Judge", "is_close", "relative_error"]

ROUNDING = {"bf16": 2.0**-8, "fp32": 1e-5}
FAINT = 1e-3  # gradients below this share of a typical one are compared with that share of it


@dataclass(frozen=True)
class Errors:
    """Relative to float64: of the outputs, of the gradients (root mean square over the weights), of the worst one."""

    outputs: float
    gradients: float | None = None
    worst_gradient: float | None = None

    def or_worse(self, other: "Errors") -> "Errors":
        """The larger of each."""
        others = asdict(other)
        larger: Any = {what: mine if mine is None else max(mine, others[what]) for what, mine in asdict(self).items()}
        return Errors(**larger)

    def objection(self, plain: "Errors", tolerance: float, precision: str) -> str:
        """What is further off than `tolerance` times the plain network's and a rounding; empty if nothing is."""
        allowed = asdict(plain)
        for what, error in asdict(self).items():
            if error is not None and not is_close(error, allowed[what], tolerance, precision):
                return f"disagrees ({what.replace('_', ' ')}: error {error:.1e}, plain {allowed[what]:.1e})"
        return ""


def is_close(error: float, plain: float, tolerance: float, precision: str) -> bool:
    """Whether an error is no larger than the plain form's own allows; NaN is not."""
    return error <= tolerance * plain + ROUNDING[precision]


def relative_error(found: Tensor, exact: Tensor) -> float:
    """‖found − exact‖ / ‖exact‖."""
    return float((found.double() - exact).norm() / exact.norm())


class Judge:
    """Knows the right results for the first `count` pictures of a batch, and how far off the plain network is."""

    def __init__(
        self,
        exact: nn.Module,
        plain: nn.Module,
        images: Tensor,
        targets: Tensor,
        precision: str,
        count: int,
        training: bool,
    ) -> None:
        self.precision, self.count, self.training = precision, count, training
        self.images, self.targets = images, targets
        self.exact = self._results(exact, images[:count].double(), "fp32")
        self.plain = self.errors(plain, images[:count])
        if precision == "bf16":
            in_half = self._errors(copy.deepcopy(plain).bfloat16(), images[:count].bfloat16(), "fp32")
            self.plain = self.plain.or_worse(in_half)

    def errors(self, network: nn.Module, images: Tensor | None = None) -> Errors:
        return self._errors(network, self.images if images is None else images, self.precision)

    def _errors(self, network: nn.Module, images: Tensor, precision: str) -> Errors:
        logits, gradients = self._results(network, images, precision)
        outputs = relative_error(logits, self.exact[0])
        if not self.training:
            return Errors(outputs)
        each = _gradient_errors(gradients, self.exact[1])
        return Errors(outputs, math.sqrt(sum(error**2 for error in each) / len(each)), max(each))

    def objection(self, errors: Errors, tolerance: float) -> str:
        return errors.objection(self.plain, tolerance, self.precision)

    def _results(self, network: nn.Module, images: Tensor, precision: str) -> tuple[Tensor, dict[str, Tensor]]:
        network.train(self.training)
        with torch.set_grad_enabled(self.training):
            with autocast(images.device, precision):
                logits = network(images)
            first = logits[: self.count]
            if not self.training:
                return first, {}
            cross_entropy(
                first if first.dtype == torch.float64 else first.float(), self.targets[: self.count]
            ).backward()
        gradients = {name: weight.grad for name, weight in network.named_parameters() if weight.grad is not None}
        network.zero_grad(set_to_none=True)
        return first.detach(), to_authors(gradients) if isinstance(network, CRATE) else gradients


def _gradient_errors(found: dict[str, Tensor], exact: dict[str, Tensor]) -> list[float]:
    """One for every weight; NaN, which agrees with nothing, where one has no gradient or a wrong one has."""
    if found.keys() != exact.keys():
        return [math.nan]
    norms = {name: float(gradient.norm()) for name, gradient in exact.items()}
    faint = FAINT * math.sqrt(sum(norm**2 for norm in norms.values()) / len(norms))
    return [float((found[name].double() - exact[name]).norm()) / max(norms[name], faint) for name in exact]
