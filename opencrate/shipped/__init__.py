"""The network that comes with the package, and photos to look at with it; README.md beside this tells where from."""

from pathlib import Path

NETWORK = Path(__file__).parent / "crate_tiny_cifar10"
PHOTOS = Path(__file__).parent / "photos"
