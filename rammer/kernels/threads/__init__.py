"""Generate schedules for vEUs of many threads."""
