"""Choose registers and occupancy, and measure kernels on GPUs."""
