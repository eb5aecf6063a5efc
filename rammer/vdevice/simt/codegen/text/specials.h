#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
