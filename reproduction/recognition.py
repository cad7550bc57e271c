"""Which dataset a folder holds: CIFAR-10 is not trained on under the name of Fashion-MNIST."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from PIL import Image

from opencrate.classes import are_numbers, plain
from opencrate.data.datasets.pictures import Pictures


@dataclass(frozen=True)
class _Known:
    kind: str  # of a picture: in colour, or grey
    side: int
    classes: str


_KNOWN = {
    "cifar10": _Known("in colour", 32, "airplane automobile bird cat deer dog frog horse ship truck"),
    "fashion_mnist": _Known("grey", 28, "t-shirt/top trouser pullover dress coat sandal shirt sneaker bag ankle_boot"),
}
_COMPARED = 8  # pictures: one in colour may look grey


def require_recognised(
    name: str, classes: tuple[str, ...], opened: Callable[[], Pictures], resized: bool = False
) -> None:
    """ValueError if a set of named classes knows few of the names, or the pictures of a nameless one are others'.

    Packed pictures are `resized`, and all in three channels, so that grey is where these are equal.
    """
    known = _KNOWN.get(name)
    if known is None:
        return
    if not are_numbers(classes):
        theirs = set(map(plain, known.classes.split()))
        foreign = [given for given in classes if plain(given) not in theirs]
        if len(foreign) > len(classes) / 2:
            raise ValueError(f"it holds another set: {name} has no class {foreign[0]!r}")
    elif pictures := list(_first(opened())):
        expected, found = known.kind, "grey" if all(map(_is_grey, pictures)) else "in colour"
        if not resized:
            width, height = pictures[0].size
            expected, found = f"{expected}, {known.side} × {known.side}", f"{found}, {width} × {height}"
        if expected != found:
            raise ValueError(f"it holds another set: the pictures of {name} are {expected}, and its first are {found}")


def _first(pictures: Pictures) -> Iterator[Image.Image]:
    """Those of its first pictures that decode; what does not is counted by a run."""
    for i in range(min(_COMPARED, len(pictures))):
        with suppress(OSError, ValueError):
            yield pictures.picture(i)


def _is_grey(picture: Image.Image) -> bool:
    pixels = np.asarray(picture.convert("RGB"))
    return bool((pixels == pixels[..., :1]).all())
