INLINE T_ T__far(T_ b) { return (b < 0) | (b > 8 * SIZE - 1); }  /* by a negative amount, or by all bits and more */
INLINE T_ T__shift_left(T_ a, T_ b) { T_ far = T__far(b); return (a << (b & ~far)) & ~far; }
INLINE T_ T__shift_right(T_ a, T_ b) { T_ far = T__far(b); return a >> T__sel(far, T__splat(8 * SIZE - 1), b); }
/* Quotients by way of doubles, toward zero. Their 53 digits hold those of int32; int64 takes two steps and a correction.
   Division by zero gives zero. */
INLINE T_ T__quotient(T_ a, T_ b) {
  return __builtin_convertvector(__builtin_convertvector(a, vd) / __builtin_convertvector(b, vd), T_);
}
#if SIZE == 8 && defined(__AVX2__) && !defined(__AVX512DQ__)  /* it converts int64 one by one, but for small ones */
INLINE int T__are_small(T_ a, T_ b) {  /* between -2^51 and 2^51 */
  M_ large = (((a + T__splat(1ll << 51)) | (b + T__splat(1ll << 51))) & T__splat(-1ll << 52)) != 0;
  E_ any = 0;
  for (int i = 0; i < LANES; i++) any |= large[i];
  return !any;
}
INLINE T_ T__small_quotient(T_ a, T_ b) {  /* to the nearest; the last digits of 1.5 2^52 + a are those of a */
  T_ shift = T__splat(0x4338000000000000ll);
  return (T_)(((vd)(a + shift) - (vd)shift) / ((vd)(b + shift) - (vd)shift) + (vd)shift) - shift;
}
#else
#define T__are_small(a, b) 0
#define T__small_quotient(a, b) a
#endif
INLINE T_ T__divided(T_ a, T_ b, T_ *rest) {
  M_ simple = (b == 0) | (b == 1) | (b == -1);
  T_ by = T__sel(simple, T__splat(2), b), q, r;
  if (T__are_small(a, by)) {
    q = T__small_quotient(a, by); r = a - q * by;
  } else {
    q = T__quotient(a, by); r = a - q * by;
    if (SIZE == 8) { T_ more = T__quotient(r, by); q += more; r -= more * by; }
  }
  if (SIZE == 8) {
    M_ wrong = (r != 0) & ((r ^ a) < 0);
    q += T__sel((a ^ by) < 0, T__splat(1), T__splat(-1)) & wrong;
    r += T__sel((a ^ by) < 0, 0 - by, by) & wrong;
  }
  *rest = r & ~simple;
  return T__sel(simple, a * b, q);
}
INLINE T_ T__div(T_ a, T_ b) { T_ r; return T__divided(a, b, &r); }
INLINE T_ T__fmod(T_ a, T_ b) { T_ r; T__divided(a, b, &r); return r; }
INLINE T_ T__mod(T_ a, T_ b) { T_ r = T__fmod(a, b); return r + (b & ((r != 0) & ((r ^ b) < 0))); }
