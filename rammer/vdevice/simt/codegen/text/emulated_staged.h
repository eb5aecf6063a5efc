INLINE unsigned mk_scratch_at(const void *p) { return (unsigned)((const char *)p - simt_arena()); }
INLINE void mk_show_units() {}
INLINE void mk_put_bf16x1(bf16 *p, int at, vf v) {
  for (int n = 0; n < 4; n++) p[at + n] = to_bf16(v[n]);
}
INLINE void mk_put_f32x1(float *p, int at, vf v) {
  for (int n = 0; n < 4; n++) p[at + n] = simt_tf32(v[n]);
}
INLINE void mk_put_f32x2(float *p, int at, vf v) {
  for (int n = 0; n < 4; n++) {
    float *to = p + at / 32 * 64 + at % 32 + n;
    to[0] = simt_tf32(v[n]);
    to[32] = v[n] - to[0];
  }
}
INLINE float simt_taken(bf16 x) { return from_bf16(x); }
INLINE float simt_taken(float x) { return simt_tf32_cut(x); }
template <class T> INLINE float simt_number(uint64_t matrix, int line, int term) {
  enum { TERMS = 16 / sizeof(T) };  // of a line of a piece
  const uint64_t start = matrix & 0x3fff, along = matrix >> 16 & 0x3fff, down = matrix >> 32 & 0x3fff;
  const uint64_t at = start + along * (term / TERMS) + down * (line / 8) + line % 8;
  return simt_taken(((const T *)(simt_arena() + 16 * at))[term % TERMS]);
}
