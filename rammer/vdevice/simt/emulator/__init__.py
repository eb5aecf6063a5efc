"""SIMT programs on the host: the emitted text, compiled by the C++ compiler, its threads as fibers."""
