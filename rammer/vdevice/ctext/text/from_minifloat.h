INLINE F_ P_from_NAME(I_ x) {
  I_ m = x & MAGNITUDE;
  F_ v = P_sel(m < FIRST_NORMAL, P_int(m) * SMALLEST, P_float((m << SHIFT) + OFFSET));
SPECIAL  return P_float(P_bits(v) | ((x & SIGN) << SIGN_SHIFT));
}
