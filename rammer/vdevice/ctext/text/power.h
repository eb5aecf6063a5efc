INLINE F_ P_power(F_ x, F_ t) {  /* x * 2^n, t = 1.5 * 2^23 + n; subnormal ones need two steps; shifts drop t's bits */
  I_ i = P_bits(t), h = i >> 1;
  return x * P_float((h << 23) + 0x3f800000) * P_float(((i - h) << 23) + 0x3f800000);
}
