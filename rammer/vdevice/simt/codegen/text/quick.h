INLINE float ssigmoid(float x) { return MK_DIVIDE(1.0f, 1.0f + expf(-x)); }
INLINE float stanh(float x) {  // an odd polynomial near 0, where 1 - 2 / (e^2x + 1) loses digits
  float a = fabsf(x), z = x * x;
  float p = ((((-5.70498872745e-3f * z + 2.06390887954e-2f) * z - 5.37397155531e-2f) * z + 1.33314422036e-1f) * z
             - 3.33332819422e-1f) * z * x + x;
  float q = 1.0f - MK_DIVIDE(2.0f, expf(a + a) + 1.0f);
  return a > 0.625f ? (x < 0.0f ? -q : q) : p;
}
