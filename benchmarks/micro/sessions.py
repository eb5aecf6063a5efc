"""Measure calls of a Session on small models: `python -m benchmarks.micro.sessions`.

Each model runs by `Session.run`, by a bound call of a Program where one program can contain it, and by ONNX Runtime,
in turns, on one thread each. Results must agree. Loops print microseconds of a step: a run of `--steps` steps less a
run of one step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle
from statistics import median
from typing import Any

import click
import numpy as np
import onnx.parser
import onnxruntime
from onnx import ModelProto

import rammer

Feeds = dict[str, Any]


@dataclass
class Case:
    """A model, its inputs, options of the session, and whether a Program can contain it."""

    model: ModelProto
    feeds: Feeds
    bound: Feeds | None = None  # inputs of the Program; None: there is none
    constants: Feeds | None = None
    more: list[Feeds] = field(default_factory=list)  # inputs that calls take in turn; none: always `feeds`


def parsed(text: str, **weights: Any) -> ModelProto:
    """A model from ONNX's text form; `weights` are initializers."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]>\n{text}')
    for name, value in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    return model


def draw(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def boxes() -> Case:
    """Six boxes, of which NonMaxSuppression keeps some."""
    model = parsed(
        """nms (float[1, 6, 4] boxes, float[1, 1, 6] scores) => (int64[k, 3] kept) {
          kept = NonMaxSuppression (boxes, scores, most, overlap)
        }""",
        most=np.array([3]),
        overlap=np.array([0.5], np.float32),
    )
    corners = np.random.default_rng(1).random((1, 6, 4)).astype(np.float32)
    return Case(model, {"boxes": corners, "scores": draw(1, 1, 6)})


def cache() -> Case:
    """New rows behind a cache."""
    model = parsed(
        "grow (float[1, 2, n, 16] past, float[1, 2, 1, 16] x) => (float[1, 2, m, 16] y) "
        "{ y = Concat <axis = 2> (past, x) }"
    )
    feeds = {"past": draw(1, 2, 28, 16), "x": draw(1, 2, 1, 16)}
    return Case(model, feeds, feeds)


def branch() -> Case:
    """A branch that a boolean input decides."""
    model = parsed(
        """choose (bool c, float[4] x) => (float[4] y) {
          y = If (c) <
            then_branch = a () => (float[4] u) { u = Neg (x) },
            else_branch = b () => (float[4] v) { v = Abs (x) }
          >
        }"""
    )
    feeds = {"c": np.array(True), "x": draw(4)}
    return Case(model, feeds, {"x": feeds["x"]}, {"c": feeds["c"]})


def rate() -> Case:
    """A branch that the value of an integer decides, as the sampling rate of a voice detector does."""
    model = parsed(
        """detect (int64 sr, float[64] x) => (float[n] y) {
          high = Equal (sr, wide)
          y = If (high) <
            then_branch = a () => (float[16] u) { p = MatMul (x, w) u = Sigmoid (p) },
            else_branch = b () => (float[8] v) { q = MatMul (x, z) v = Sigmoid (q) }
          >
        }""",
        wide=np.array(16000),
        w=draw(64, 16),
        z=draw(64, 8),
    )
    feeds = {"sr": np.array(16000), "x": draw(64)}
    return Case(model, feeds, {"x": feeds["x"]}, {"sr": feeds["sr"]})


def decoder() -> Case:
    """A step of a greedy decoder: a token's embedding, a recurrent cell, and the likeliest next token."""
    model = parsed(
        """greedy (int64[1] token, float[1, 32] h) => (int64[1] next, float[1, 32] g) {
          x = Gather (table, token)
          a = MatMul (x, w)
          b = MatMul (h, u)
          s = Add (a, b)
          g = Tanh (s)
          scores = MatMul (g, out)
          next = ArgMax <axis = -1, keepdims = 0> (scores)
        }""",
        table=draw(50, 32),
        w=draw(32, 32),
        u=draw(32, 32) / np.float32(6),
        out=draw(32, 50),
    )
    feeds = {"token": np.array([3]), "h": draw(1, 32)}
    return Case(model, feeds, feeds)


def loop(body: str, outputs: str, results: str) -> Callable[[int], Case]:
    """A loop with a number of steps that is an input."""

    def made(steps: int) -> Case:
        model = parsed(
            f"""loop (int64 m, float[3, 256] x) => ({outputs}) {{
              {results} = Loop <body = step (int64 i, bool c, float[3, 256] h) => {body}> (m, "", x)
            }}""",
            half=np.float32(0.5),
        )
        return Case(model, {"m": np.array(steps), "x": draw(3, 256)})

    return made


def other_boxes() -> Case:
    """The same with other boxes in each call."""
    case, random = boxes(), np.random.default_rng(2)
    case.more = [
        {name: random.random(value.shape).astype(np.float32) for name, value in case.feeds.items()} for _ in range(999)
    ]
    return case


CALLS = {
    "NMS": boxes,
    "NMS of other boxes": other_boxes,
    "cache concat": cache,
    "static If": branch,
    "If by an integer": rate,
    "greedy decoder": decoder,
}
LOOPS = {
    "counter": lambda steps: Case(
        parsed(
            """count (int64 m, int64 x) => (int64 y) {
              y = Loop <body = step (int64 i, bool c, int64 h) => (bool c2, int64 g) {
                c2 = Identity (c) g = Add (h, i)
              }> (m, "", x)
            }"""
        ),
        {"m": np.array(steps), "x": np.array(0)},
    ),
    "state of 3x256": loop(
        "(bool c2, float[3, 256] g) { c2 = Identity (c) g = Mul (h, half) }", "float[3, 256] y", "y"
    ),
    "state and scan output": loop(
        "(bool c2, float[3, 256] g, float[3, 256] row) { c2 = Identity (c) g = Mul (h, half) row = Neg (g) }",
        "float[3, 256] y, float[t, 3, 256] rows",
        "y, rows",
    ),
}


def alone() -> onnxruntime.SessionOptions:
    """ONNX Runtime with one thread, and without warnings."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return options


def timed(ways: dict[str, Callable[[], object]], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Return microseconds of a call, by way: a mean for each round, all ways in turns."""
    counts = {}
    for name, call in ways.items():
        begin = time.perf_counter()
        for _ in range(5):
            call()
        counts[name] = max(1, int(seconds * 5 / (time.perf_counter() - begin)))
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            begin = time.perf_counter()
            for _ in range(counts[name]):
                call()
            times[name].append((time.perf_counter() - begin) / counts[name] * 1e6)
    return times


def same(found: Any, wanted: Any) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def measured(case: Case, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Return microseconds of a call, by way."""
    peer = onnxruntime.InferenceSession(case.model.SerializeToString(), alone(), providers=["CPUExecutionProvider"])
    with rammer.Session(case.model, "cpu", sess_options=alone(), tune_seconds=0) as session:
        same(session.run(None, case.feeds), peer.run(None, case.feeds))
        mine, theirs = cycle(case.more or [case.feeds]), cycle(case.more or [case.feeds])
        ways: dict[str, Callable[[], object]] = {"Session.run": lambda: session.run(None, next(mine))}
        if case.bound is not None:
            shapes = {name: value.shape for name, value in case.feeds.items()}
            program = rammer.compile(
                case.model, "cpu", shapes=shapes, constants=case.constants or {}, device=1, tune_seconds=0
            )
            ways["bound call"] = program.bind(case.bound)
        ways["ONNX Runtime"] = lambda: peer.run(None, next(theirs))
        return timed(ways, rounds, seconds)


def show(name: str, times: dict[str, list[float]], rounds: int) -> None:
    texts = [f"{way} {median(us):.2f} (least {min(us):.2f})" for way, us in times.items()]
    click.echo(f"{name}: {', '.join(texts)} µs, n={rounds}")


@click.command()
@click.option("--only", default="", help="Names of cases that contain this.")
@click.option("--rounds", default=15, show_default=True)
@click.option("--seconds", default=0.02, show_default=True, help="Of each way, in a round.")
@click.option("--steps", default=4000, show_default=True, help="Of a loop.")
def main(only: str, rounds: int, seconds: float, steps: int) -> None:
    """Print a line for each model: medians and minima of microseconds of a call, or of a step."""
    for name, make in CALLS.items():
        if only in name:
            show(name, measured(make(), rounds, seconds), rounds)
    for name, loops in LOOPS.items():
        if only not in name:
            continue
        long, short = measured(loops(steps), rounds, seconds), measured(loops(1), rounds, seconds)
        each = {way: [(a - b) / (steps - 1) for a, b in zip(long[way], short[way], strict=True)] for way in long}
        show(f"{name}, a step", each, rounds)
        show(f"{name}, a run of one step", short, rounds)


if __name__ == "__main__":
    main()
