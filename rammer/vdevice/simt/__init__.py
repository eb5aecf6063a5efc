"""Share what GPU backends need: the printer, the persistent megakernel, its tables, the runtime and a host emulator."""
