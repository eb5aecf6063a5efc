#if defined(__AVX512BF16__) && !defined(EMULATED)
INLINE void add_pairs(vf *sums, vu a, vu b) { __asm__("vdpbf16ps %2, %1, %0" : "+v"(*sums) : "v"(a), "v"(b)); }
INLINE vw rounded(vf x) { vw part; __asm__("vcvtneps2bf16 %1, %0" : "=v"(part) : "v"(x)); return part; }
#else
INLINE void add_pairs(vf *sums, vu a, vu b) {
  *sums += (vf)(a & 0xffff0000) * (vf)(b & 0xffff0000);
  *sums += (vf)(a << 16) * (vf)(b << 16);
}
INLINE vw rounded(vf x) { return vbf16(x); }
#endif
