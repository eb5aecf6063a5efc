"""Measure how much of a run is inside rTasks. Paper: §5.2.2, §5.2.3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rammer.vdevice.base import SlotTimes


@dataclass(frozen=True)
class Usage:
    """Means over several runs, without the copying of inputs and outputs. Fractions are of the time of all vEUs.

    `scheduling` is what §5.2.3 counts: the fraction of the run in which no vEU is inside an rTask.
    """

    runs: int
    run_us: float
    in_rtasks: float
    waiting: float  # in barrier-rTasks
    scheduling: float
    operator_us: tuple[float, ...]  # by operator, summed over all vEUs
    between: float = 0.0  # from a slot's end to the next one's begin: signals, and picking the next slot
    emulated: bool = False  # times are an emulator's

    @property
    def overhead(self) -> float:
        """Fraction of all vEUs' time outside of rTasks, for any reason."""
        return 1 - self.in_rtasks

    def to_json(self) -> dict[str, Any]:
        """Return the data without the operators' times."""
        data = asdict(self)
        del data["operator_us"]
        return {**data, "overhead": self.overhead}

    def __str__(self) -> str:
        return (
            f"{'emulated' if self.emulated else 'measured'} {self.run_us / 1e3:.3f} ms a run: "
            f"{self.overhead:.1%} of the vEUs' time is outside of rTasks "
            f"({self.waiting:.1%} in barriers, {self.between:.1%} between slots); "
            f"no vEU is in an rTask for {self.scheduling:.1%} of the run"
        )


def usage_of(runs: Sequence[SlotTimes], num_operators: int) -> Usage:
    """Average the faster half of the runs. Slower ones include interruptions by the machine."""
    chosen = sorted(runs, key=lambda run: run.total_us)[: (len(runs) + 1) // 2]
    num_veus = max((len(lanes) for lanes in chosen[0].programs), default=1)
    busy, waiting, between, idle, total = np.zeros(num_operators), 0.0, 0.0, 0.0, 0.0
    for run in chosen:
        total += run.total_us
        idle += run.total_us
        for times, operators in zip(run.programs, run.operators, strict=True):
            for lane, numbers in zip(times, operators, strict=True):
                lengths, rtask = lane[:, 1] - lane[:, 0], numbers >= 0
                busy += np.bincount(numbers[rtask], lengths[rtask], num_operators)
                waiting += float(lengths[~rtask].sum())
                between += float(np.maximum(lane[1:, 0] - lane[:-1, 1], 0).sum())
            tasks = [lane[numbers >= 0] for lane, numbers in zip(times, operators, strict=True)]
            idle -= _covered(np.concatenate(tasks))
    room = total * num_veus
    return Usage(
        len(chosen),
        total / len(chosen),
        float(busy.sum()) / room,
        waiting / room,
        idle / total,
        tuple((busy / len(chosen)).tolist()),
        between / room,
        chosen[0].emulated,
    )


def _covered(spans: NDArray[np.float64]) -> float:
    """Return the length of the union of [begin, end)."""
    spans = spans[np.argsort(spans[:, 0])]
    reached = np.maximum.accumulate(spans[:, 1])
    return float((reached - np.maximum(np.concatenate([spans[:1, 0], reached[:-1]]), spans[:, 0])).sum())
