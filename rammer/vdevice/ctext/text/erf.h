INLINE F_ P_erf(F_ x) {  /* x times a quotient of polynomials in x^2; 1 from 3.8325 on */
  F_ y = P_minc(P_maxc(x, P_splat(-3.8325f)), P_splat(3.8325f)), z = y * y;
  F_ p = ((((2.12310988e-6f * z + 2.85940798e-4f) * z + 3.65272793e-3f) * z + 5.24184406e-2f) * z
          + 1.87307969e-1f) * z + 1.12837911f;
  F_ q = ((((3.88979242e-5f * z + 1.14169763e-3f) * z + 1.47424452e-2f) * z + 1.12900317e-1f) * z
          + 4.99330282e-1f) * z + 1.0f;
  y = P_sel(x > 3.8325f, P_splat(1.0f), P_minc(P_maxc(y * p / q, P_splat(-1.0f)), P_splat(1.0f)));
  return P_sel(x < -3.8325f, P_splat(-1.0f), y);  /* exactly: else x (1 + erf(x)) grows with -x */
}
