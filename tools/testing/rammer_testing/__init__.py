"""Tools that test rammer itself: a fuzzer and mutation testing. Not part of the compiler's wheel."""
