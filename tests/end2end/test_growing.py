"""Caches that grow by Concat, in room of a bounded size: one program for all lengths, and nothing is copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

import rammer
from rammer.errors import InputError, ModelError

HEADS, WIDTH = 2, 16
F32 = np.float32
STATE = {"present_k": "past_k", "present_v": "past_v"}
ATTEND = """
    t = Transpose <perm = [0, 1, 3, 2]> (present_k)
    s = MatMul (x, t)
    p = Softmax <axis = -1> (s)
    y = MatMul (p, present_v)"""


def model(body: str = ATTEND, outputs: str = "") -> ModelProto:
    """Attention of some rows over all of the past, and over themselves."""
    past, present, rows = (f"float[1, {HEADS}, {extent}, {WIDTH}]" for extent in ("past", "all", "n"))
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
        step ({past} past_k, {past} past_v, {rows} x)
            => ({rows} y, {present} present_k, {present} present_v{outputs}) {{
          present_k = Concat <axis = 2> (past_k, x)
          twice = Add (x, x)
          present_v = Concat <axis = -2> (past_v, twice)
          {body}
        }}"""
    return onnx.parser.parse_model(text)


def session(made: ModelProto, target: str = "cpu", most: int = 12, **options: Any) -> rammer.Session:
    device = "emulator:2" if target == "cuda" else 2
    return rammer.Session(made, target, device=device, tune_seconds=0, state=STATE, bounds={"past": most}, **options)


def empty() -> dict[str, Any]:
    return {name: np.zeros((1, HEADS, 0, WIDTH), F32) for name in STATE.values()}


@pytest.mark.parametrize("target", ["cpu", "interpreter", "cuda"])
def test_one_program_for_all_lengths(target: str) -> None:
    """Three rows at once, then one at a time, up to the bound."""
    made = model(outputs=", float[1, h, n, all] p")
    reference, caches, random = ReferenceEvaluator(made), empty(), np.random.default_rng(0)
    with session(made, target) as s:
        other = s.stream()
        for step, count in enumerate((3, *(1,) * 9)):
            x = random.standard_normal((1, HEADS, count, WIDTH)).astype(F32)
            names = ["y", "p", *STATE]
            y, p, *presents = reference.run(names, {**caches, "x": x})
            caches = dict(zip(STATE.values(), presents, strict=True))
            found = (
                s.run(["y", "p", "present_v"], {"x": x}) if step % 2 else [*s.run(["y", "p"], {"x": x}), presents[1]]
            )
            for value, wanted in zip(found, (y, p, presents[1]), strict=True):
                np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5)
            for name, cache in caches.items():
                np.testing.assert_array_equal(s.state()[name], cache)
        assert s.report().misses == 2, s.report()
        with pytest.raises(InputError, match="12 of 12 places along 'past', and 1 more come"):
            s.run({"x": x})
        np.testing.assert_allclose(other.run({"x": x})["y"], 2 * x, rtol=1e-5)  # of a past of its own
        s.reset(**{name: cache[:, :, :5] for name, cache in caches.items()})
        wanted = reference.run(["y"], {"x": x, **{name: cache[:, :, :5] for name, cache in caches.items()}})[0]
        np.testing.assert_allclose(s.run({"x": x})["y"], wanted, rtol=1e-4, atol=1e-5)
        assert s.state()["past_v"].shape[2] == 6
        given = {name: cache[:, :, :7].copy() for name, cache in caches.items()}
        s.run({"x": x, **given})
        assert s.state()["past_v"].shape[2] == 8
        np.testing.assert_array_equal(given["past_k"], caches["past_k"][:, :, :7])


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_a_past(causal: int) -> None:
    """The standard's own operator appends to its caches."""
    past, present, rows = (f"float[1, {HEADS}, {extent}, {WIDTH}]" for extent in ("past", "all", "n"))
    text = f"""<ir_version: 10, opset_import: ["" : 23]>
        step ({past} past_k, {past} past_v, {rows} x) => ({rows} y, {present} present_k, {present} present_v) {{
          y, present_k, present_v = Attention <is_causal = {causal}> (x, x, x, , past_k, past_v)
        }}"""
    made = onnx.parser.parse_model(text)
    reference, caches, random = ReferenceEvaluator(made), empty(), np.random.default_rng(0)
    with session(made) as s:
        for count in (1, 3, 1, 2, 1, 3):
            x = random.standard_normal((1, HEADS, count, WIDTH)).astype(F32)
            y, *presents = reference.run(["y", *STATE], {**caches, "x": x})
            caches = dict(zip(STATE.values(), presents, strict=True))
            np.testing.assert_allclose(s.run({"x": x})["y"], y, rtol=1e-4, atol=1e-5)
        assert s.report().misses == 3


