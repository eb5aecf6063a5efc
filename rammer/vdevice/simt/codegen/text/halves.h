#define INT64_MIN (-9223372036854775807ll - 1)
INLINE float mk_odd(double x) {  // to float, so that rounding once more does not round twice
  float f = (float)x;
  if ((double)f != x && x == x && f - f == 0) f = sfloat((sbits(f) - (fabs((double)f) > fabs(x))) | 1);
  return f;
}
struct f16 {  // computed with as a float
  unsigned short bits;
  f16() = default;
  __device__ explicit f16(float x) : bits(mk_float_to_half(x)) {}
  template <class T> __device__ explicit f16(T x) : bits(mk_float_to_half(mk_odd((double)x))) {}
  __device__ operator float() const { return mk_half_to_float(bits); }
};
