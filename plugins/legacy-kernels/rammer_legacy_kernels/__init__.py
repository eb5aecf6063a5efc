"""CUDA kernels of other people as rKernels: read as text, verified by execution only when asked. Paper: §4.1.4."""
