"""Generate and build C for CPUs."""
