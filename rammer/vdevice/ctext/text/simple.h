/* The inner selection is an instruction. The outer one tests b, which has no row of maxima behind it: of 16 in a row
   that test a, clang has too many ways to go. */
INLINE F_ P_max(F_ a, F_ b) { return P_sel(b != b, b, P_sel(b > a, b, a)); }
INLINE F_ P_min(F_ a, F_ b) { return P_sel(b != b, b, P_sel(b < a, b, a)); }
INLINE F_ P_maxc(F_ x, F_ c) { return P_sel(c > x, c, x); }    /* c is no NaN */
INLINE F_ P_minc(F_ x, F_ c) { return P_sel(c < x, c, x); }
INLINE I_ P_is_nan(F_ x) { return x != x; }
INLINE I_ P_is_inf(F_ x) { return P_abs(x) == INFINITY; }
INLINE F_ P_sign(F_ x) { return P_sel(x > 0, P_splat(1.0f), P_sel(x < 0, P_splat(-1.0f), x)); }
