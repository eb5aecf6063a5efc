typedef E_ T_ __attribute__((vector_size(BYTES), aligned(SIZE), may_alias));
INLINE T_ T__load(const E_ *p, int n) { T_ v = {0}; memcpy(&v, p, SIZE * n); return v; }
INLINE void T__store(E_ *p, T_ v, int n) { memcpy(p, &v, SIZE * n); }
