INLINE T_ T__splat(E_ x) { return x - (T_){0}; }
INLINE T_ T__sel(M_ m, T_ a, T_ b) { return (T_)(((M_)a & m) | ((M_)b & ~m)); }
INLINE T_ T__first(int n, T_ a, T_ b) {           /* n lanes of a, then b */
  M_ lane; for (int i = 0; i < LANES; i++) lane[i] = i;
  return T__sel(lane < n, a, b);
}
INLINE T_ T__lanes(void) { T_ v; for (int i = 0; i < LANES; i++) v[i] = i; return v; }
INLINE T_ T__max(T_ a, T_ b) { return T__sel((a > b) | (a != a), a, b); }
INLINE T_ T__min(T_ a, T_ b) { return T__sel((a < b) | (a != a), a, b); }
INLINE T_ T__abs(T_ a) { return T__sel((a < 0) | (a == 0), 0 - a, a); }
INLINE T_ T__sign(T_ a) { return T__sel(a > 0, T__splat(1), T__sel(a < 0, T__splat(-1), a)); }
