"""Figures: functions of values, which draw with matplotlib."""

from .audit import half_steps, head_map
from .canvas import save, to_png
from .curves import layer_curves
from .grids import attention_grid, patch_rows, token_colours
from .learning import learning_curves
from .matrices import heat_maps, subspace_grams
