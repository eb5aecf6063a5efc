"""Measure single operators against ONNX Runtime, and OpenVINO where it is installed, in turns in one process.

python -m benchmarks.operators.run --size layer --only "Softmax; TopK" --json operators.json
python -m benchmarks.operators.run --size layer --below 1.1 --json operators.json

A ratio is the least time of the best peer over that of rammer's `run`; `bound` is that of a bound call, which writes
outputs that exist. `floor` is how many times the least time that this machine allows `bound` takes: for the bytes of
inputs and outputs, or for multiply-adds. Where the machine has other work, most calls are disturbed: `--below`
measures forms again, all ways of each, and keeps the least of both.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import numpy as np
from onnx import ModelProto

import rammer
from benchmarks.compare.run import commit, machine
from benchmarks.micro.limits import Limits, measure
from benchmarks.operators.case import KINDS, SIZES, Case
from benchmarks.operators.cases import CASES
from rammer.errors import RammerError
from rammer.frontend.onnx.node import NotConstant
from rammer.ir.tensor import Array

PAUSE_S = 0.04  # before a turn: ONNX Runtime's threads spin for 28 ms after a run
OURS = ("run", "bound")
LEAST_CALLS = 5

Way = Callable[[], Any]


def onnxruntime_way(model: ModelProto, inputs: dict[str, Array], threads: int) -> Way:
    """Return a call of ONNX Runtime with all its optimizations."""
    import onnxruntime  # type: ignore[import-untyped, import-not-found, unused-ignore]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy(a) for name, a in inputs.items() if a.dtype != KINDS["bfloat16"]
    }
    if len(values) == len(inputs):
        return lambda: session.run(None, inputs)
    raise RammerError("ONNX Runtime's Python takes no bfloat16")


def openvino_way(model: ModelProto, inputs: dict[str, Array], threads: int) -> Way:
    """Return a call of OpenVINO, held to float32."""
    import openvino  # type: ignore[import-untyped, import-not-found, unused-ignore]

    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    core = openvino.Core()
    request = core.compile_model(core.read_model(model.SerializeToString()), "CPU", settings).create_infer_request()
    return lambda: request.infer(inputs, share_inputs=True).to_tuple()


PEERS = {"onnxruntime": onnxruntime_way, "openvino": openvino_way}


def add_peers(
    found: dict[str, Any],
    ways: dict[str, Way],
    results: list[Array],
    model: ModelProto,
    inputs: dict[str, Array],
    threads: int,
) -> None:
    """Add a way for each peer that is installed, and the error of `results` by the first one; or why it failed."""
    for peer, way in PEERS.items():
        if find_spec(peer):
            try:
                ways[peer] = way(model, inputs, threads)
                found.setdefault("error", error(results, ways[peer]()))
            except Exception as failure:  # whatever a peer raises is its result, and must not stop the others
                ways.pop(peer, None)
                found["failed"][peer] = " ".join(str(failure).split())[:200]


def measured(
    case: Case, size: str, dtype: str, threads: int, rounds: int, seconds: float, tune: float
) -> dict[str, Any]:
    """Return times by way to call, and the largest error relative to the first peer's largest result."""
    model, inputs = case.made(size, dtype)
    found: dict[str, Any] = {"case": case.name, "op": case.op, "domain": case.domain, "size": size, "dtype": dtype}
    found |= {"shape": list(case.shapes[SIZES.index(size)]), "failed": {}}
    ways: dict[str, Way] = {}
    with ExitStack() as stack:
        try:
            program = stack.enter_context(closing(rammer.compile(model, "cpu", device=threads, tune_seconds=tune)))
            bound = program.bind(inputs)
            ways = {"run": lambda: [*program.run(inputs).values()], "bound": bound}
            bound()
            results = [np.array(v) for v in bound.outputs.values()]
        except NotConstant:  # shapes of outputs follow from data
            session = stack.enter_context(closing(rammer.Session(model, "cpu", device=threads, tune_seconds=tune)))
            ways = {"run": lambda: session.run(None, inputs)}
            results = [np.asarray(v) for v in ways["run"]()]
        except RammerError as failure:
            found["failed"]["rammer"] = failure.what
            return found
        found["bytes"] = sum(a.nbytes for a in (*inputs.values(), *results))
        add_peers(found, ways, results, model, inputs, threads)
        found["ways"] = in_turns(ways, rounds, seconds)
    if case.macs:
        found["macs"] = case.macs(case.shapes[SIZES.index(size)])
    return found


def add_ratios(found: dict[str, Any]) -> None:
    """Add the least time of the best peer over ours."""
    peers = [times["min_us"] for way, times in found["ways"].items() if way not in OURS]
    if peers:
        found["ratio"], found["ratio_bound"] = (
            min(peers) / found["ways"][way]["min_us"] for way in (OURS[0], best(found))
        )


def best(found: dict[str, Any]) -> str:
    """Return the way with the least overhead: a bound call, unless shapes follow from data."""
    return next(way for way in reversed(OURS) if way in found["ways"])


