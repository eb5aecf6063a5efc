// Conversions of half floats that compilers call where the CPU has none: they are in no libc. Included after texts that
// use _Float16; see toolchain.py.
#include <stdint.h>
#include <string.h>
#define RAMMER_HELPER __attribute__((weak, visibility("hidden")))
RAMMER_HELPER float __extendhfsf2(_Float16 x) {
  uint16_t h; memcpy(&h, &x, 2);
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023, u;
  if (e == 0) { float f = (float)(int)m * 0x1p-24f; memcpy(&u, &f, 4); }
  else if (e == 31) u = 0x7f800000 | m << 13 | (m ? 0x400000 : 0);
  else u = (e + 112) << 23 | m << 13;
  u |= sign;
  float f; memcpy(&f, &u, 4);
  return f;
}
RAMMER_HELPER _Float16 __truncsfhf2(float x) {   // to nearest, ties to even
  uint32_t u; memcpy(&u, &x, 4);
  uint16_t sign = u >> 16 & 0x8000, h;
  u &= 0x7fffffff;
  if (u > 0x7f800000) h = 0x7e00 | (u >> 13 & 0x3ff);
  else if (u >= 0x477ff000) h = 0x7c00;
  else if (u < 0x38800000) {                     // subnormal: let the float adder round, an ulp of 0.5 is 2^-24
    float f; memcpy(&f, &u, 4);
    f += 0.5f;
    memcpy(&u, &f, 4);
    h = u - 0x3f000000;
  } else h = (u + 0xfff + (u >> 13 & 1) - (112u << 23)) >> 13;
  h |= sign;
  _Float16 r; memcpy(&r, &h, 2);
  return r;
}
RAMMER_HELPER _Float16 __truncdfhf2(double x) {  // by way of a float rounded to odd: never rounds twice
  float f = (float)x;
  uint32_t u; memcpy(&u, &f, 4);
  if ((double)f != x) {
    if (__builtin_fabs((double)f) > __builtin_fabs(x)) u--;
    u |= 1;
  }
  memcpy(&f, &u, 4);
  return __truncsfhf2(f);
}
RAMMER_HELPER double __extendhfdf2(_Float16 x) { return __extendhfsf2(x); }
