"""Write a simulated plan over time for Perfetto: the layers that cores compute, and the transfers of each memory."""

from __future__ import annotations

import json

from benchmarks.graphturbo.device import memories
from benchmarks.graphturbo.networks import NETWORKS
from benchmarks.graphturbo.plans import steps_of, timeline, transfers_of_plan
from benchmarks.graphturbo.search import searched

LANES = ("cores", "shared", "main")


def chrome_trace(name: str, batch: int) -> str:
    """Return the searched plan of a network as Chrome trace JSON."""
    network, room = NETWORKS[name](batch), memories()
    plan = searched(network, room)
    found, steps = timeline(network, plan, room), steps_of(network, plan)
    events: list[dict[str, object]] = [
        {"ph": "M", "pid": 1, "tid": n, "name": "thread_name", "args": {"name": lane}} for n, lane in enumerate(LANES)
    ]

    def event(what: str, lane: str, begin: float, end: float) -> None:
        microseconds = {"ts": begin * 1e3, "dur": (end - begin) * 1e3}
        events.append({"ph": "X", "pid": 1, "tid": LANES.index(lane), "name": what, **microseconds})

    for step, times_ms in zip(steps, found.steps, strict=True):
        event(f"layer {step.makes.piece[1]}", "cores", *times_ms)
    for transfer, times_ms in zip(transfers_of_plan(network, plan), found.transfers, strict=True):
        move = transfer.move
        event(f"{move.kind} of layer {move.piece[1]}", move.memory, *times_ms)
    return json.dumps({"traceEvents": events})
