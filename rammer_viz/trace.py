"""Write a schedule as Chrome trace JSON (Trace Event Format)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask
from rammer.ir.text import printable
from rammer.scheduler.timeline import Timeline
from rammer.vdevice.supersteps import Superstep
from rammer_viz.shared import bars, names, ns


def chrome_trace(timeline: Timeline, plan: ExecutionPlan) -> str:
    """Return Trace Event JSON for Perfetto or chrome://tracing: one thread per vEU, one more for launches."""
    host, called = plan.spec.num_veus, names(plan)
    events: list[dict[str, Any]] = [_meta("process_name", 0, name=printable(f"{plan.spec.name} ({plan.policy})"))]
    for veu in range(host):
        events += _thread(veu, f"vEU {veu}")
    events += _thread(host, "launch")
    for n, times in enumerate(timeline.programs):
        events.append(_slice(f"launch rProgram {n}", "launch", host, times.launch_at_us, times.begin_us, {}))
    for bar in bars(timeline, plan):
        if isinstance(bar.slot, RTask):
            number, rtask = bar.slot.uid
            name, what, kernel = called[number], "rtask", plan.kernels[number]
            of = {"kind": printable(kernel.operation.kind), "kernel": printable(kernel.name)}
            args: dict[str, Any] = {"operator": number, **of, "rtask": f"{rtask} of {kernel.num_rtasks}"}
        else:
            name, what = "barrier", "barrier"
            args = {"waits": ", ".join(f"{w.veu}:{w.order}" for w in bar.slot.waits)}
        events.append(_slice(name, what, bar.veu, bar.start_us, bar.end_us, args))
    document = {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"policy": plan.policy, "times": "us"}}
    return json.dumps(document, separators=(",", ":"))


def superstep_trace(steps: Iterable[Superstep], clock_hz: float) -> str:
    """Return Trace Event JSON of one run in estimated cycles: threads for exchange, synchronisation and computing."""
    phases = ("exchange", "sync", "compute")
    events: list[dict[str, Any]] = [_meta("process_name", 0, name="supersteps, estimated")]
    for thread, phase in enumerate(phases):
        events += _thread(thread, phase)
    now_us = 0.0
    for number, step in enumerate(steps):
        cycles = (step.exchange, step.sync, step.compute)
        args = {"superstep": number, "bytes": step.bytes, "vertices": step.vertices, "tiles": step.tiles}
        for thread, (phase, count) in enumerate(zip(phases, cycles, strict=True)):
            end_us = now_us + count / clock_hz * 1e6
            if count:
                events.append(_slice(printable(step.name), phase, thread, now_us, end_us, {**args, "cycles": count}))
            now_us = end_us
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, separators=(",", ":"))


def _slice(
    name: str, category: str, thread: int, start_us: float, end_us: float, args: dict[str, Any]
) -> dict[str, Any]:
    """Return a complete event. Times are whole nanoseconds, so that rounding never makes neighbours overlap."""
    start, end = ns(start_us), ns(end_us)
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": 0,
        "tid": thread,
        "ts": start / 1e3,
        "dur": (end - start) / 1e3,
        "args": args,
    }


def _meta(what: str, thread: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": 0, "tid": thread, "args": args}


def _thread(thread: int, name: str) -> list[dict[str, Any]]:
    return [_meta("thread_name", thread, name=name), _meta("thread_sort_index", thread, sort_index=thread)]
