INLINE F_ P_exp(F_ x) {  /* 2^n * e^r, |r| <= ln2 / 2; the polynomial's relative error is 3.1e-9 */
  x = P_minc(P_maxc(x, P_splat(-104.0f)), P_splat(89.0f));
  F_ t = x * 1.44269504f + 12582912.0f, n = t - 12582912.0f, r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  F_ p = ((((1.38145406e-3f * r + 8.36874545e-3f) * r + 4.1668389e-2f) * r + 1.66665211e-1f) * r + 4.9999994e-1f) * r
         + 1.0f;
  return P_power(p * r + 1.0f, t);
}
INLINE F_ P_log(F_ x) {
  F_ y = P_sel(x < 1.17549435e-38f, x * 8388608.0f, x);
  I_ b = P_bits(y), e = (b - 0x3f3504f3) & -8388608;  /* x = 2^(e >> 23) * (1 + m), from sqrt(1 / 2) to sqrt(2) */
  F_ n = P_int(e >> 23) - P_sel(x < 1.17549435e-38f, P_splat(23.0f), P_splat(0.0f)), m = P_float(b - e) - 1.0f;
  F_ z = m * m;
  F_ p = 7.0376836292e-2f * z + (1.1676998740e-1f - 1.1514610310e-1f * m);  /* in pairs, which takes fewer steps */
  p = (p * z + (1.4249322787e-1f - 1.2420140846e-1f * m)) * z + (2.0000714765e-1f - 1.6668057665e-1f * m);
  p = (p * z + (3.3333331174e-1f - 2.4999993993e-1f * m)) * m * z;
  p = p - 2.12194440e-4f * n - 0.5f * z;
  F_ r = P_sel(x == INFINITY, x, m + p + 0.693359375f * n);
  return P_sel(x > 0.0f, r, P_sel(x == 0.0f, P_splat(-INFINITY), P_splat(NAN)));
}
INLINE F_ P_sigmoid(F_ x) {  /* 1 / (1 + 2^n * e^-r); P_exp's polynomial in pairs, which takes fewer steps */
  F_ y = P_minc(P_maxc(x, P_splat(-88.7f)), P_splat(87.0f));
  F_ t = y * -1.44269504f + 12582912.0f, n = t - 12582912.0f, r = n * 0.693359375f + y;
  r = r - n * 2.12194440e-4f;
  F_ s = r * r;
  F_ p = 1.38145406e-3f * s + (4.1668389e-2f - 8.36874545e-3f * r);
  p = (p * s + (4.9999994e-1f - 1.66665211e-1f * r)) * s + (1.0f - r);
  return 1.0f / (1.0f + p * P_float((P_bits(t) << 23) + 0x3f800000));
}
INLINE F_ P_tanh(F_ x) {  /* x times a quotient of polynomials in x^2, whose relative error is 1.5e-9 */
  F_ z = x * x;
  F_ p = (((((-1.192372481133297e-13f * z + 6.482572117993968e-11f) * z - 2.2524979215177154e-8f) * z
          + 1.16894034363213e-5f) * z + 3.153636585921049e-3f) * z + 0.13128121197223663f) * z + 1.0f;
  F_ q = ((2.619315346237272e-4f * z + 2.469184249639511e-2f) * z + 0.46461454033851624f) * z + 1.0f;
  F_ y = x * p / q;
  y = P_sel(x > 7.9f, P_splat(1.0f), y);
  return P_sel(x < -7.9f, P_splat(-1.0f), y);
}
