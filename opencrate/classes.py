"""Which class of a set is which class of a network: by name, whatever their order; by number only without names."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from .errors import shown

Names = tuple[str, ...]


@dataclass(frozen=True)
class ClassMatch:
    """The classes of a set among those of a network."""

    numbers: tuple[int, ...]  # of every class of the set, in the network
    total: int  # classes of the network
    how: str

    def __str__(self) -> str:
        return f"{len(self.numbers):,} of the network's {self.total:,}, matched by {self.how}"


def class_names(model: Any) -> Names:
    """The names of a network's classes; empty if its record has none."""
    names: Any = (getattr(model, "pretrained_cfg", None) or {}).get("label_names")
    is_complete = isinstance(names, list | tuple) and len(names) == model.num_classes
    return tuple(map(str, names)) if is_complete else ()


def match_classes(names: Names, total: int, given: Names, whose: str = "the network") -> ClassMatch:
    """The classes `given` of a set among the `total` classes of a network, and `names` if it has names.

    Names agree if they differ in nothing but case, spaces, hyphens, slashes and underscores, as long as that leaves
    them distinct. A network of 1,000 classes without names may be ImageNet's.
    """
    if total < 1:
        raise ValueError(f"{whose} has no classifier, so only --knn and --linear can be measured")
    known = names or (imagenet()[0] if total == 1000 else ())
    if numbers := places(known, given):
        return ClassMatch(tuple(numbers), total, "number" if are_numbers(given) else "name")
    nameless = [owner for owner, its in ((whose, names), ("the set", given)) if are_numbers(its)]
    if nameless and len(given) == total:
        return ClassMatch(tuple(range(total)), total, f"number, because {nameless[0]} has no names for its classes")
    if nameless:
        raise ValueError(
            f"the set has {len(given):,} classes and {whose} {total:,}, which cannot be matched because {nameless[0]}"
            f" has no names for its classes: name those of the set as {whose} does, or give a set of {total:,} classes"
        )
    plain_names = set(map(plain, known))
    unknown = [name for name in given if plain(name) not in plain_names]
    example = f"such as {shown((unknown or given)[0], 30)}"
    raise ValueError(
        f"{whose} does not know {len(unknown):,} of the set's {len(given):,} classes, {example}: name them as it does,"
        f" for example {shown(known[0], 30)}, or leave them out"
        if unknown
        else f"the set's classes have names that cannot be told apart, {example}: name them as {whose} does"
    )


def places(known: Names, given: Names) -> list[int]:
    """The places of the given names among the known ones; none at all if one is not there, or not there once."""
    known, given = _as_codes(known), _as_codes(given)
    if known == given:  # names may be repeated: ImageNet has two cranes
        return list(range(len(known)))
    return _places(known, given, str) or _places(known, given, plain)


def are_numbers(names: Sequence[str]) -> bool:
    """Whether classes are numbered, as those are that have no names."""
    return all(name == str(i) for i, name in enumerate(names))


def plain(name: str) -> str:
    """A name without what differs between a list of names and the folders of the classes."""
    return re.sub(r"[\s_/-]+", " ", unicodedata.normalize("NFKC", name)).strip().casefold()


@cache
def imagenet() -> tuple[Names, Names]:
    """The codes (n01440764) and the descriptions of ImageNet's 1,000 classes."""
    from timm.data import ImageNetInfo

    info = ImageNetInfo()
    return tuple(info.label_names()), tuple(map(info.index_to_description, range(1000)))


@cache
def in_words(names: Names) -> Names:
    """Names of classes, where all are WordNet's codes (n01443537) by what these stand for (goldfish, …)."""
    if not names or not all(re.fullmatch(r"n\d{8}", name) for name in names):
        return names
    from timm.data import ImageNetInfo

    words = dict[str, str]()
    for subset in ("imagenet-22k", "imagenet-1k"):  # neither has all of the other's
        info = ImageNetInfo(subset)
        codes = info.label_names()
        words |= {code: info.label_name_to_description(code) for code in set(names).intersection(codes)}
    return tuple(words.get(name, name) for name in names)


def _as_codes(names: Names) -> Names:
    """ImageNet's classes by their codes, also where a set describes them all in words, as torchvision's does."""
    if len(names) == 1000 and sum(map(str.__eq__, map(plain, names), map(plain, imagenet()[1]))) > 900:
        return imagenet()[0]
    return names


def _places(known: Names, given: Names, key: Callable[[str], str]) -> list[int]:
    at, keys = {key(name): i for i, name in enumerate(known)}, list(map(key, given))
    is_distinct = len(at) == len(known) and len(set(keys)) == len(keys)
    return [at[name] for name in keys] if is_distinct and all(name in at for name in keys) else []
