INLINE F_ P_abs(F_ x) { return P_float(P_bits(x) & 0x7fffffff); }
