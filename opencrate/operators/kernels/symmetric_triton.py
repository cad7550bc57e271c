"""The Triton kernels of symmetric attention; symmetric_attention.py says what they compute and calls them.

A program owns `ROWS` tokens of one head and passes over the others in blocks of `COLS`; for short heads,
`backward_whole` owns all of them. The tokens beyond the last whole block, often the class token alone, get blocks of
their own that are no larger than they need: `LAST_ROWS` and `REST`. Logits and ℓ are kept in units of log 2, for exp2.
P is p rounded up to a power of two.

For float32 (PRECISION "ieee") ℓ is float64, for 24 bits of it leave an error in exp(S − ℓ) that is several times that
of a softmax; and ⟨dO_i, O_i⟩ is Σ_j P_ij ⟨dO_i, V_j⟩ of the products it is subtracted from (`delta_exact`).
"""

from typing import Any

import torch
import triton
import triton.language as tl

INTERPRETED = triton.knobs.runtime.interpret


def rest(n: int, block: int) -> int:
    """The size of the block for what n tokens leave beyond whole ones: a power of two, at least 16, or none."""
    return max(16, triton.next_power_of_2(n % block)) if n % block else 0


def _last(arguments: dict[str, Any], block: int) -> int:
    n = arguments["n"]
    return (block if n % block else 0) if arguments["PRECISION"] == "ieee" else rest(n, block)


def _configs(*choices: tuple[int, ...]) -> list[triton.Config]:
    return [
        triton.Config({"ROWS": rows, "COLS": cols, "STAGES": stages}, num_warps=warps, maxnreg=(*registers, None)[0])
        for rows, cols, warps, stages, *registers in choices
    ]


# ROWS, COLS, warps, stages and the limit of registers. Float32 products are not done by matrix units: large blocks of
# them take minutes to compile. All their blocks are of one size, so that a product gives the same bits wherever it is.
FLOAT32 = (32, 32, 4, 1)
FORWARD = _configs((64, 64, 4, 3), (64, 32, 4, 3), (64, 128, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2), FLOAT32)
BACKWARD = _configs((64, 32, 4, 3, 128), (64, 32, 4, 3), (64, 32, 4, 1), (64, 64, 4, 2), (128, 32, 4, 1), FLOAT32)


def _to_try(configs: list[triton.Config], arguments: dict[str, Any], **constants: Any) -> list[triton.Config]:
    """The first is the best on an H200 for p = 64 at every length from 65 to 4,097; other devices try them all."""
    if (arguments | constants)["PRECISION"] == "ieee":
        return configs[-1:]
    return configs[:1] if INTERPRETED or torch.cuda.get_device_capability() == (9, 0) else configs[:-1]


TUNED = {
    "key": ["SPAN", "P", "CAUSAL", "PRECISION"],  # the length counts by its power of two, SPAN
    "prune_configs_by": {"early_config_prune": _to_try},
    "cache_results": True,
}
SIZES = {
    "LAST_ROWS": lambda arguments: _last(arguments, arguments["ROWS"]),
    "REST": lambda arguments: _last(arguments, arguments["COLS"]),
}


@triton.jit
def _load(base, first, n, stride, p, BLOCK: tl.constexpr, P: tl.constexpr, WHOLE: tl.constexpr):
    """Tokens first … first + BLOCK − 1 of one head, (BLOCK, P); zero beyond n and beyond p."""
    rows, columns = first + tl.arange(0, BLOCK), tl.arange(0, P)
    pointers = base + rows[:, None] * stride + columns[None, :]
    if WHOLE:
        return tl.load(pointers)
    return tl.load(pointers, (rows < n)[:, None] & (columns < p)[None, :], 0.0)


@triton.jit
def _store(base, first, n, stride, p, values, BLOCK: tl.constexpr, P: tl.constexpr):
    rows, columns = first + tl.arange(0, BLOCK), tl.arange(0, P)
    pointers = base + rows[:, None] * stride + columns[None, :]
    tl.store(pointers, values.to(base.dtype.element_ty), (rows < n)[:, None] & (columns < p)[None, :])


