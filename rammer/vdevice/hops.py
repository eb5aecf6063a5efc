"""What a hand-over between vEUs costs, part by part: estimates, until measured ones take their place."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from rammer.errors import ArtifactError
from rammer.ir.plan import ExecutionPlan


@dataclass(frozen=True, slots=True)
class HopCosts:
    """Microseconds of the parts that are the same in every hand-over. `source`: who says so.

    The defaults are estimates for GPUs of 2020 and later, from latencies that others published; a platform may know
    better.
    """

    fence_us: float = 0.4  # until the writes of a vEU may be seen, and its counter is written
    poll_us: float = 0.35  # until a poll of another vEU has seen the counter
    dispatch_us: float = 0.1  # two block syncs, the instruction and its arguments from shared memory, the jump
    source: str = "estimated"

    @staticmethod
    def read(path: str) -> HopCosts:
        """Measured costs from a JSON file of these names, or of a GPU's benchmarks; what it leaves out stays estimated.

        Raises ArtifactError.
        """
        try:
            given = json.loads(Path(path).read_text())
            given = given.get("hop_costs", given)
            known = {f.name: float(given[f.name]) for f in fields(HopCosts) if f.name != "source" and f.name in given}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ArtifactError(f"{path}: no costs of hand-overs: {error}", hint='{"fence_us": 0.4, …}') from error
        missing = [f.name for f in fields(HopCosts) if f.name != "source" and f.name not in known]
        what = "measured" + (f", but for {', '.join(missing)}" if missing else "")
        return replace(HopCosts(), **known, source=what)


@dataclass(frozen=True)
class HopRow:
    """Equal hand-overs of the longest chain: how many, and what one of them takes."""

    kind: str
    rkernel: str
    count: int
    fence_us: float
    poll_us: float
    dispatch_us: float
    compute_us: float
    tail_us: float
    sure: bool

    @property
    def us(self) -> float:
        """Of one hand-over."""
        return self.fence_us + self.poll_us + self.dispatch_us + self.compute_us + self.tail_us


@dataclass(frozen=True)
class Hops:
    """The longest chain, in rows of equal hand-overs."""

    rows: tuple[HopRow, ...]
    source: str

    @property
    def total_us(self) -> float:
        """Of all hand-overs of the chain."""
        return sum(row.count * row.us for row in self.rows)

    def __str__(self) -> str:
        hops = sum(row.count for row in self.rows)
        head = f"{'hops':>5} {'fence':>6} {'poll':>6} {'disp.':>6} {'comp.':>7} {'tail':>6} {'sum':>7} µs  rKernel"
        lines = []
        for r in self.rows:
            fixed = f"{r.count:5} {r.fence_us:6.2f} {r.poll_us:6.2f} {r.dispatch_us:6.2f}"
            own = f"{' ' if r.sure else '≥'}{r.compute_us:6.2f} {r.tail_us:6.2f}"
            lines.append(f"{fixed} {own} {r.us:7.2f}     {r.rkernel}")
        foot = (
            f"{hops} hand-overs of the longest chain: {self.total_us / 1e3:.3f} ms; fence, poll and dispatch: "
            f"{self.source}; the rest by latencies of the machine code (≥: a loop of unknown length counted once)"
        )
        return "\n".join([head, *lines, foot])

    def to_json(self) -> str:
        """Everything, for other programs."""
        return json.dumps({"source": self.source, "total_us": self.total_us, "rows": [asdict(r) for r in self.rows]})


@runtime_checkable
class EstimatesHops(Protocol):
    """A vDevice that knows what rTasks take between a wait and a publication."""

    def hops(self, plan: ExecutionPlan, waiting: Iterable[int], costs: HopCosts | None) -> Hops:
        """Of these operators' hand-overs; `costs`: those of the platform if None."""
