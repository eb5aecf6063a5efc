INLINE F_ P_power(F_ x, F_ t) {  /* x * 2^n, t = 1.5 * 2^23 + n: in two steps, for subnormal ones */
  I_ i = P_bits(t) - 0x4b400000, h = i >> 1;
  return x * P_float((h + 127) << 23) * P_float((i - h + 127) << 23);
}
