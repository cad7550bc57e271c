"""Agreement before speed: a variant's outputs and gradients are compared with float64.

A variant may be `tolerance` times as far from float64 as the plain network (the eager pseudocode, the eager ViT) in the
same precision, plus a rounding. In bf16 the plain network's error is the larger of two: with bf16 everywhere, and under
autocast, which accumulates in float32. The network is checked as it is timed, compiled and with its batch size; the
loss is that of the first pictures of the batch, so that float64 needs to compute only these.
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

ROUNDING = {"bf16": 2.0**-8, "fp32": 1e-5}
FAINT = 1e-3  # relative to a typical norm: a gradient with a smaller norm is compared with this one


@dataclass(frozen=True)
class Errors:
    """Relative to float64: outputs, gradients (root mean square over the weights), and the worst gradient."""

    outputs: float
    gradients: float | None = None
    worst_gradient: float | None = None

    def maximum(self, other: "Errors") -> "Errors":
        """The larger of both, error by error."""
        others = asdict(other)
        larger: Any = {what: mine if mine is None else max(mine, others[what]) for what, mine in asdict(self).items()}
        return Errors(**larger)

    def objection(self, plain: "Errors", tolerance: float, precision: str) -> str:
        """The first error that is larger than `tolerance` times the plain network's plus a rounding; "" if none is."""
        allowed = asdict(plain)
        for what, error in asdict(self).items():
            if error is not None and not is_close(error, allowed[what], tolerance, precision):
                return f"disagrees ({what.replace('_', ' ')}: error {error:.1e}, plain {allowed[what]:.1e})"
        return ""


def is_close(error: float, plain: float, tolerance: float, precision: str) -> bool:
    """Whether an error is small enough beside the plain network's; NaN is not."""
    return error <= tolerance * plain + ROUNDING[precision]


def relative_error(result: Tensor, exact: Tensor) -> float:
    """‖result − exact‖ / ‖exact‖."""
    return float((result.double() - exact).norm() / exact.norm())


class Judge:
    """Has the float64 results for the first `count` pictures of a batch, and the plain network's errors."""

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
            self.plain = self.plain.maximum(in_half)

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


def _gradient_errors(gradients: dict[str, Tensor], exact: dict[str, Tensor]) -> list[float]:
    """One for every weight; NaN, which is never close, if other weights have gradients than should."""
    if gradients.keys() != exact.keys():
        return [math.nan]
    norms = {name: float(gradient.norm()) for name, gradient in exact.items()}
    faint = FAINT * math.sqrt(sum(norm**2 for norm in norms.values()) / len(norms))
    return [float((gradients[name].double() - exact[name]).norm()) / max(norms[name], faint) for name in exact]