@triton.jit
def _exp2(s, scale, l, PRECISION: tl.constexpr):
    """2^(scale · s − l)."""
    exponent = s * scale - l
    if PRECISION == "ieee":
        exponent = (s.to(tl.float64) * scale - l).to(tl.float32)
    return tl.exp2(exponent)


@triton.jit
def _attend(
    v_i, rows, largest, total, o, V, first, n, stride, p, scale,
    BLOCK: tl.constexpr, P: tl.constexpr, WHOLE: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of columns of the online softmax."""
    v_j = _load(V, first, n, stride, p, BLOCK, P, WHOLE)
    s = tl.dot(v_i, tl.trans(v_j), input_precision=PRECISION)
    scaled = s * scale
    if MASKED:
        columns = first + tl.arange(0, BLOCK)
        seen = (columns < n)[None, :]
        if CAUSAL:
            seen = seen & (columns[None, :] <= rows[:, None])
        scaled = tl.where(seen, scaled, float("-inf"))
    new = tl.maximum(largest, tl.max(scaled, 1))
    if PRECISION == "ieee":
        weights = tl.where(scaled > float("-inf"), _exp2(s, scale, new[:, None], PRECISION), 0.0)
    else:
        weights = tl.exp2(scaled - new[:, None])
    decay = tl.exp2(largest - new)
    total = total * decay + tl.sum(weights, 1)
    o = tl.dot(weights.to(v_j.dtype), v_j, o * decay[:, None], input_precision=PRECISION)
    return new, total, o


@triton.jit
def _forward_rows(
    V, O, L, first, n, stride, p, scale,
    ROWS: tl.constexpr, COLS: tl.constexpr, REST: tl.constexpr, P: tl.constexpr, WHOLE_P: tl.constexpr,
    LAST: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    rows = first + tl.arange(0, ROWS)
    v_i = _load(V, first, n, stride, p, ROWS, P, WHOLE_P and not LAST)
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    o = tl.zeros((ROWS, P), tl.float32)
    if CAUSAL:
        for j in tl.range(0, first // COLS * COLS, COLS, num_stages=STAGES):
            largest, total, o = _attend(
                v_i, rows, largest, total, o, V, j, n, stride, p, scale, COLS, P, WHOLE_P, False, False, PRECISION
            )
        for j in tl.range(first // COLS * COLS, tl.minimum(first + ROWS, n), COLS):
            largest, total, o = _attend(
                v_i, rows, largest, total, o, V, j, n, stride, p, scale, COLS, P, False, True, True, PRECISION
            )
    else:
        for j in tl.range(0, n // COLS * COLS, COLS, num_stages=STAGES):
            largest, total, o = _attend(
                v_i, rows, largest, total, o, V, j, n, stride, p, scale, COLS, P, WHOLE_P, False, False, PRECISION
            )
        if REST:
            largest, total, o = _attend(
                v_i, rows, largest, total, o, V, n // COLS * COLS, n, stride, p, scale, REST, P, False, True, False,
                PRECISION,
            )  # fmt: skip
    _store(O, first, n, stride, p, o / total[:, None], ROWS, P)
    tl.store(L + rows, largest + tl.log2(total.to(L.dtype.element_ty)), rows < n)


@triton.autotune(FORWARD, **TUNED)
@triton.heuristics(SIZES)
@triton.jit
def forward(
    V, O, L, n, heads, p, stride_batch, stride, scale,
    ROWS: tl.constexpr, COLS: tl.constexpr, LAST_ROWS: tl.constexpr, REST: tl.constexpr, P: tl.constexpr,
    WHOLE_P: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """A program is one block of rows of one head; blocks of a head follow each other, and share it in the cache."""
    blocks = tl.cdiv(n, ROWS)
    block, head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    if CAUSAL:
        block = blocks - 1 - block  # the longest first
    start = (head // heads).to(tl.int64) * stride_batch + (head % heads) * p
    V, O, L, first = V + start, O + start, L + head.to(tl.int64) * n, block * ROWS
    if LAST_ROWS:
        if block == blocks - 1:
            _forward_rows(
                V, O, L, first, n, stride, p, scale,
                LAST_ROWS, COLS, REST, P, WHOLE_P, True, CAUSAL, PRECISION, STAGES,
            )  # fmt: skip
            return
    _forward_rows(V, O, L, first, n, stride, p, scale, ROWS, COLS, REST, P, WHOLE_P, False, CAUSAL, PRECISION, STAGES)


@triton.jit
def delta(dO, O, D, n, heads, p, stride_batch, stride, ROWS: tl.constexpr, P: tl.constexpr):
    """⟨dO_i, O_i⟩."""
    blocks = tl.cdiv(n, ROWS)
    block, head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    start = (head // heads).to(tl.int64) * stride_batch + (head % heads) * p
    do = _load(dO + start, block * ROWS, n, stride, p, ROWS, P, False).to(tl.float32)
    o = _load(O + start, block * ROWS, n, stride, p, ROWS, P, False).to(tl.float32)
    rows = block * ROWS + tl.arange(0, ROWS)
    tl.store(D + head.to(tl.int64) * n + rows, tl.sum(do * o, 1), rows < n)


@triton.jit
def delta_exact(
    V, dO, L, D, n, heads, p, stride_batch, stride, scale2,
    ROWS: tl.constexpr, P: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """⟨dO_i, O_i⟩ as Σ_j P_ij ⟨dO_i, V_j⟩."""
    blocks = tl.cdiv(n, ROWS)
    first, head = tl.program_id(0) % blocks * ROWS, tl.program_id(0) // blocks
    start = (head // heads).to(tl.int64) * stride_batch + (head % heads) * p
    V, dO, L, D = V + start, dO + start, L + head.to(tl.int64) * n, D + head.to(tl.int64) * n
    rows = first + tl.arange(0, ROWS)
    v_i = _load(V, first, n, stride, p, ROWS, P, False)
    do_i = _load(dO, first, n, stride, p, ROWS, P, False)
    l_i = tl.load(L + rows, rows < n, 0.0)
    delta = tl.zeros((ROWS,), tl.float32)
    for j in range(0, tl.minimum(first + ROWS, n) if CAUSAL else n, ROWS):
        columns = j + tl.arange(0, ROWS)
        v_j = _load(V, j, n, stride, p, ROWS, P, False)  # zero beyond n
        p_ij = _exp2(tl.dot(v_i, tl.trans(v_j), input_precision=PRECISION), scale2, l_i[:, None], PRECISION)
        if CAUSAL:
            p_ij = tl.where(columns[None, :] <= rows[:, None], p_ij, 0.0)
        delta += tl.sum(p_ij * tl.dot(do_i, tl.trans(v_j), input_precision=PRECISION), 1)
    tl.store(D + rows, delta, rows < n)


@triton.jit
def _gather(
    v_i, do_i, l_i, delta_i, rows, dv, V, dO, L, D, first, n, stride, p, scale, scale2,
    BLOCK: tl.constexpr, P: tl.constexpr, WHOLE: tl.constexpr, FROM_I: tl.constexpr, FROM_J: tl.constexpr,
    DIAGONAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What one block of columns adds to dV_i: FROM_I through P_ij, FROM_J through P_ji. Tokens beyond n add zeros."""
    columns = first + tl.arange(0, BLOCK)
    v_j = _load(V, first, n, stride, p, BLOCK, P, WHOLE)
    s = tl.dot(v_i, tl.trans(v_j), input_precision=PRECISION)
    if FROM_I:
        p_ij = _exp2(s, scale2, l_i[:, None], PRECISION)
        if DIAGONAL:
            p_ij = tl.where(columns[None, :] <= rows[:, None], p_ij, 0.0)
        ds = p_ij * (tl.dot(do_i, tl.trans(v_j), input_precision=PRECISION) - delta_i[:, None])
    if FROM_J:
        do_j = _load(dO, first, n, stride, p, BLOCK, P, WHOLE)
        if WHOLE:
            l_j, delta_j = tl.load(L + columns), tl.load(D + columns)
        else:
            l_j, delta_j = tl.load(L + columns, columns < n, 0.0), tl.load(D + columns, columns < n, 0.0)
        p_ji = _exp2(s, scale2, l_j[None, :], PRECISION)
        if DIAGONAL:
            p_ji = tl.where(columns[None, :] >= rows[:, None], p_ji, 0.0)
        dv = tl.dot(p_ji.to(v_j.dtype), do_j, dv, input_precision=PRECISION)
        ds_ji = p_ji * (tl.dot(v_i, tl.trans(do_j), input_precision=PRECISION) - delta_j[None, :])
        if FROM_I:
            ds += ds_ji
        else:
            ds = ds_ji
    return tl.dot((ds * scale).to(v_j.dtype), v_j, dv, input_precision=PRECISION)


@triton.jit
def _backward_rows(
    V, dO, L, D, dV, first, n, stride, p, scale, scale2,
    ROWS: tl.constexpr, COLS: tl.constexpr, REST: tl.constexpr, P: tl.constexpr, WHOLE_P: tl.constexpr,
    LAST: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    rows = first + tl.arange(0, ROWS)
    v_i = _load(V, first, n, stride, p, ROWS, P, WHOLE_P and not LAST)
    do_i = _load(dO, first, n, stride, p, ROWS, P, WHOLE_P and not LAST)
    l_i, delta_i = tl.load(L + rows, rows < n, 0.0), tl.load(D + rows, rows < n, 0.0)
    dv = tl.zeros((ROWS, P), tl.float32)
    whole = n // COLS * COLS
    if CAUSAL:
        near, far = first // COLS * COLS, tl.minimum(tl.cdiv(first + ROWS, COLS) * COLS, whole)
        for j in tl.range(0, near, COLS, num_stages=STAGES):
            dv = _gather(
                v_i, do_i, l_i, delta_i, rows, dv, V, dO, L, D, j, n, stride, p, scale, scale2,
                COLS, P, WHOLE_P, True, False, False, PRECISION,
            )  # fmt: skip
        for j in tl.range(near, far, COLS):
            dv = _gather(
                v_i, do_i, l_i, delta_i, rows, dv, V, dO, L, D, j, n, stride, p, scale, scale2,
                COLS, P, WHOLE_P, True, True, True, PRECISION,
            )  # fmt: skip
        for j in tl.range(far, whole, COLS, num_stages=STAGES):
            dv = _gather(
                v_i, do_i, l_i, delta_i, rows, dv, V, dO, L, D, j, n, stride, p, scale, scale2,
                COLS, P, WHOLE_P, False, True, False, PRECISION,
            )  # fmt: skip
    else:
        for j in tl.range(0, whole, COLS, num_stages=STAGES):
            dv = _gather(
                v_i, do_i, l_i, delta_i, rows, dv, V, dO, L, D, j, n, stride, p, scale, scale2,
                COLS, P, WHOLE_P, True, True, False, PRECISION,
            )  # fmt: skip
    if REST:
        dv = _gather(
            v_i, do_i, l_i, delta_i, rows, dv, V, dO, L, D, whole, n, stride, p, scale, scale2,
            REST, P, False, True, True, CAUSAL, PRECISION,
        )  # fmt: skip
    _store(dV, first, n, stride, p, dv, ROWS, P)


@triton.autotune(BACKWARD, **TUNED)
@triton.heuristics(SIZES)
@triton.jit
def backward(
    V, dO, L, D, dV, n, heads, p, stride_batch, stride, scale, scale2,
    ROWS: tl.constexpr, COLS: tl.constexpr, LAST_ROWS: tl.constexpr, REST: tl.constexpr, P: tl.constexpr,
    WHOLE_P: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(n, ROWS)
    block, head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    start = (head // heads).to(tl.int64) * stride_batch + (head % heads) * p
    V, dO, dV, first = V + start, dO + start, dV + start, block * ROWS
    L, D = L + head.to(tl.int64) * n, D + head.to(tl.int64) * n
    if LAST_ROWS:
        if block == blocks - 1:
            _backward_rows(
                V, dO, L, D, dV, first, n, stride, p, scale, scale2,
                LAST_ROWS, COLS, REST, P, WHOLE_P, True, CAUSAL, PRECISION, STAGES,
            )  # fmt: skip
            return
    _backward_rows(
        V, dO, L, D, dV, first, n, stride, p, scale, scale2,
        ROWS, COLS, REST, P, WHOLE_P, False, CAUSAL, PRECISION, STAGES,
    )  # fmt: skip


@triton.jit
def _exchange(v_i, do_i, l_i, delta_i, v_j, do_j, l_j, delta_j, scale, scale2, PRECISION: tl.constexpr):
    """For two blocks of tokens: P_ij, P_ji and scale · (dS_ij + dS_ji), each (i, j)."""
    s = tl.dot(v_i, tl.trans(v_j), input_precision=PRECISION) * scale2
    p_ij, p_ji = tl.exp2(s - l_i[:, None]), tl.exp2(s - l_j[None, :])
    ds = p_ij * (tl.dot(do_i, tl.trans(v_j), input_precision=PRECISION) - delta_i[:, None])
    ds += p_ji * (tl.dot(v_i, tl.trans(do_j), input_precision=PRECISION) - delta_j[None, :])
    return p_ij.to(v_i.dtype), p_ji.to(v_i.dtype), (ds * scale).to(v_i.dtype)


@triton.jit
def _block(V, dO, L, D, first, n, stride, p, SIZE: tl.constexpr, P: tl.constexpr, WHOLE: tl.constexpr):
    rows = first + tl.arange(0, SIZE)
    v = _load(V, first, n, stride, p, SIZE, P, WHOLE)
    do = _load(dO, first, n, stride, p, SIZE, P, WHOLE)
    return v, do, tl.load(L + rows, rows < n, 0.0), tl.load(D + rows, rows < n, 0.0)


@triton.jit
def backward_whole(
    V, dO, L, D, dV, n, heads, p, stride_batch, stride, scale, scale2,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, REST: tl.constexpr, P: tl.constexpr, WHOLE_P: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of a short head by one program, which meets every two blocks of tokens once, for both of them."""
    head = tl.program_id(0)
    start = (head // heads).to(tl.int64) * stride_batch + (head % heads) * p
    V, dO, dV = V + start, dO + start, dV + start
    L, D = L + head.to(tl.int64) * n, D + head.to(tl.int64) * n
    ALL: tl.constexpr = BLOCKS + (1 if REST else 0)
    dv = ()
    for i in tl.static_range(ALL):
        dv += (tl.zeros((ROWS if i < BLOCKS else REST, P), tl.float32),)
    for i in tl.static_range(ALL):
        v_i, do_i, l_i, delta_i = _block(
            V, dO, L, D, i * ROWS, n, stride, p, ROWS if i < BLOCKS else REST, P, WHOLE_P and i < BLOCKS
        )
        _, p_ji, ds = _exchange(v_i, do_i, l_i, delta_i, v_i, do_i, l_i, delta_i, scale, scale2, PRECISION)
        dv_i = tl.dot(p_ji, do_i, dv[i], input_precision=PRECISION)
        dv_i = tl.dot(ds, v_i, dv_i, input_precision=PRECISION)
        for j in tl.static_range(i + 1, ALL):
            v_j, do_j, l_j, delta_j = _block(
                V, dO, L, D, j * ROWS, n, stride, p, ROWS if j < BLOCKS else REST, P, WHOLE_P and j < BLOCKS
            )
            p_ij, p_ji, ds = _exchange(v_i, do_i, l_i, delta_i, v_j, do_j, l_j, delta_j, scale, scale2, PRECISION)
            dv_i = tl.dot(p_ji, do_j, dv_i, input_precision=PRECISION)
            dv_i = tl.dot(ds, v_j, dv_i, input_precision=PRECISION)
            dv_j = tl.dot(tl.trans(p_ij), do_i, dv[j], input_precision=PRECISION)
            dv_j = tl.dot(tl.trans(ds), v_i, dv_j, input_precision=PRECISION)
            dv = dv[:j] + (dv_j,) + dv[j + 1 :]
        _store(dV, i * ROWS, n, stride, p, dv_i, ROWS if i < BLOCKS else REST, P)
