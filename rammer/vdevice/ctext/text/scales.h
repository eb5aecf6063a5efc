INLINE F_ P_from_float8_e8m0fnu(I_ x) {
  F_ v = P_float(P_sel_i(x == 0, P_splat_i(0x00400000), x << 23));
  return P_sel(x == 255, P_splat(NAN), v);
}
INLINE I_ P_to_float8_e8m0fnu(F_ x) {  /* to the nearest power of two, ties up; above 2^-127, to 2^-126 at least */
  I_ u = P_bits(x), r = (u + 0x400000) >> 23;
  r = P_sel_i(u <= 0x400000, P_splat_i(0), r);
  return P_sel_i((u <= 0) | (u >= 0x7f400000), P_splat_i(255), r);
}
