"""Benchmarks: the paper's models, the machine's limits, and rammer measured against its peers."""

from rammer.moved import install

install({f"benchmarks.{name}": f"benchmarks.compare.{name}" for name in ("before", "report", "run")})  # named elsewhere
