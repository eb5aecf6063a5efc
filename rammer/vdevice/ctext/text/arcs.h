INLINE F_ P_with_sign(F_ a, F_ x) { return P_float(P_bits(a) | (P_bits(x) & (int)0x80000000)); }
INLINE F_ P_atan(F_ x) {  /* by 1 / x beyond 1; the polynomial's relative error is 4.2e-10 */
  F_ a = P_abs(x), t = P_sel(a > 1.0f, -1.0f / a, a), z = t * t;
  F_ p = ((((1.1496947845444083e-3f * z - 7.4989148415625095e-3f) * z + 2.292798087000847e-2f) * z
          - 4.5151565223932266e-2f) * z + 6.774845719337463e-2f) * z - 8.82595032453537e-2f;
  p = (((p * z + 1.1062277853488922e-1f) * z - 1.4280469715595245e-1f) * z + 1.9999721646308899e-1f) * z
      - 3.33333283662796e-1f;
  p = t + t * (z * p);
  return P_with_sign(P_sel(a > 1.0f, 1.57079637f + (p - 4.37113883e-8f), p), x);
}
INLINE F_ P_arc(F_ s, F_ z) {  /* asin(s), s <= 1/2 and z = s * s; the polynomial's relative error is 5e-9 */
  F_ p = (((4.221179708838463e-2f * z + 2.415209263563156e-2f) * z + 4.54760417342186e-2f) * z
          + 7.495252043008804e-2f) * z + 1.6666753590106964e-1f;
  return s + s * (z * p);
}
INLINE F_ P_asin(F_ x) {  /* beyond 1/2: pi / 2 - 2 asin(sqrt((1 - x) / 2)), where 1 - x is exact */
  F_ a = P_abs(x), z = P_sel(a > 0.5f, (1.0f - a) * 0.5f, a * a), p = P_arc(P_sel(a > 0.5f, P_sqrt(z), a), z);
  return P_with_sign(P_sel(a > 0.5f, 2.0f * (0.785398185f - p) - 4.37113883e-8f, p), x);
}
INLINE F_ P_acos(F_ x) {
  F_ a = P_abs(x), z = P_sel(a > 0.5f, (1.0f - a) * 0.5f, a * a), p = P_arc(P_sel(a > 0.5f, P_sqrt(z), a), z);
  F_ outer = P_sel(x < 0, 3.14159274f - (2.0f * p + 8.74227766e-8f), 2.0f * p);
  return P_sel(a > 0.5f, outer, 1.57079637f - (P_with_sign(p, x) + 4.37113883e-8f));
}
