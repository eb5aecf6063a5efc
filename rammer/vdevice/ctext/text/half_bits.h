INLINE int hbits(float x) { union { HALF h; uint16_t i; } u; u.h = (HALF)x; return u.i; }
INLINE float hfloat(int x) { union { HALF h; uint16_t i; } u; u.i = (uint16_t)x; return (float)u.h; }
