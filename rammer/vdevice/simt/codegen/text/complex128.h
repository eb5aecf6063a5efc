struct c128 { double re, im; };
INLINE double c128_real(c128 x) { return x.re; }
INLINE double c128_imag(c128 x) { return x.im; }
INLINE c128 c128_complex(double re, double im) { c128 v; v.re = re; v.im = im; return v; }
