"""The Triton kernel of LayerNorm's backward pass; fused_norms.py says what it computes and calls it.

A program takes every so-manieth block of rows and keeps its share of the sums over rows in registers, so that all is
one pass over the tokens; the shares are added up afterwards. D is d rounded up to a power of two.
"""

import triton
import triton.language as tl

__all__ = ["layer_norm_backward"]

INTERPRETED = triton.knobs.runtime.interpret


@triton.jit
def layer_norm_backward(
    dY, X, MEAN, RSTD, W, RESIDUAL, dX, SUMS, rows, d, threshold,
    ROWS: tl.constexpr, D: tl.constexpr, RELU: tl.constexpr, ADDS: tl.constexpr, TOTAL: tl.constexpr,
):  # fmt: skip
    """Z = X, or ReLU(X − threshold); dX = dLN(Z) + residual where Z > 0; and Σ dY Ẑ, Σ dY, Σ dX over this program's rows."""
    columns = tl.arange(0, D)
    inside = (columns < d)[None, :]
    w = tl.load(W + columns, columns < d, 0.0).to(tl.float32)[None, :]
    scale_sum = tl.zeros((ROWS, D), tl.float32)
    shift_sum = tl.zeros((ROWS, D), tl.float32)
    total_sum = tl.zeros((ROWS, D), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = block * ROWS + tl.arange(0, ROWS)
        there = row < rows
        mask = there[:, None] & inside
        at = row.to(tl.int64)[:, None] * d + columns[None, :]
        z = tl.load(X + at, mask, 0.0).to(tl.float32)
        dy = tl.load(dY + at, mask, 0.0).to(tl.float32)
        mean, rstd = tl.load(MEAN + row, there, 0.0), tl.load(RSTD + row, there, 0.0)
        if RELU:
            z = tl.maximum(z - threshold, 0.0)
        normal = tl.where(mask, (z - mean[:, None]) * rstd[:, None], 0.0)
        scale_sum += dy * normal
        shift_sum += dy
        g = dy * w
        along, constant = tl.sum(g * normal, 1) / d, tl.sum(g, 1) / d
        dx = rstd[:, None] * (g - normal * along[:, None] - constant[:, None])
        if ADDS:
            dx += tl.load(RESIDUAL + at, mask, 0.0).to(tl.float32)
        if RELU:
            dx = tl.where(z > 0, dx, 0.0)
        if TOTAL:
            total_sum += tl.where(mask, dx, 0.0)
        tl.store(dX + at, dx.to(dX.dtype.element_ty), mask)
    share = SUMS + tl.program_id(0).to(tl.int64) * 3 * d + columns
    tl.store(share, tl.sum(scale_sum, 0), columns < d)
    tl.store(share + d, tl.sum(shift_sum, 0), columns < d)
    if TOTAL:
        tl.store(share + 2 * d, tl.sum(total_sum, 0), columns < d)
