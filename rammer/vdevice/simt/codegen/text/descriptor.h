template <int TERMS, int LINES> INLINE uint64_t mk_matrix(const void *p) {  // bytes from piece to piece
  return (uint64_t)(mk_scratch_at(p) >> 4) | (uint64_t)(TERMS >> 4) << 16 | (uint64_t)(LINES >> 4) << 32;
}
