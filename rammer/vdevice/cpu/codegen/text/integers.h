INLINE T_ T__far(T_ b) { return (b < 0) | (b > 8 * SIZE - 1); }  /* by a negative amount, or by all bits and more */
INLINE T_ T__shift_left(T_ a, T_ b) { T_ far = T__far(b); return (a << (b & ~far)) & ~far; }
INLINE T_ T__shift_right(T_ a, T_ b) { T_ far = T__far(b); return a >> T__sel(far, T__splat(8 * SIZE - 1), b); }
/* Quotients by way of doubles, toward zero. Their 53 digits hold those of int32; int64 takes two steps and a correction.
   Division by zero gives zero. */
INLINE T_ T__quotient(T_ a, T_ b) {
  return __builtin_convertvector(__builtin_convertvector(a, vd) / __builtin_convertvector(b, vd), T_);
}
INLINE T_ T__divided(T_ a, T_ b, T_ *rest) {
  M_ simple = (b == 0) | (b == 1) | (b == -1);
  T_ by = T__sel(simple, T__splat(2), b), q = T__quotient(a, by), r = a - q * by;
  if (SIZE == 8) {
    T_ more = T__quotient(r, by);
    q += more; r -= more * by;
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
