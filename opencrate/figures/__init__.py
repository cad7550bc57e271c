"""The figures of the paper's section 3.1 and appendix B.2, and ours: each is drawn by one function of plain values.

    layer_curves, accuracy_curve                R^c and the non-zero fraction by layer; accuracy by epoch
    heat_maps                                   token matrices Z^l
    subspace_grams                              [U_1 … U_K]ᵀ[U_1 … U_K] with columns of unit norm
    half_steps, head_map                        the audit, and what heads matter for
    class_bars, confusion, worded_pictures      what is recognised, and what is not
    attention_grid, token_colours, patch_rows   what the layers see, on pictures

All return matplotlib's `Figure`, which `save` writes and `to_png` embeds. Nothing here runs a network. What has no
value (NaN, infinite) is left out and named in the note below the figure.
"""

from .audit import half_steps, head_map
from .canvas import save, to_png
from .curves import accuracy_curve, layer_curves
from .grids import attention_grid, patch_rows, token_colours
from .matrices import confusion, heat_maps, subspace_grams
from .recognition import class_bars, worded_pictures
