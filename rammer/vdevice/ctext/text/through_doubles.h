INLINE F_ P_half_turn(D_ r, L_ n) {  /* (-1)^n sin(r), |r| <= pi / 2; the polynomial's relative error is 1.9e-11 */
  D_ z = r * r;
  D_ p = ((((-2.3909483638619995e-8 * z + 2.752663312530149e-6) * z - 1.9840894400893373e-4) * z
          + 8.333331325939428e-3) * z - 0.1666666663179154) * z;
  return P_single(W_float(W_bits(r * (p + 1.0)) ^ (n << 63)));
}
INLINE F_ P_sin(F_ x) {  /* the number of half turns is the last digits of t; below 2^20 its product by pi is exact */
  D_ y = P_double(x), t = y * 0.31830988618379067 + 6755399441055744.0, n = t - 6755399441055744.0;
  F_ s = P_half_turn((y - n * 3.1415926534682512) - n * 1.2154201013012384e-10, W_bits(t));
  return P_most(P_bits(x) & 0x7fffffff) < 0x49800000 ? s : P_sin_large(x, s);
}
INLINE F_ P_cos(F_ x) {
  D_ y = P_double(x), t = (y * 0.31830988618379067 - 0.5) + 6755399441055744.0, n = (t - 6755399441055744.0) + 0.5;
  F_ s = P_half_turn((y - n * 3.1415926534682512) - n * 1.2154201013012384e-10, ~W_bits(t));
  return P_most(P_bits(x) & 0x7fffffff) < 0x49800000 ? s : P_cos_large(x, s);
}
INLINE D_ P_log2(D_ x) {  /* of x > 0: e + log2(m), m from sqrt(1/2) to sqrt(2); relative error 1.7e-10 */
  L_ e = (W_bits(x) - 0x3fe6a09e667f3bcd) >> 52;
  D_ m = W_float(W_bits(x) - (e << 52)) - 1.0;
  D_ p = ((((9.692650810080246e-2 * m - 0.17155054205854814) * m + 0.1736195910353288) * m - 0.17854918644469794) * m
          + 0.20472638018049563) * m - 0.24047853995121862;
  p = ((((p * m + 0.2885981404109539) * m - 0.3606743375032213) * m + 0.48089731550349574) * m - 0.7213475087319808) * m
      + 1.4426950458506502;
  return p * m + (W_float(e + 0x4338000000000000) - 6755399441055744.0);
}
INLINE F_ P_exp2(D_ t) {  /* relative error 1.9e-9; beyond 2^200 there is no float */
  t = W_sel(t > 200.0, W_splat(200.0), t);
  t = W_sel(t < -200.0, W_splat(-200.0), t);
  D_ n = t + 6755399441055744.0, f = t - (n - 6755399441055744.0);
  D_ p = (((((1.5478017602887917e-4 * f + 1.3400431669676471e-3) * f + 9.617994531728513e-3) * f
          + 5.550327215758588e-2) * f + 0.24022651504890802) * f + 0.693147206709651) * f + 0.9999999999190897;
  return P_single(W_float(W_bits(p) + (W_bits(n) << 52)));
}
INLINE F_ P_pow(F_ x, F_ y) {  /* 2^(y log2|x|), with a sign if y is odd */
  F_ a = P_abs(x), half = y * 0.5f;
  D_ wide = P_double(a), power = W_sel(wide == 0.0, W_splat(-INFINITY), P_log2(wide));
  F_ r = P_exp2(W_sel(wide < INFINITY, power, wide) * P_double(y));
  I_ odd = (P_round(y) == y) & (P_round(half) != half);
  r = P_sel((x < 0.0f) & (a != INFINITY) & (P_round(y) != y), P_splat(NAN), P_sel(odd, P_with_sign(r, x), r));
  return P_sel((y == 0.0f) | (x == 1.0f) | ((a == 1.0f) & (P_abs(y) == INFINITY)), P_splat(1.0f), r);
}
INLINE F_ P_fmod(F_ x, F_ y) {  /* x - n y; exact, as n < 2^29 has few enough digits for a product by a float's 24 */
  F_ a = P_abs(x), b = P_abs(y);
  D_ wide = P_double(b), r = P_double(a) - W_floor(P_double(a) / wide) * wide;
  F_ found = P_with_sign(P_single(W_sel(r < 0.0, r + wide, r)), x);  /* a quotient may be rounded up to n */
  F_ far = P_sel((a < b * 536870912.0f) & (b < INFINITY), P_splat(0.0f), P_splat(1.0f));
  return P_most(P_bits(far)) ? P_fmod_any(x, y) : found;
}
