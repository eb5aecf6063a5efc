INLINE int64_t dbits(double x) { union { double f; int64_t i; } u; u.f = x; return u.i; }
INLINE double dfloat(int64_t x) { union { double f; int64_t i; } u; u.i = x; return u.f; }
INLINE double dmax(double a, double b) { return a > b || a != a ? a : b; }
INLINE double dmin(double a, double b) { return a < b || a != a ? a : b; }
INLINE double dsign(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }
INLINE double dsigmoid(double x) { return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x)); }
#define dabs fabs
#define dfloor floor
#define dceil ceil
#define dround rint
#define dsqrt sqrt
#define dexp exp
#define dlog log
#define dsin sin
#define dcos cos
#define dasin asin
#define dacos acos
#define datan atan
#define derf erf
#define dtanh tanh
#define dpow pow
#define dfmod fmod
INLINE uint64_t to_uint64(double x) { return x < 9223372036854775808.0 ? (uint64_t)(int64_t)x : (uint64_t)x; }
#define dis_nan(x) ((x) != (x))
#define dis_inf(x) (fabs(x) == INFINITY)
