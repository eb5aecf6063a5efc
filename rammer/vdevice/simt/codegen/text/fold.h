template <int TERMS, int BESIDE> INLINE void mk_fold_$COMBINE(float *out, const float *in) {
  float a = *in;
  if constexpr (TERMS > 1) {
    const float b = mk_swap<TERMS * BESIDE / 2>(a);
    a = $STEP;
    mk_fold_$COMBINE<TERMS / 2, BESIDE>(&a, &a);
  }
  *out = a;
}
