"""The definitions of a layer's R^c, each by a name.

"R^c of layer l" has several readings (docs/ERRATA.md, 1.4). A `Definition` says which tokens are measured, whether
through the layer's LayerNorm, whether every projection is scaled to unit length, with which ε, whether with the
class token and with which scaling; every table carries its name. Three are built in:

    paper      R^c(Z^{l+1/2}; U_[K]^l), raw, as the text says; ε = 0.1 is ours, for the text gives none
    official   U_kᵀ LN(Z^l) with every projection at unit length, class token counted, ε² = 0.01, as the authors' script
               measures
    unit       R^c(Z^{l+1/2}; U_[K]^l) with every projection U_kᵀ z at unit length, ε = 0.1: what a layer gains by
               shrinking its tokens does not count

The non-zero fraction is ‖Z^{l+1}‖₀/(d·N) in all of them. This module is light, for recipes and help texts.
"""

from dataclasses import dataclass
from typing import Literal

from .bounds import Positive, Settings
from .errors import suggestion


@dataclass(frozen=True)
class Definition(Settings):
    """One reading of R^c: R^c(tokens; U_[K]^l) of the tokens at `site`."""

    name: str
    site: Literal["Z", "Z_half", "Z_next"] = "Z_half"
    norm: bool = False  # through the LayerNorm that stands before the compression: with site Z, the MSSA's input
    unit: bool = False  # every projected token U_kᵀ z scaled to unit norm
    eps: Positive[float] = 0.1
    class_token: bool = True
    scaling: Literal["p", "d"] = "p"


DEFINITIONS = {
    definition.name: definition
    for definition in (
        Definition("paper"),
        Definition("official", site="Z", norm=True, unit=True),
        Definition("unit", unit=True),
    )
}


def definition_named(definition: str | Definition) -> Definition:
    if isinstance(definition, Definition):
        if definition != DEFINITIONS.get(definition.name, definition):
            raise ValueError(f"the name {definition.name!r} is taken by another definition: give yours another")
        return definition
    if definition not in DEFINITIONS:
        raise ValueError(f"unknown definition {definition!r}{suggestion(definition, DEFINITIONS)}")
    return DEFINITIONS[definition]
