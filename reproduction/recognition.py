"""Which dataset a folder holds: CIFAR-10 is not trained on under the name of Fashion-MNIST."""

from dataclasses import dataclass

from opencrate.classes import are_numbers, plain
from opencrate.data.datasets.pictures import Pictures


@dataclass(frozen=True)
class _Known:
    mode: str  # of a picture, as Pillow names it
    side: int
    classes: str


_KNOWN = {
    "cifar10": _Known("RGB", 32, "airplane automobile bird cat deer dog frog horse ship truck"),
    "fashion_mnist": _Known("L", 28, "t-shirt/top trouser pullover dress coat sandal shirt sneaker bag ankle_boot"),
}


def require_recognised(name: str, classes: tuple[str, ...], pictures: Pictures | None = None) -> None:
    """ValueError if a set of named classes knows few of the names, or the pictures of a nameless one are others'."""
    known = _KNOWN.get(name)
    if known is None:
        return
    if not are_numbers(classes):
        theirs = set(map(plain, known.classes.split()))
        foreign = [given for given in classes if plain(given) not in theirs]
        if len(foreign) > len(classes) / 2:
            raise ValueError(f"it holds another set: {name} has no class {foreign[0]!r}")
    elif pictures is not None:
        first = pictures.picture(0)
        if (first.mode, first.width, first.height) != (known.mode, known.side, known.side):
            kind = "grey" if known.mode == "L" else "colour"
            raise ValueError(
                f"it holds another set: the pictures of {name} are in {kind}, of {known.side} × {known.side} pixels,"
                f" and its first is in {'grey' if first.mode == 'L' else 'colour'}, {first.width} × {first.height}"
            )
