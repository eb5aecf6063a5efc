template <int D> INLINE float mk_swap(float v) {
  const int tid = (int)threadIdx.x;
  simt_fragment(tid)[0] = v;
  simt_sync(2 + tid / $SUBGROUP, $SUBGROUP);
  const float other = simt_fragment(tid ^ D)[0];
  simt_sync(2 + tid / $SUBGROUP, $SUBGROUP);
  return other;
}
