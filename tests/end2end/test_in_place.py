"""State that is changed where it lies: a step of a cache stores its rows, and copies nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

import rammer
from rammer.errors import InputError, VerificationError
from rammer.ir.graph import View
from rammer.ir.tensor import Array
from rammer.ir.verify import verify_plan
from rammer.passes.in_place import update_in_place

BATCH, HEADS, LENGTH, WIDTH = 2, 3, 29, 16
CACHE = f"float[{BATCH}, {HEADS}, {LENGTH}, {WIDTH}]"
NODES = {
    "linear": "present_k = TensorScatter <axis = 2> (past_k, new, at)",
    "circular": 'present_k = TensorScatter <axis = 2, mode = "circular"> (past_k, new, at)',
    "elements": "present_k = ScatterElements <axis = 2> (past_k, at, new)",
    "negative axis": "present_k = ScatterElements <axis = -2> (past_k, at, new)",
    "rows": "present_k = ScatterND (past_k, at, new)",
    "chosen": """r = Constant <value = int64[29] {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19,
        20, 21, 22, 23, 24, 25, 26, 27, 28}> () e = Equal (r, at) f = Constant <value_ints = [1, 3]> ()
        u = Unsqueeze (e, f) present_k = Where (u, new, past_k)""",
    "as torch exports it": """t = Transpose <perm = [2, 0, 1, 3]> (past_k) n = Transpose <perm = [2, 0, 1, 3]> (new)
        s = ScatterND (t, at, n) present_k = Transpose <perm = [1, 2, 0, 3]> (s)""",
}
PLACES = {"chosen": f"{BATCH}, 1", "linear": f"{BATCH}", "circular": f"{BATCH}", "as torch exports it": "{count}, 1"}


def model(how: str, count: int, more: str = "") -> ModelProto:
    """Rows go into a cache, and all of it is read."""
    new = f"float[{BATCH}, {HEADS}, {count}, {WIDTH}]"
    places = PLACES.get(how, f"{BATCH}, {HEADS}, {count}, {WIDTH}" if "elem" in how or "axis" in how else "{count}, 3")
    new = f"float[{count}, {WIDTH}]" if how == "rows" else new
    text = f"""<ir_version: 10, opset_import: ["" : 24]>
        step ({CACHE} past_k, {new} new, int64[{places.format(count=count)}] at)
            => (float[m, n, w] y, {CACHE} present_k) {{
          {NODES[how]}
          axes = Constant <value_ints = [2]> ()
          y = ReduceSum <keepdims = 0> (present_k, axes)
          {more}
        }}"""
    return onnx.parser.parse_model(text)


def fed(how: str, count: int, step: int, random: Any) -> dict[str, Array]:
    """The inputs of a step, at places that are all different."""
    new = random.standard_normal((BATCH, HEADS, count, WIDTH)).astype("f")
    first = step * count
    if how in ("linear", "circular"):
        at = np.array([first, first + 2]) if how == "linear" else np.array([first + 20, 1000 - first])
    elif how == "chosen":
        at = np.array([[first], [7 - 5 * first]])  # the last ones are nowhere
    elif how == "rows":
        new = new[0, 0]
        at = random.permutation(np.argwhere(np.ones((BATCH, HEADS, LENGTH))))[:count] - [0, 0, LENGTH]
    elif how == "as torch exports it":
        at = np.arange(first + count, first, -1).reshape(-1, 1) - LENGTH * (step % 2)
    else:
        lines = np.broadcast_to(np.arange(LENGTH)[:, None], (BATCH, HEADS, LENGTH, WIDTH))
        at = random.permuted(lines, axis=2)[:, :, :count] - LENGTH * (step % 2)
    return {"new": new, "at": np.ascontiguousarray(at, np.int64)}


@pytest.fixture(params=["cpu", "interpreter", "cuda"])
def target(request: pytest.FixtureRequest) -> tuple[str, Any]:
    return request.param, "emulator:2" if request.param == "cuda" else 2


@pytest.mark.parametrize("how", NODES)
@pytest.mark.parametrize("count", [1, 3])
def test_rows_are_stored_in_place(how: str, count: int, target: tuple[str, Any]) -> None:
    if how == "chosen" and count > 1:
        pytest.skip("one row for each batch")
    random = np.random.default_rng(7)
    made = model(how, count)
    reference = ReferenceEvaluator(made)
    cache = np.zeros((BATCH, HEADS, LENGTH, WIDTH), "f")
    with rammer.compile(made, target[0], device=target[1], state=True, tune_seconds=0) as program:
        assert [op.kind for op in program.plan.graph.operators].count("update") == 1
        verify_plan(program.plan)
        for step in range(4):
            inputs = fed(how, count, step, random)
            wanted, cache = reference.run(["y", "present_k"], {"past_k": cache, **inputs})
            found = program.run(inputs)
            assert found.keys() == {"y"}
            np.testing.assert_allclose(found["y"], wanted, rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(program.state()["past_k"], cache)


def test_grouped_attention_stores_rows_in_its_cache() -> None:
    """With lengths that differ: ONNX Runtime is given the cache again and again, rammer keeps it."""
    kinds = {"q": "float[2, 1, 64]", "k": "float[2, 1, 32]", "v": "float[2, 1, 32]", "ends": "int32[2]"}
    caches = {"past_k": "float[2, 2, 29, 16]", "past_v": "float[2, 2, 29, 16]"}
    given = ", ".join(f"{kind} {name}" for name, kind in (kinds | caches).items())
    made = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]>
        step ({given}) => (float[2, 1, 64] y, float[2, 2, 29, 16] present_k, float[2, 2, 29, 16] present_v) {{
          total = Constant <value = int32 {{29}}> ()
          y, present_k, present_v = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2>
              (q, k, v, past_k, past_v, ends, total)
        }}""")
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    random, past = np.random.default_rng(7), {name: np.zeros((2, 2, 29, 16), "f") for name in caches}
    with rammer.compile(made, "cpu", device=2, state=True, tune_seconds=0) as program:
        assert [op.kind for op in program.plan.graph.operators].count("update") == 2
        for at in range(4):
            rows = {name: random.standard_normal((2, 1, 64 if name == "q" else 32)).astype("f") for name in "qkv"}
            inputs = {**rows, "ends": np.array([at, at + 3], np.int32)}
            wanted, *new = session.run(["y", "present_k", "present_v"], {**inputs, **past})
            past = dict(zip(caches, new, strict=True))
            np.testing.assert_allclose(program.run(inputs)["y"], wanted, rtol=1e-4, atol=1e-5)
            for name, cache in program.state().items():  # behind the end of a sequence anything may lie
                for batch, end in enumerate(inputs["ends"] + 1):
                    np.testing.assert_array_equal(cache[batch, :, :end], past[name][batch, :, :end])


