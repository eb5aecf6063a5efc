int printf(const char *, ...);
