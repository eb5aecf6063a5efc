template <int BYTES> INLINE void mk_copy_later(void *to, const void *from, bool there) {
  simt_copy_later(to, there ? from : (const void *)0, BYTES);
}
template <int GROUPS> INLINE void mk_await() { simt_await(GROUPS); }