def step(**options: Any) -> rammer.Program:
    return rammer.compile(model("linear", 1), "cpu", device=2, state=True, tune_seconds=0, **options)


def test_nothing_is_copied() -> None:
    """A run stores its rows into the memory that the one before left, and leaves it to the next."""
    inputs = fed("linear", 1, 0, np.random.default_rng(0))
    with step() as program:
        assert program.plan.graph.views["present_k"] == View("past_k", 0)
        executable: Any = program.executable
        run_bound, seen = executable.run_bound, set()

        def watched(given: Any, places: Any, outputs: Any) -> Any:
            assert given.keys() == {"new", "at"} and executable._bindings.keys() >= {"past_k"} == places.keys()
            seen.add(places["past_k"].ctypes.data)
            places["past_k"][:, :, 20] = 77  # no row of this step
            return run_bound(given, places, outputs)

        executable.run_bound = watched
        for _ in range(3):
            program.run(inputs)
            assert (program.state()["past_k"][:, :, 20] == 77).all()
        assert len(seen) == 1


@pytest.mark.parametrize("saved", [False, True])
def test_what_somebody_gave_stays_theirs(saved: bool, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    inputs = fed("linear", 1, 0, random)
    given = random.standard_normal((BATCH, HEADS, LENGTH, WIDTH)).astype("f")
    before, wanted = given.copy(), given.copy()
    for batch, at in enumerate(inputs["at"]):
        wanted[batch, :, at] = inputs["new"][batch, :, 0]
    program = step()
    if saved:
        program.save(tmp_path / "p.rammer")
        program = rammer.load(tmp_path / "p.rammer", device=2)
    with program:
        other = program.stream()
        other.run(inputs)
        (cache,) = program.run(["present_k"], {**inputs, "past_k": given})
        np.testing.assert_array_equal(given, before)
        np.testing.assert_array_equal(cache, wanted)
        cache[...] = 0  # the caller's own
        np.testing.assert_array_equal(program.state()["past_k"], wanted)
        program.reset(past_k=given)
        np.testing.assert_array_equal(program.run(["present_k"], inputs)[0], wanted)
        np.testing.assert_array_equal(given, before)
        program.reset()
        (fresh,) = program.run(["present_k"], inputs)
        np.testing.assert_array_equal(fresh, other.state()["past_k"])


def test_a_place_outside_is_refused_and_changes_nothing(target: tuple[str, Any]) -> None:
    random = np.random.default_rng(2)
    for how, bad in (("linear", LENGTH), ("linear", -1), ("elements", LENGTH), ("elements", -LENGTH - 1)):
        inputs = fed(how, 1, 0, random)
        made = model(how, 1)
        with rammer.compile(made, target[0], device=target[1], state=True, tune_seconds=0) as program:
            program.run(inputs)
            before = program.state()["past_k"]
            wrong = np.full_like(inputs["at"], bad)
            with pytest.raises(InputError, match=r"outside|out of range"):
                program.run({**inputs, "at": wrong})
            np.testing.assert_array_equal(program.state()["past_k"], before)


@pytest.mark.parametrize(
    "more",
    [
        "z = ReduceSum <keepdims = 0> (past_k, axes)",  # the old value is needed
        "z = Identity (past_k)",
    ],
)
def test_what_is_still_needed_is_kept(more: str) -> None:
    made = model("linear", 1, more)
    made.graph.output.add().name = "z"
    random, cache = np.random.default_rng(3), np.zeros((BATCH, HEADS, LENGTH, WIDTH), "f")
    with rammer.compile(made, "cpu", device=2, state=True, tune_seconds=0) as program:
        assert all(op.kind != "update" for op in program.plan.graph.operators)
        for n in range(3):
            inputs = fed("linear", 1, n, random)
            y, z, cache = ReferenceEvaluator(made).run(["y", "z", "present_k"], {"past_k": cache, **inputs})
            found = program.run(inputs)
            np.testing.assert_allclose(found["y"], y, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found["z"], z, rtol=1e-4, atol=1e-5)


def test_only_a_pair_is_changed_in_place() -> None:
    graph = rammer.from_onnx(model("linear", 1))
    assert update_in_place(graph, {})[1] == frozenset()
    assert update_in_place(graph, {"present_k": "new"})[1] == frozenset()
    changed, names = update_in_place(graph, {"present_k": "past_k"})
    assert names == {"present_k"} and not changed.updates


def test_a_plan_that_reads_what_is_gone_is_refused() -> None:
    with step() as program:
        plan = program.plan
        graph = plan.graph
        operators = tuple(
            op if op.kind == "update" else _reading(op, {"present_k": "past_k"}) for op in graph.operators
        )
        assert operators != graph.operators
        wrong = replace(plan, graph=replace(graph, operators=operators))
        with pytest.raises(VerificationError, match=r"R112.*changes that in place"):
            verify_plan(wrong)
        elsewhere = replace(plan, graph=replace(graph, views={}))
        with pytest.raises(VerificationError, match=r"R112|R109|R108"):
            verify_plan(elsewhere)


def _reading(op: Any, names: Mapping[str, str]) -> Any:
    return replace(op, inputs=tuple(names.get(t, t) for t in op.inputs))
