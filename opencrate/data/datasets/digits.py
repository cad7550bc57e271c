"""The embedded default: 1,797 handwritten digits, 8×8 pixels in 17 greys.

They are those of `sklearn.datasets.load_digits`: the test part of "Optical Recognition of Handwritten Digits" by E.
Alpaydin and C. Kaynak (1998), UCI Machine Learning Repository, doi:10.24432/C50P49, licence CC BY 4.0.
"""

from importlib.resources import files

import numpy as np

CLASSES = tuple("0123456789")


def load(training: bool) -> tuple[np.ndarray, np.ndarray]:
    """Pictures (n, 8, 8) in 0 … 255 and classes (n,); every fifth digit is held out for validation."""
    with files(__package__).joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        greys, targets = arrays["greys"], arrays["targets"]
    chosen = (np.arange(len(greys)) % 5 != 4) == training
    return np.rint(greys[chosen] * (255 / 16)).astype(np.uint8), targets[chosen].astype(np.int64)
