"""The difference of two networks' accuracies, and how sure it is."""

import math
from dataclasses import dataclass

from .results import Sample

__all__ = ["Difference", "signed"]

STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)  # 97.5 % quantiles for 1, 2, … degrees
NORMAL = 1.96


@dataclass(frozen=True)
class Difference:
    """Of the mean accuracies of two networks, with its standard error and degrees of freedom where they are known."""

    mean: float
    error: float | None = None
    degrees: int = 1
    one_seed: bool = False

    @classmethod
    def of(cls, one: Sample, other: Sample) -> "Difference":
        """With the degrees of freedom that Welch and Satterthwaite give unequal variances, rounded down."""
        mean, alone = one.mean - other.mean, min(len(one.values), len(other.values)) == 1
        if one.error is None or other.error is None:
            return cls(mean, one_seed=alone)
        a, b = one.error**2, other.error**2
        spread = a**2 / one.degrees + b**2 / other.degrees
        degrees = int((a + b) ** 2 / spread + 1e-9) if spread else one.degrees + other.degrees
        return cls(mean, math.sqrt(a + b), degrees, alone)

    @property
    def ends(self) -> tuple[float, float]:
        """Of its 95 % interval."""
        if self.error is None:
            return -math.inf, math.inf
        half = _quantile(self.degrees) * self.error
        return self.mean - half, self.mean + half

    @property
    def sign(self) -> int:
        """Of a difference that is clear, else 0."""
        low, high = self.ends
        return 1 if low > 0 else -1 if high < 0 else 0

    def __str__(self) -> str:
        error = "" if self.error is None else f" ± {self.error:.2f}"
        return signed(self.mean, 2) + error + (", one seed" if self.one_seed else "")


def _quantile(degrees: int) -> float:
    """Student's, beyond the table by two terms of Cornish and Fisher's expansion around the normal one."""
    if degrees <= len(STUDENT):
        return STUDENT[degrees - 1]
    z = NORMAL
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def signed(value: float, digits: int) -> str:
    """With a sign in any case, and a minus that can be read."""
    return f"{value:+.{digits}f}".replace("-", "−")
