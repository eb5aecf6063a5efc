"""Import existing CUDA kernels as rKernels: read as text, executed for verification only on request. Paper: §4.1.4."""
