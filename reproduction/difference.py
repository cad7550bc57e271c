"""The difference of two networks' accuracies, and how certain it is."""

import math
from dataclasses import dataclass

from scipy import stats

from .results import Sample


@dataclass(frozen=True)
class Difference:
    """A difference of mean accuracies, with its standard error and degrees of freedom where they are known."""

    mean: float
    error: float | None = None
    degrees: float = 1
    one_seed: bool = False

    @classmethod
    def of(cls, one: Sample, other: Sample) -> "Difference":
        """One minus the other, with the degrees of freedom of Welch and Satterthwaite for unequal variances."""
        mean, one_seed = one.mean - other.mean, min(len(one.values), len(other.values)) == 1
        if one.error is None or other.error is None:
            return cls(mean, one_seed=one_seed)
        a, b = one.error**2, other.error**2
        spread = a**2 / one.degrees + b**2 / other.degrees
        degrees = (a + b) ** 2 / spread if spread else one.degrees + other.degrees
        return cls(mean, math.sqrt(a + b), degrees, one_seed)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval by Student's t."""
        if self.error is None:
            return -math.inf, math.inf
        half = float(stats.t.ppf(0.975, self.degrees)) * self.error
        return self.mean - half, self.mean + half

    @property
    def sign(self) -> int:
        """1 or −1 if the 95 % interval leaves out 0, else 0."""
        low, high = self.interval
        return 1 if low > 0 else -1 if high < 0 else 0

    def __str__(self) -> str:
        error = "" if self.error is None else f" ± {self.error:.2f}"
        return signed(self.mean, 2) + error + (", one seed" if self.one_seed else "")


def signed(value: float, digits: int) -> str:
    """Always with a sign, and with a typographic minus."""
    return f"{value:+.{digits}f}".replace("-", "−")
