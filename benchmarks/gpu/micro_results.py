"""What a microbenchmark found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Micro:
    """A result: microseconds, or of another unit; `failed` says why there is none."""

    what: str
    median: float | None = None
    least: float | None = None
    unit: str = "us"
    failed: str = ""
