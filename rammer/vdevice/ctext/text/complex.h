INLINE float c64_real(uint64_t x) { return sfloat((int)(uint32_t)x); }
INLINE float c64_imag(uint64_t x) { return sfloat((int)(uint32_t)(x >> 32)); }
INLINE uint64_t c64_complex(float re, float im) { return (uint64_t)(uint32_t)sbits(im) << 32 | (uint32_t)sbits(re); }