def test_rows_are_stored_where_they_stay() -> None:
    with session(model()) as s:
        s.run({"x": np.ones((1, HEADS, 1, WIDTH), F32)})
        (kept,) = s._cache.kept()
        assert kept.program and kept.program.plan.graph.views.keys() >= {"present_k", "present_v"}
        before = s._memory.value("past_k").ctypes.data
        s.run({"x": np.ones((1, HEADS, 1, WIDTH), F32)})
        assert s._memory.value("past_k").ctypes.data == before


def test_no_copy_of_a_cache_is_made_for_its_mask() -> None:
    """Zeros lie behind a cache's end, also when a run has stored numbers that are none there, and has failed then."""
    made = model(ATTEND + " z = Gather (table, at)", outputs=", float z")
    made.graph.input.append(onnx.helper.make_tensor_value_info("at", onnx.TensorProto.INT64, []))
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(4, dtype=F32), "table"))
    with session(made, most=75) as s:
        x = np.random.default_rng(5).standard_normal((4, 1, HEADS, 1, WIDTH)).astype(F32)
        s.run({"x": x[0], "at": np.array(1)})
        with pytest.raises(InputError, match="index out of range"):
            s.run({"x": np.full((1, HEADS, 3, WIDTH), np.nan, F32), "at": np.array(4)})
        caches = empty()
        for n, row in enumerate(x):
            wanted = ReferenceEvaluator(made).run(None, {**caches, "x": row, "at": np.array(2)})
            caches = dict(zip(STATE.values(), wanted[1:3], strict=True))
            if n > 0:
                np.testing.assert_allclose(s.run({"x": row, "at": np.array(2)})["y"], wanted[0], rtol=1e-4, atol=1e-5)
        (kept,) = (k for k in s._cache.kept() if "x: 1×2×1×16" in k.signature)
        assert kept.program
        graph = kept.program.plan.graph
        large = [op.kind for op in graph.operators if graph.types[op.outputs[0]].size >= 75 * HEADS * WIDTH]
        assert large == ["update", "update"]


def test_ahead_of_time() -> None:
    with session(model()) as s:
        assert s.warm([{"n": 1}, {"n": 4}]).result() == 2
        s.run({"x": np.ones((1, HEADS, 4, WIDTH), F32)})
        assert s.report().hits == 1


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("y = ReduceMean <keepdims = 0> (present_k)", "depend on padding"),
        ("t = Add (past_k, past_k) y = ReduceSum <keepdims = 0> (t)", "reads 'past_k' as it was before"),
    ],
)
def test_what_depends_on_the_length_is_refused(body: str, what: str) -> None:
    made = model(body)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    with session(made) as s, pytest.raises(ModelError, match=what):
        s.run({"x": np.ones((1, HEADS, 1, WIDTH), F32)})


def test_bounds_that_do_not_fit_are_refused() -> None:
    for bounds, what in (
        ({"pst": 9}, "names 'pst', which is no dimension of state"),
        ({"n": 9}, "names 'n', a dimension of 'x', which is no state"),
        ({"past": 3}, "gives 'past' 3 places"),
    ):
        with pytest.raises(InputError, match=what):
            rammer.Session(model(), "cpu", state=STATE, bounds=bounds)
    made = model()
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    with pytest.raises(InputError, match="buckets= names 'batch', a dimension of 'past_k'"):
        rammer.Session(made, "cpu", state=STATE, bounds={"past": 9}, buckets={"batch": [4]})
    with session(model()) as s, pytest.raises(InputError, match="13 places along 'past'"):
        s.run({"x": np.ones((1, HEADS, 1, WIDTH), F32), "past_k": np.zeros((1, HEADS, 13, WIDTH), F32)})
    with session(model(), most=8) as s, pytest.raises(InputError, match="8 places, and a run adds 7"):
        s.run({"x": np.ones((1, HEADS, 7, WIDTH), F32)})


