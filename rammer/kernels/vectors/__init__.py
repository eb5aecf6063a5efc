"""Generate schedules for vEUs of one thread with vector registers or a matrix unit."""
