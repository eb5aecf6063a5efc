// The part of <string.h> that kernels may use; see toolchain.py.
#ifndef RAMMER_STRING_H
#define RAMMER_STRING_H
#include <stddef.h>
void *memcpy(void *restrict, const void *restrict, size_t);
void *memmove(void *, const void *, size_t);
void *memset(void *, int, size_t);
int memcmp(const void *, const void *, size_t);
#endif