def least_of_both(found: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Return a result with the least times of both, and the numbers of all calls."""
    for way, times in found.get("ways", {}).items():
        if before := earlier.get("ways", {}).get(way):
            least = {kind: min(times[kind], before[kind]) for kind in ("min_us", "median_us")}
            found["ways"][way] = least | {"n": times["n"] + before["n"]}
    return found


def in_turns(ways: dict[str, Way], rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Return minima, medians and numbers of calls; each round lets every way run for its part of the time."""
    samples: dict[str, list[float]] = {name: [] for name in ways}
    order = [*ways]
    for turn in range(rounds):
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            time.sleep(PAUSE_S)
            samples[name] += _visit(ways[name], seconds / rounds)
    return {name: {"min_us": min(us), "median_us": statistics.median(us), "n": len(us)} for name, us in samples.items()}


def _visit(way: Way, seconds: float) -> Iterator[float]:
    """Yield microseconds of timed calls, after an untimed one."""
    way()
    end = time.perf_counter() + seconds
    calls = 0
    while calls < LEAST_CALLS or time.perf_counter() < end:
        start = time.perf_counter()
        way()
        yield (time.perf_counter() - start) * 1e6
        calls += 1


def error(results: list[Array], wanted: Iterable[Any]) -> float:
    """Return the largest difference over the largest magnitude; infinite where shapes, or what is finite, differ."""
    worst = 0.0
    for a, b in zip(results, map(np.asarray, wanted), strict=True):
        if a.shape != b.shape:
            return math.inf
        b = b.view(a.dtype) if a.dtype == KINDS["bfloat16"] and b.dtype.itemsize == 2 else b
        a, b = (v.astype(np.float64) for v in (a, b))
        finite = np.isfinite(b)
        if not np.array_equal(np.where(finite, 0.0, a), np.where(finite, 0.0, b), equal_nan=True):
            return math.inf
        most = np.abs(np.where(finite, b, 0))
        off = np.abs(np.where(finite, a, 0) - np.where(finite, b, 0))
        if off.size:
            worst = max(worst, float(off.max()) / max(float(most.max()), 1e-30))
    return worst


def add_floor(found: dict[str, Any], limits: Limits) -> None:
    """Add the least microseconds of a result, and what they are for."""
    level = limits.level_for(found["bytes"])
    floors = {f"bytes, {level.name}": found["bytes"] / level.read_gbps / 1e3}
    floors["multiply-adds"] = 2 * found.get("macs", 0) / limits.gflops / 1e3
    found["floor_of"], found["floor_us"] = max(floors.items(), key=lambda item: item[1])


def line(found: dict[str, Any]) -> str:
    """Return a row of the table."""
    what = f"{found['case']} | {found['dtype']} | {found['size']} {found['shape']}"
    if "ways" not in found:
        return f"| {what} | refused: {found['failed']['rammer']} |"
    times = found["ways"]
    us = [f"{times[w]['min_us']:.1f} ({times[w]['median_us']:.1f}, {times[w]['n']})" for w in times]
    ratios = f"{found['ratio']:.2f} | {found['ratio_bound']:.2f}" if "ratio" in found else "– | –"
    above = f"{times[best(found)]['min_us'] / found['floor_us']:.1f} ({found['floor_of']})"
    return f"| {what} | {' | '.join(us)} | {ratios} | {above} | {found.get('error', math.nan):.0e} |"


def chosen(only: str, sizes: str, dtypes: str) -> Iterator[tuple[Case, str, str]]:
    """Yield what is asked for: cases whose name begins with one of `only`, by operator or form."""
    wanted = [w.strip().lower() for w in only.split(";")]
    for case in CASES.values():
        if any(case.name.lower() == w or case.op.lower() == w for w in wanted) or not only:
            for dtype in case.types:
                if not dtypes or dtype in dtypes.split(","):
                    yield from ((case, size, dtype) for size in SIZES if size in sizes.split(","))


@click.command()
@click.option("--only", default="", help="Operators, or single forms: `TopK; Softmax, rows`.")
@click.option("--size", default="layer", show_default=True, help=f"Some of {','.join(SIZES)}.")
@click.option("--dtype", default="", help="Element types of first inputs, such as float32,int64; by default all.")
@click.option("--threads", default=2, show_default=True)
@click.option("--rounds", default=6, show_default=True)
@click.option("--seconds", default=0.12, show_default=True, help="Of timed calls, for each way to call.")
@click.option("--tune", default=0.0, show_default=True, help="Seconds in which a compilation may measure rKernels.")
@click.option("--below", default=0.0, help="Again what the file has below this ratio.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Keeps other results that the file has.")
def main(
    only: str,
    size: str,
    dtype: str,
    threads: int,
    rounds: int,
    seconds: float,
    tune: float,
    below: float,
    path: Path | None,
) -> None:
    """Print minima (and medians, and numbers of calls) in microseconds, ratios, and times over floors."""
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {"results": []}
    known = {(r["case"], r["size"], r["dtype"]): r for r in kept["results"]}
    limits, ratios = measure(threads), list[float]()
    peers = [peer for peer in PEERS if find_spec(peer)]
    print(f"| form | type | size | {' | '.join((*OURS, *peers))} | ratio | bound | x floor | error |")
    print("|---" * (8 + len(peers)) + "|")
    for case, at, kind in chosen(only, size, dtype):
        earlier = known.get((case.name, at, kind), {})
        if below and not earlier.get("ratio", below) < below:
            continue
        found = measured(case, at, kind, threads, rounds, seconds, tune)
        found = least_of_both(found, earlier) if below else found
        if "ways" in found:
            add_ratios(found)
            add_floor(found, limits)
            ratios += [found["ratio"]] if "ratio" in found else []
        print(line(found), flush=True)
        known[case.name, at, kind] = found
        kept = {"machine": machine(), "commit": commit(), "limits": limits.as_json(), "results": [*known.values()]}
        if path:
            path.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    if ratios:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        print(f"\n{len(ratios)} forms, geometric mean {mean:.2f}, {sum(r < 1 for r in ratios)} below 1")


if __name__ == "__main__":
    main()
