"""Report the estimated cost of a bulk-synchronous run (BSP), as an emulator counted it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable


class Superstep(NamedTuple):
    """One compute set or copy with the exchange before it. `busy` is its work in tile-cycles."""

    name: str
    compute: int
    exchange: int
    sync: int
    bytes: int
    vertices: int
    tiles: int
    busy: int


COLUMNS = 60  # of the longest step's bar


@dataclass(frozen=True)
class SuperstepProfile:
    """Totals and steps of one run. Cycles are those of the whole chip, which waits for its slowest tile."""

    totals: dict[str, int]
    steps: tuple[Superstep, ...]

    @property
    def estimated_us(self) -> float:
        """Estimated microseconds of a run on the device, without the host."""
        return self.totals["cycles"] / self.totals["clock_hz"] * 1e6

    @property
    def utilisation(self) -> float:
        """Fraction of all tiles' cycles that compute, 0 … 1."""
        whole = self.totals["tiles"] * self.totals["cycles"]
        return self.totals["busy_tile_cycles"] / whole if whole else 0.0

    def __str__(self) -> str:
        t = self.totals
        share = {k: t[f"{k}_cycles"] / max(t["cycles"], 1) for k in ("compute", "exchange", "sync")}
        return (
            f"estimated {self.estimated_us / 1e3:.3f} ms at {t['clock_hz'] / 1e9:.2f} GHz: {t['cycles']} cycles in "
            f"{t['supersteps']} supersteps (compute {share['compute']:.0%}, exchange {share['exchange']:.0%}, "
            f"sync {share['sync']:.0%})\n"
            f"{t['vertices']} vertices, {self.utilisation:.1%} of {t['tiles']} tiles busy; {t['exchange_bytes']} bytes "
            f"exchanged; tile {t['peak_tile']} is fullest with {t['peak_tile_bytes']} of {t['tile_bytes']} bytes"
        )

    def timeline(self) -> str:
        """Return one line per step: # compute, = exchange, . sync, in proportion to the longest step."""
        longest = max((s.compute + s.exchange + s.sync for s in self.steps), default=1) or 1
        lines = []
        for s in self.steps:
            bar = "".join(
                mark * round(COLUMNS * n / longest) for mark, n in (("=", s.exchange), (".", s.sync), ("#", s.compute))
            )
            lines.append(f"{s.name[:30]:30} {s.compute + s.exchange + s.sync:9} cycles {s.tiles:5} tiles |{bar}")
        return "\n".join(lines)


@runtime_checkable
class CountsSupersteps(Protocol):
    """An executable that counted the cost of its last run."""

    def profile(self) -> SuperstepProfile: ...
