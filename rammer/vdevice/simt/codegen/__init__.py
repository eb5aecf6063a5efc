"""Generate the megakernel and the tables that GPUs read."""
