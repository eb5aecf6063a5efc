"""Run programs on CPUs: loading, threads, calls, and the C that runs on each vEU."""