DECODER = f"""<ir_version: 10, opset_import: ["" : 21]>
    decode (int64[1, n] ids, float[1, {HEADS}, past, {WIDTH}] past_k, float[1, {HEADS}, past, {WIDTH}] past_v)
        => (float[1, n, {HEADS * WIDTH}] y, float[1, {HEADS}, all, {WIDTH}] present_k,
            float[1, {HEADS}, all, {WIDTH}] present_v, float[1, {HEADS}, n, all] p) {{
      two = Constant <value_int = 2> ()
      one = Constant <value_int = 1> ()
      zero = Constant <value_int = 0> ()
      axis0 = Constant <value_ints = [0]> ()
      axis1 = Constant <value_ints = [1]> ()
      last = Constant <value_ints = [-1]> ()
      apart = Constant <value_ints = [0, 0, {HEADS}, {WIDTH}]> ()
      joined = Constant <value_ints = [0, 0, {HEADS * WIDTH}]> ()
      far = Constant <value_float = -10000.0> ()
      none = Constant <value_float = 0.0> ()
      half = Constant <value_float = 0.5> ()
      before = Shape <start = 2, end = 3> (past_k)
      count = Shape <start = 1, end = 2> (ids)
      begin = Squeeze (before, axis0)
      rows = Squeeze (count, axis0)
      end = Add (begin, rows)
      positions = Range (begin, end, one)
      places = Range (zero, end, one)
      at = Unsqueeze (positions, axis1)
      seen = LessOrEqual (places, at)
      mask = Where (seen, none, far)
      learned = Gather (where, positions)
      number = Cast <to = 1> (at)
      angle = Mul (number, half)
      turn = Cos (angle)
      found = Gather (words, ids)
      x = Add (found, learned)
      q0 = MatMul (x, wq)
      k0 = MatMul (x, wk)
      v0 = MatMul (x, wv)
      q1 = Reshape (q0, apart)
      k1 = Reshape (k0, apart)
      v1 = Reshape (v0, apart)
      q2 = Transpose <perm = [0, 2, 1, 3]> (q1)
      k2 = Transpose <perm = [0, 2, 1, 3]> (k1)
      v = Transpose <perm = [0, 2, 1, 3]> (v1)
      q = Mul (q2, turn)
      k = Mul (k2, turn)
      present_k = Concat <axis = 2> (past_k, k)
      present_v = Concat <axis = 2> (past_v, v)
      t = Transpose <perm = [0, 1, 3, 2]> (present_k)
      scores = MatMul (q, t)
      shown = Add (scores, mask)
      p = Softmax <axis = -1> (shown)
      mixed = MatMul (p, present_v)
      back = Transpose <perm = [0, 2, 1, 3]> (mixed)
      y = Reshape (back, joined)
    }}"""


