"""Emit the emulator's text of warp-level instructions from their descriptions."""

from __future__ import annotations

from math import log2

from rammer.ir.index import Div, Index, simplify, var
from rammer.ir.instruction import Instruction, fold
from rammer.ir.tensor import DType

# How a fold combines `a` with `b`, another thread's, by reducer.
STEPS = {"sum": "a + b", "max": "smax(a, b)", "min": "smin(a, b)"}
ROUND = {"fp32": "", "tf32": "simt_tf32", "bf16": "simt_bf16"}  # by precision


def folds(subgroup_size: int) -> tuple[Instruction, ...]:
    """Return the folds of subgroups of `subgroup_size` threads: over a power of two of threads, adjacent or strided.

    One step is an exchange and an operation for each thread.
    """
    powers = [1 << n for n in range(1, subgroup_size.bit_length())]
    return tuple(
        fold(f"fold_{combine}<{terms}, {beside}>", combine, subgroup_size, terms, beside, terms / (2 * log2(terms)))
        for combine in STEPS
        for terms in powers
        for beside in (1, *powers)
        if terms * beside <= subgroup_size
    )


# `mk_swap<D>(v)` is what the thread has whose number differs in the bit D; see the contract in `codegen/prelude.py`.
FOLDS = "".join(
    f"""\
template <int TERMS, int BESIDE> INLINE void mk_fold_{combine}(float *out, const float *in) {{
  float a = *in;
  if constexpr (TERMS > 1) {{
    const float b = mk_swap<TERMS * BESIDE / 2>(a);
    a = {step};
    mk_fold_{combine}<TERMS / 2, BESIDE>(&a, &a);
  }}
  *out = a;
}}
"""
    for combine, step in STEPS.items()
)


def emulated(unit: Instruction) -> str:
    """Return the emulator's text of a product by one subgroup or several."""
    return _emulated_staged(unit) if unit.staged else _emulated(unit)


def _emulated_staged(unit: Instruction) -> str:
    """Emit a product of staged operands: each thread computes its sums from what the descriptors point to."""
    sums, encoding = "sums", unit.encoding
    assert encoding is not None
    env = {axis: (0, extent - 1) for axis, extent in (*unit.axes, ("lane", unit.threads), ("r", unit.registers(sums)))}
    row, column = (_text(simplify(index, env)) for index in unit.held(sums, var("lane"), var("r")))
    kind = "bf16" if encoding.dtype is DType.BF16 else "float"
    parts = "{0, 0}" if encoding.parts == 1 else "{8, 0}, {0, 8}, {0, 0}"
    return f"""\
template <int STEPS, int A_TERMS, int A_LINES, int B_TERMS, int B_LINES>
INLINE void mk_{unit.name}(float *c, const void *a, const void *b) {{
  const int lane = (int)threadIdx.x % {unit.threads};
  const int parts[][2] = {{{parts}}};
  for (int n = 0; n < STEPS; n++) for (const auto &part : parts) {{
    const uint64_t x = mk_matrix<A_TERMS, A_LINES>(a) + n * (A_TERMS >> 3) + part[0];
    const uint64_t y = mk_matrix<B_TERMS, B_LINES>(b) + n * (B_TERMS >> 3) + part[1];
    for (int r = 0; r < {unit.registers(sums)}; r++) {{
      const int row = {row}, column = {column};
      for (int term = 0; term < {unit.extent("term")}; term++)
        c[r] += simt_number<{kind}>(x, row, term) * simt_number<{kind}>(y, column, term);
    }}
  }}
}}
"""


def _emulated(unit: Instruction) -> str:
    """Emit a product of a subgroup: threads publish their operands, synchronise, and each computes its sums."""
    (sums, _), (a, _), (b, _) = unit.tensors
    wave, size = unit.threads, unit.registers(a)
    env = {axis: (0, extent - 1) for axis, extent in (*unit.axes, ("lane", wave), ("r", unit.registers(sums)))}

    def text(*indices: Index) -> list[str]:
        return [_text(simplify(index, env)) for index in indices]

    row, column = text(*unit.held(sums, var("lane"), var("r")))
    from_a, at_a = text(*unit.holder(a, (var("row"), var("term"))))
    from_b, at_b = text(*unit.holder(b, (var("term"), var("column"))))
    fn, sums_of = ROUND[unit.precision], "c[r] += x * y;"
    if unit.split_dtype:  # in the order of its three products
        part = ROUND[unit.split_dtype]
        split = f"const float big_x = {part}(x), big_y = {part}(y);"
        products = f"{part}_cut(x - big_x) * big_y", f"big_x * {part}_cut(y - big_y)", "big_x * big_y"
        sums_of = f"{split} c[r] += step == 0 ? {products[0]} : step == 1 ? {products[1]} : {products[2]};"
    steps = 3 if unit.split_dtype else 1
    return f"""\
INLINE void mk_{unit.name}(float *c, const float *a, const float *b) {{
  const int tid = (int)threadIdx.x, lane = tid % {wave}, first = tid - lane;
  for (int r = 0; r < {size}; r++) simt_fragment(tid)[r] = {fn}(a[r]);
  for (int r = 0; r < {unit.registers(b)}; r++) simt_fragment(tid)[{size} + r] = {fn}(b[r]);
  simt_sync(2 + tid / {wave}, {wave});
  for (int r = 0; r < {unit.registers(sums)}; r++) {{
    const int row = {row}, column = {column};
    for (int step = 0; step < {steps}; step++) for (int term = 0; term < {unit.extent("term")}; term++) {{
      const float x = simt_fragment(first + {from_a})[{at_a}], y = simt_fragment(first + {from_b})[{size} + {at_b}];
      {sums_of}
    }}
  }}
  simt_sync(2 + tid / {wave}, {wave});
}}
"""


def _text(index: Index) -> str:
    """Return the C text of an index ≥ 0."""
    terms = [str(index.const)] if index.const or not index.terms else []
    for atom, factor in index.terms:
        if isinstance(atom, str):
            text = atom
        else:
            inner = _text(atom.arg)
            inner = f"({inner})" if len(atom.arg.terms) > 1 or atom.arg.const else inner
            text = f"{inner} {'/' if isinstance(atom, Div) else '%'} {atom.by}"
        terms.append(text if factor == 1 else f"{text} * {factor}")  # of equal precedence, from left to right
    return " + ".join(terms)
