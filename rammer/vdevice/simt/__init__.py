"""What backends for GPUs share: the printer, the persistent megakernel, its tables, and the emulator on the host."""
