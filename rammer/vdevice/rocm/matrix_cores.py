"""Define the matrix-core instructions of AMD GPUs: fragment layouts, and their HIP text.

Sources: the ISA references of AMD Instinct MI200, CDNA3 and RDNA4, "Matrix Arithmetic Instructions" and "WMMA". Terms
may be in any order in which both operands agree.
"""

from __future__ import annotations

from rammer.ir.instruction import Instruction, multiply
from rammer.ir.tensor import Digit, Layout


def _product(name: str, wavefront_size: int, neighbours: int, gain: float, precision: str) -> Instruction:
    """Return the instruction sums[16, 16] += a[16, terms] b[terms, 16] of one wave.

    In thread 16q + j, j is the row of `a` or the column of `b` and `sums`. q numbers blocks along the other axis: rows
    of the sums, or neighbouring terms of the operands.
    """
    blocks = wavefront_size // 16
    rows, own = 16 // blocks, neighbours > 1
    sums = Layout((Digit(0, rows), Digit(1), Digit(0, 1, rows)))
    a = Layout((Digit(1, neighbours), Digit(0), *([Digit(1, 1, neighbours)] if own else [])))
    b = Layout((Digit(0, neighbours), Digit(1), *([Digit(0, 1, neighbours)] if own else [])))
    sizes, layouts = (16, 16, blocks * neighbours), (sums, a, b)
    return multiply(name, sizes, layouts, threads=wavefront_size, accumulates=True, precision=precision, gain=gain)


def _f32(gain: float) -> Instruction:
    """Return the exact float32 product: multiply-adds that round once."""
    return _product("mfma_f32", 64, 1, gain, "fp32")


def _bf16(gain: float) -> Instruction:
    return _product("mfma_bf16", 64, 4, gain, "bf16")


# By arch; the vendor's rates, relative to vector multiply-adds.
MATRIX_CORES: dict[str, tuple[Instruction, ...]] = {
    "gfx908": (_f32(2.0),),
    "gfx90a": (_f32(2.0), _bf16(8.0)),
    "gfx942": (_f32(1.0), _bf16(8.0)),
    "gfx1201": (_product("wmma_bf16", 32, 8, 8.0, "bf16"),),
}

TEXT = """\
typedef float mk_f4 __attribute__((ext_vector_type(4)));
typedef short mk_s4 __attribute__((ext_vector_type(4)));
#if defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__)
INLINE void mk_mfma_f32(float *c, const float *a, const float *b) {
  mk_f4 sums = {c[0], c[1], c[2], c[3]};
  sums = __builtin_amdgcn_mfma_f32_16x16x4f32(a[0], b[0], sums, 0, 0, 0);
  for (int r = 0; r < 4; r++) c[r] = sums[r];
}
#endif
#if defined(__gfx90a__) || defined(__gfx942__)
INLINE mk_s4 mk_bf16x4(const float *p) {
  return mk_s4{(short)to_bf16(p[0]), (short)to_bf16(p[1]), (short)to_bf16(p[2]), (short)to_bf16(p[3])};
}
INLINE void mk_mfma_bf16(float *c, const float *a, const float *b) {
  mk_f4 sums = {c[0], c[1], c[2], c[3]};
  sums = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(mk_bf16x4(a), mk_bf16x4(b), sums, 0, 0, 0);
  for (int r = 0; r < 4; r++) c[r] = sums[r];
}
#endif
#if defined(__gfx1201__)
typedef float mk_f8 __attribute__((ext_vector_type(8)));
typedef short mk_s8 __attribute__((ext_vector_type(8)));
INLINE mk_s8 mk_bf16x8(const float *p) {
  mk_s8 x;
  for (int r = 0; r < 8; r++) x[r] = (short)to_bf16(p[r]);
  return x;
}
INLINE void mk_wmma_bf16(float *c, const float *a, const float *b) {
  mk_f8 sums;
  for (int r = 0; r < 8; r++) sums[r] = c[r];
  sums = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(mk_bf16x8(a), mk_bf16x8(b), sums);
  for (int r = 0; r < 8; r++) c[r] = sums[r];
}
#endif
"""
