INLINE I_ P_to_NAME(F_ x) {
  I_ u = P_bits(x), m = u & 0x7fffffff, sign = (u >> SIGN_SHIFT) & SIGN;
  I_ small = P_bits(P_float(m) + MAGIC) - P_bits(P_splat(MAGIC));  /* a sum whose last digit is the smallest number */
  I_ r = (m + (HALF - 1) + ((m >> SHIFT) & 1) - OFFSET) >> SHIFT;
  r = P_sel_i(m < NORMAL_BITS, small, r);
  r = P_sel_i(r > LARGEST, P_splat_i(OVER), r);
  r = P_sel_i(m > 0x7f800000, P_splat_i(NOT_A_NUMBER), r);
  return RESULT;
}
