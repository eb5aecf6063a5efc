"""Instructions of AMD's matrix cores (CDNA): which thread of a wave holds what, and their text.

Sources: AMD Instinct MI200 and CDNA3 ISA references, "Matrix Arithmetic Instructions".
"""

from __future__ import annotations

from rammer.ir.instruction import Instruction, multiply
from rammer.ir.tensor import Digit, Layout

WAVE = 64


def _mfma(name: str, precision: str, neighbours: int, gain: float) -> Instruction:
    """sums[16, 16] += a[16, terms] b[terms, 16]: thread 16q + j holds row or column j, group q of the other axis."""
    sums = Layout((Digit(0, 4), Digit(1), Digit(0, 1, 4)))
    own = neighbours > 1  # registers of a thread
    a = Layout((Digit(1, neighbours), Digit(0), *([Digit(1, 1, neighbours)] if own else [])))
    b = Layout((Digit(0, neighbours), Digit(1), *([Digit(0, 1, neighbours)] if own else [])))
    sizes = 16, 16, 4 * neighbours
    return multiply(name, sizes, (sums, a, b), threads=WAVE, accumulates=True, precision=precision, gain=gain)


def _f32(gain: float) -> Instruction:
    """Float32 as it is: multiply-adds that round once."""
    return _mfma("mfma_f32", "fp32", 1, gain)


def _bf16(gain: float) -> Instruction:
    return _mfma("mfma_bf16", "bf16", 4, gain)


# By arch; rates relative to multiply-adds of vectors are the vendor's.
MFMA: dict[str, tuple[Instruction, ...]] = {
    "gfx908": (_f32(2.0),),
    "gfx90a": (_f32(2.0), _bf16(8.0)),
    "gfx942": (_f32(1.0), _bf16(8.0)),
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
"""