def decoder(most: int = 64) -> ModelProto:
    """Learned positions, rotations by position, and a mask that looks back, all from the cache's length."""
    made, wide = onnx.parser.parse_model(DECODER), HEADS * WIDTH
    shapes = {"words": (40, wide), "where": (most, wide), "wq": (wide, wide), "wk": (wide, wide), "wv": (wide, wide)}
    random = np.random.default_rng(1)
    for name, shape in shapes.items():
        weight = (random.standard_normal(shape) / 3).astype(F32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return made


@pytest.mark.parametrize("buckets", [None, {"n": [4, 16]}])
def test_decoders_that_count_from_the_length_of_their_cache(buckets: dict[str, list[int]] | None) -> None:
    """Prompts of several lengths, one behind the other, and single tokens, up to the bound, as without bounds."""
    made, most = decoder(), 31
    reference, random = ReferenceEvaluator(made), np.random.default_rng(2)
    with session(made, most=most, buckets=buckets) as s:
        for counts in ((3, 1, 1, 16, 4, 2, 1, 1, 2), (13, 3, 1, 13, 1), (1,) * 5, (28, 3)):
            caches = empty()
            s.reset()
            for count in counts:
                ids = random.integers(0, 40, (1, count))
                y, p, *presents = reference.run(["y", "p", *STATE], {**caches, "ids": ids})
                caches = dict(zip(STATE.values(), presents, strict=True))
                for found, wanted in zip(s.run(["y", "p"], {"ids": ids}), (y, p), strict=True):
                    assert found.shape == wanted.shape
                    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
                for name, cache in caches.items():
                    np.testing.assert_allclose(s.state()[name], cache, rtol=1e-4, atol=1e-5)
        texts = [text for text, _, _ in s.report().programs]
        if buckets:
            # a bucket that does not fit any more behind what is there is left out
            assert {text.split(",")[0] for text in texts} <= {f"ids: 1×{n}" for n in (4, 16, 1, 2, 13, 28, 3)}
            assert s.report().padding > 0
        with pytest.raises(InputError, match="31 of 31 places along 'past', and 1 more come"):
            s.run({"ids": np.array([[1]])})


def test_positions_that_no_table_has() -> None:
    """What is computed from the length by other means is still refused."""
    made = decoder()
    made.graph.node.extend(
        onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        m (int64 end) => (float z) { e = Cast <to = 1> (end) z = Sqrt (e) }""").graph.node
    )
    (y,) = (n for n in made.graph.node if "y" in n.output)
    y.output[0] = "y0"
    made.graph.node.append(onnx.helper.make_node("Mul", ["y0", "z"], ["y"]))
    with session(made, most=31) as s, pytest.raises(ModelError, match="would depend on padding"):
        s.run({"ids": np.array([[1, 2]])})


@pytest.mark.parametrize("name", ["past + n", "total"])
@pytest.mark.parametrize("rows", ["n", "1"])
def test_masks_that_are_as_long_as_caches(name: str, rows: str) -> None:
    """An input for all rows so far, as exporters of decoders have it: one program for each number of new rows."""
    past, new = (f"float[1, {HEADS}, {extent}, {WIDTH}]" for extent in ("past", rows))
    made = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        step ({past} past_k, {past} past_v, {new} x, int64[1, total] given)
            => ({new} y, float[1, {HEADS}, all, {WIDTH}] present_k, float[1, {HEADS}, all, {WIDTH}] present_v) {{
          present_k = Concat <axis = 2> (past_k, x)
          present_v = Concat <axis = 2> (past_v, x)
          axes = Constant <value_ints = [1, 2]> ()
          wide = Unsqueeze (given, axes)
          kept = Cast <to = 9> (wide)
          far = Constant <value_float = -10000.0> ()
          none = Constant <value_float = 0.0> ()
          mask = Where (kept, none, far)
          t = Transpose <perm = [0, 1, 3, 2]> (present_k)
          s = MatMul (x, t)
          shown = Add (s, mask)
          p = Softmax <axis = -1> (shown)
          y = MatMul (p, present_v)
        }}""")
    made.graph.input[-1].type.tensor_type.shape.dim[1].dim_param = name
    bounds = {"past": 16} | ({"total": 16} if name == "total" else {})
    reference, random = ReferenceEvaluator(made), np.random.default_rng(3)
    buckets = {"n": [2, 4]} if rows == "n" else None
    options = {"state": STATE, "bounds": bounds, "buckets": buckets}
    with rammer.Session(made, "cpu", device=2, tune_seconds=0, **options) as s:
        for counts in ((3, 1, 4, 1, 2, 4, 1) if rows == "n" else (1,) * 16, (1, 1)):
            caches, given = empty(), np.zeros((1, 0), np.int64)
            s.reset()
            for count in counts:
                x = random.standard_normal((1, HEADS, count, WIDTH)).astype(F32)
                more = (random.random((1, count)) < 0.6).astype(np.int64)
                more[0, -1] = 1
                given = np.concatenate([given, more], axis=1)
                y, *presents = reference.run(["y", *STATE], {**caches, "x": x, "given": given})
                caches = dict(zip(STATE.values(), presents, strict=True))
                np.testing.assert_allclose(s.run({"x": x, "given": given})["y"], y, rtol=1e-4, atol=1e-5)
        assert s.report().misses <= (3 if rows == "n" else 1)  # a last row, behind which a bucket has no room
        with pytest.raises(InputError, match=r"is 4, where 'past' and the new rows are 3"):
            s.run({"x": x[:, :, :1], "given": np.ones((1, 4), np.int64)})
    with pytest.raises(InputError, match="one that is a cache and its new rows has the bound of this cache"):
        rammer.Session(made, "cpu", state=STATE, bounds={"past": 16, name: 12})
