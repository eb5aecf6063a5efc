"""Steps of a loop in one call: the same values as one run after another, wherever ports lie, and what ends a loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx.parser
import pytest

import rammer
from rammer.errors import InputError, RammerError
from rammer.vdevice.base import StepRows, TakesSteps

F32 = np.float32
KINDS = {"small": (3, 75), "large": (300, 129)}  # copied in and out, and too large for that


def body(rows: int, width: int) -> rammer.Program:
    """g = h + x[k] (k counts), row = -g; it goes on while most of g is below a limit."""
    state = f"float[{rows}, {width}]"
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 18]>
        step (int64 k, {state} h, float[40, {width}] x, float limit) => (bool again, {state} g, {state} row) {{
          one = Gather <axis = 0> (x, k)
          g = Add (h, one)
          row = Neg (g)
          most = ReduceMax <keepdims = 0> (g)
          again = Less (most, limit)
        }}""")
    return rammer.compile(model, "cpu", state={"g": "h"}, device=2, tune_seconds=0)


@pytest.fixture(scope="module", params=KINDS)
def program(request: pytest.FixtureRequest) -> Iterator[rammer.Program]:
    with body(*KINDS[request.param]) as made:
        yield made


def given(program: rammer.Program, limit: float) -> dict[str, Any]:
    ports = {p.name: p for p in program.inputs}
    random = np.random.default_rng(len(ports))
    return {
        "h": random.random(ports["h"].shape).astype(F32),
        "x": random.random(ports["x"].shape).astype(F32),
        "limit": np.array(limit, F32),
        "k": np.array(0),
    }


def one_by_one(program: rammer.Program, feeds: dict[str, Any], steps: int) -> tuple[list[Any], Any]:
    """What each step collects, and the last state."""
    stream = program.stream()
    stream.reset(h=feeds["h"])
    rows = []
    for k in range(steps):
        again, row = stream.run(["again", "row"], {"x": feeds["x"], "limit": feeds["limit"], "k": np.array(k)})
        rows.append(row)
        if not again:
            break
    return rows, stream.state()["h"]


@pytest.mark.parametrize("skew", [0, 4])
@pytest.mark.parametrize(("limit", "steps"), [(1e9, 29), (6.0, 29), (-1.0, 29), (1e9, 1)])
def test_the_same_as_one_by_one(program: rammer.Program, limit: float, steps: int, skew: int) -> None:
    feeds = given(program, limit)
    rows, last = one_by_one(program, feeds, steps)
    executable = program.executable
    assert isinstance(executable, TakesSteps)
    kinds = {p.name: p.type for p in (*program.inputs, *program.outputs)}
    state = executable.rows(kinds["h"], 2)
    state[0] = feeds["h"]
    memory = np.empty(steps * kinds["row"].nbytes + skew, np.uint8)[skew:]  # not at a cache line
    collected = memory.view(F32).reshape(steps, *kinds["row"].shape)
    places = {
        "h": StepRows(state),
        "g": StepRows(state, 1),
        "row": StepRows(collected),
        "k": StepRows(np.arange(steps)),
    }
    places |= {name: StepRows(feeds[name][np.newaxis]) for name in ("x", "limit")}
    loop = executable.steps(places, "again")
    for _ in range(2):  # again from the begin
        loop.progress[:] = 0, 1
        state[0] = feeds["h"]
        while loop.progress[1] and loop.progress[0] < steps:
            loop.take(steps)
            one_by_one(program, feeds, 1)  # points the program elsewhere
        assert loop.progress[0] == len(rows) and loop.progress[1] == (limit == 1e9)
        np.testing.assert_array_equal(collected[: len(rows)], rows)
        np.testing.assert_array_equal(state[len(rows) % 2], last)


def test_rows_that_can_be_pointed_at_and_then_cannot() -> None:
    """Arguments that stayed at the first rows read there once more, and so did later runs."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 18]>
        step (float[1, 32] h, float[1, 32] x) => (float[1, 32] g) { g = Add (h, x) }""")
    with rammer.compile(model, "cpu", state={"g": "h"}, device=1, tune_seconds=0) as program:
        executable, steps = program.executable, 5
        assert isinstance(executable, TakesSteps)
        kinds = {p.name: p.type for p in program.inputs}
        state, aligned = executable.rows(kinds["h"], 2), executable.rows(kinds["x"], steps)
        skewed = executable.rows(kinds["x"], steps + 1).reshape(-1)[1 : 32 * steps + 1].reshape(aligned.shape)
        loop = executable.steps({"h": StepRows(state), "g": StepRows(state, 1), "x": StepRows(aligned)}, None)
        for n, rows in enumerate((aligned, skewed, aligned, skewed), 1):
            aligned[:] = skewed[:] = np.nan
            rows[:] = n
            loop.move("x", StepRows(rows))
            loop.progress[:], state[0] = (0, 1), 0
            while loop.progress[0] < steps:
                loop.take(steps)
            assert np.all(state[steps % 2] == n * steps)
        aligned[:] = skewed[:] = np.nan
        stream = program.stream()
        stream.run({"x": np.ones((1, 32), F32)})
        assert np.all(stream.state()["h"] == 1)


def test_a_step_that_fails_is_known(program: rammer.Program) -> None:
    """x has 40 rows: the 41st step fails, and what came before it is there."""
    feeds = given(program, 1e9)
    executable = program.executable
    assert isinstance(executable, TakesSteps)
    kinds = {p.name: p.type for p in program.inputs}
    state = executable.rows(kinds["h"], 2)
    state[0] = feeds["h"]
    places = {"h": StepRows(state), "g": StepRows(state, 1), "k": StepRows(np.arange(50))}
    loop = executable.steps(places | {name: StepRows(feeds[name][np.newaxis]) for name in ("x", "limit")}, "again")
    with pytest.raises(InputError, match="index out of range"):
        while loop.progress[0] < 50:
            loop.take(50)
    assert loop.progress[0] == 40
    np.testing.assert_array_equal(state[0], one_by_one(program, feeds, 40)[1])


def test_a_closed_body() -> None:
    program = body(3, 5)
    assert isinstance(program.executable, TakesSteps)
    feeds = given(program, 1e9)
    places = {name: StepRows(value[np.newaxis]) for name, value in feeds.items()}
    loop = program.executable.steps(places, "again")
    loop.take(1)
    program.close()
    with pytest.raises(RammerError, match="closed"):
        loop.take(1)
