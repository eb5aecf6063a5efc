"""Run programs on GPUs: the driver's interface, clocks, launches."""
