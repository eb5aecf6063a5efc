"""Run SIMT programs on the host: the emitted text, compiled by a C++ compiler, with threads as fibers."""
