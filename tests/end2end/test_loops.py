"""Loops whose steps need no Python between them, branches by integers, and nodes that are computed at run time."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import onnx.numpy_helper
import pytest
from onnx import ModelProto, helper

import rammer
from rammer.errors import ModelError
from tests.end2end.test_stages import F32, agrees, draw, parsed, session


def loops_of(s: rammer.Session) -> Any:
    """The loops over the body of the only Loop."""
    assert s._stages is not None
    (steps,) = [step for step in s._stages._whole.steps or () if hasattr(step, "_loops")]
    return steps._loops


def test_small_sets_of_integers_are_signatures() -> None:
    """A sampling rate that chooses a branch is part of the signature; with many values the model is cut."""
    model = parsed(
        """detect (int64[one] sr, float[n, 6] x) => (float[n, k] y) {
          high = Equal(sr, wide)
          y = If (high) <
            then_branch = a () => (float[p, q] u) { u = MatMul(x, w) },
            else_branch = b () => (float[r, s] v) { v = Neg(x) }
          >
        }""",
        wide=np.array([16000]),
        w=draw(6, 3),
    )
    with session(model) as s:
        feeds = [{"sr": np.array([rate]), "x": draw(3, 6, seed=rate)} for rate in (16000, 8000, 16000, 8000, 8000)]
        agrees(s, model, feeds)
        assert s._stages is None and (s.report().hits, s.report().misses) == (3, 2)
        agrees(s, model, [{"sr": np.array([rate]), "x": draw(3, 6)} for rate in range(9)])
        assert s._stages is not None and s.report().misses <= 4 + 3
        misses = s.report().misses
        agrees(s, model, [*feeds, {"sr": np.array([77]), "x": draw(3, 6)}])
        assert s.report().misses == misses


def test_steps_are_taken_in_one_call() -> None:
    """Loops of many steps, whose number is not known; rows that are copied, and too large for it; several threads."""
    text = """collect (float[n, 129] x, float[129] add, float limit)
        => (float[n, 129] y, float[t, n, 129] rows, int64[t, 1] at) {
      y, rows, at = Loop <body = step (int64[1] i, bool c, float[n, 129] h)
          => (bool again, float[n, 129] g, float[n, 129] row, int64[1] j) {
        g = Add (h, add)
        row = Mul (g, g)
        j = Add (i, i)
        most = ReduceMax <keepdims = 0> (g)
        again = Less (most, limit)
      }> ("", "", x)
    }"""
    model = parsed(text)
    step = np.full(129, 1, F32)
    with session(model) as s:
        feeds = [{"x": draw(n, 129), "add": step, "limit": np.array(m, F32)} for n in (3, 260) for m in (20, 0, 40)]
        agrees(s, model, [*feeds, {"x": draw(3, 129), "add": step, "limit": np.array(1500, F32)}])
        assert s._stages is not None
        assert len(loops_of(s).ready) == 2  # both shapes had their steps in C

        wrong: list[int] = []

        def work(number: int) -> None:
            x = np.full((3, 129), -number, F32)
            for _ in range(20):
                y, rows, at = s.run(None, {"x": x, "add": step, "limit": np.array(9, F32)})
                if len(rows) != 9 + number or y[0, 0] != 9 or at[-1] != 2 * (8 + number):
                    wrong.append(number)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        with pytest.raises(ModelError, match=r"Loop '→y': collects more than"):
            loops_of(s)._most = 10**6, 100
            s.run(None, feeds[0])


def test_a_step_that_fails_is_named() -> None:
    model = parsed(
        """pick (int64 m, float[7] x) => (float y) {
          zero = Constant <value = float {0}> ()
          y = Loop <body = step (int64 i, bool c, float h) => (bool again, float g) {
            again = Identity (c)
            one = Gather (x, i)
            g = Add (h, one)
          }> (m, "", zero)
        }"""
    )
    with session(model) as s:
        agrees(s, model, [{"m": np.array(7), "x": draw(7)}])
        for _ in range(2):
            with pytest.raises(ModelError, match=r"Loop '→y': step 7: .*index out of range"):
                s.run(None, {"m": np.array(9), "x": draw(7)})
        agrees(s, model, [{"m": np.array(7), "x": draw(7)}])


def test_nodes_that_need_values_are_computed_without_a_compilation() -> None:
    """Other boxes in each call, more than a program keeps or not: one import of the model."""
    model = parsed(
        """pick (float[1, n, 4] boxes, float[1, c, n] scores)
            => (int64[k, 3] kept, int64[1, k] places, float[m] values) {
          kept = NonMaxSuppression (boxes, scores, most, overlap, least)
          places = NonZero (scale)
          values, first = Unique (scale)
          scale = Constant <value_floats = [3.0, 0.0, 3.0]> ()
        }""",
        most=np.array([30]),
        overlap=np.array([0.4], F32),
        least=np.array([0.2], F32),
    )
    random = np.random.default_rng(2)
    alone = parsed("unique (float[n] x) => (float[k] y, int64[n] back) { y, first, back, number = Unique (x) }")
    for tested, feeds in (
        (model, [{"boxes": random.random((1, 29, 4)), "scores": random.random((1, 40, 29))} for _ in range(6)]),
        (alone, [{"x": random.integers(0, 9, 29)} for _ in range(6)]),
    ):
        with session(tested) as s:
            agrees(s, tested, [{name: value.astype(F32) for name, value in given.items()} for given in feeds])
            assert s.report().misses == 1 + (tested is model)


def decoder(start: int, rows: int = 1) -> Any:
    """A greedy decoder with a cache of its own, that adds `rows` rows in each step, and a list of tokens."""
    return parsed(
        """greedy (int64[b, t] ids, int64 most, int64 stop)
            => (int64[b, u] found, float[r, w] keys, float[steps, b] shares, int64 number) {
          first = Constant <value = bool {1}> ()
          found, keys, values, last, number, shares = Loop <body = step (int64 i, bool c, int64[b, t] sofar,
                float[p, w] kp, float[p, w] vp, int64[o] token, int64 n)
              => (bool again, int64[b, u] more, float[q, w] kn, float[q, w] vn, int64[o] next, int64 m, float[b] best) {
            m = Add (n, i)
            x = Gather (table, token)
            k = MatMul (x, wk)
            v = MatMul (x, wv)
            kn = Concat <axis = 0> (kp, k)
            vn = Concat <axis = 0> (vp, v)
            kt = Transpose <perm = [1, 0]> (kn)
            scores = MatMul (x, kt)
            weights = Softmax <axis = -1> (scores)
            mixed = MatMul (weights, vn)
            all = MatMul (mixed, out)
            shares = Softmax <axis = -1> (all)
            next = ArgMax <axis = -1, keepdims = 0> (shares)
            best = ReduceMax <keepdims = 0> (shares, one)
            wide = Unsqueeze (next, one)
            more = Concat <axis = 1> (sofar, wide)
            least = ReduceMin <keepdims = 0> (next)
            same = Equal (least, stop)
            again = Not (same)
          }> (most, first, ids, zk, zv, start, most)
        }""",
        table=draw(13, 8, seed=3),
        wk=draw(8, 8, seed=6),
        wv=draw(8, 8, seed=7),
        out=draw(8, 13, seed=4),
        one=np.array([1]),
        zero=np.array([0]),
        zk=draw(start, 8, seed=9),
        zv=draw(start, 8, seed=10),
        start=np.arange(rows),
    )


@pytest.mark.parametrize(("start", "rows"), [(3, 1), (0, 1), (28, 3)])
def test_values_that_grow_have_bounds(start: int, rows: int) -> None:
    """One program for a power of two of rows; a loop that takes more steps goes on with the next one."""
    model = decoder(start, rows)
    with session(model) as s:
        feeds = [
            {"ids": np.full((rows, 2), n), "most": np.array(most), "stop": np.array(stop)}
            for n in (0, 5)
            for most, stop in ((5, -1), (6, -1), (300, -1), (300, 7))
        ]
        agrees(s, model, feeds)
        assert len(loops_of(s).ready) <= 4 and not loops_of(s)._refused
        ready = dict(loops_of(s).ready)
        agrees(s, model, feeds)
        assert loops_of(s).ready == ready  # the same loops, with their buffers
        loops_of(s)._most = 270, 1 << 20
        with pytest.raises(ModelError, match="has taken 270 steps"):
            s.run(None, feeds[2])
        assert s.report().misses <= 1 + 4


def test_growth_that_is_not_exact_is_compiled_for_each_length() -> None:
    """A mean over what grows, and values that grow in two dimensions."""
    for body in (
        "mean = ReduceMean <keepdims = 1> (h, zero) g = Concat <axis = 0> (h, mean)",
        "a = Concat <axis = 0> (h, h) g = Concat <axis = 1> (a, a)",
    ):
        model = parsed(
            f"""grow (int64 m, float[n, k] x) => (float[p, q] y) {{
              y = Loop <body = step (int64 i, bool c, float[n, k] h) => (bool again, float[r, s] g) {{
                again = Identity (c) {body}
              }}> (m, "", x)
            }}""",
            zero=np.array([0]),
        )
        with session(model) as s:
            agrees(s, model, [{"m": np.array(m), "x": draw(2, 3)} for m in (3, 2, 3)])
            assert not loops_of(s).ready and loops_of(s)._refused


def test_a_bound_that_did_not_suit_once_is_tried_again() -> None:
    """Too much memory for many steps, and sessions that another thread has closed: the next run has its bounds."""
    model = decoder(3)
    feeds = {"ids": np.zeros((1, 2), int), "most": np.array(9), "stop": np.array(-1)}
    with session(model) as s:
        s.run(None, feeds)
        loops = loops_of(s)
        loops.ready.clear()
        limits, loops._most = loops._most, (10**6, 1)
        opened = loops._opened

        def closing(given: Any, bounds: Any) -> Any:
            found = opened(given, bounds)
            if bounds:
                found.close()
            return found

        agrees(s, model, [feeds])
        assert not loops.ready and not loops._refused
        loops._most, loops._opened = limits, closing
        agrees(s, model, [feeds])
        assert not loops.ready and not loops._refused


@pytest.mark.parametrize(
    "body", ["g = Add (h, h)", "a = Concat <axis = 0> (h, h) g = Concat <axis = 1> (a, a)"], ids=["one", "each"]
)
def test_a_step_is_counted_once(body: str) -> None:
    """Also where the body does not suit, so that Python takes the steps."""
    model = parsed(
        f"""step (int64 m, float[a, b] x) => (float[c, d] y) {{
          y = Loop <body = step (int64 i, bool c, float[a, b] h) => (bool again, float[e, f] g) {{
            again = Identity (c) {body}
          }}> (m, "", x)
        }}"""
    )
    with session(model) as s:
        agrees(s, model, [{"m": np.array(3), "x": draw(1, 2)}])
        assert s.report().hits + s.report().misses == sum(runs for _, runs, _ in s.report().programs) == 3


def test_loops_draw_other_numbers_in_each_step() -> None:
    """Also where a value grows: all programs of a body draw alike, and so one with bounds is exact."""
    for state, body in (
        ("float[2, 3] h", "r = RandomNormalLike (x) g = Add (h, r)"),
        ("float[n, 3] h", "r = RandomNormalLike (x) g = Concat <axis = 0> (h, r)"),
    ):
        model = parsed(
            f"""walk (int64 m, float[2, 3] x) => (float[p, 3] y, float[t, 2, 3] rows) {{
              y, rows = Loop <body = step (int64 i, bool c, {state}) => (bool again, float[q, 3] g, float[2, 3] r) {{
                again = Identity (c) {body}
              }}> (m, "", x)
            }}"""
        )
        with session(model) as s:
            rows = np.stack([s.run(None, {"m": np.array(20), "x": np.zeros((2, 3), F32)})[1] for _ in range(3)])
            assert len(np.unique(rows)) == rows.size
            assert loops_of(s).ready and not loops_of(s)._refused


def test_padded_draws_are_those_of_the_exact_shape() -> None:
    """Without a seed, too: a model has one for all of its imports."""
    model = parsed("draw (float[n, 9] x) => (float[n, 9] y) { r = RandomNormalLike (x) y = Add (x, r) }")
    with session(model, buckets={"n": [4, 8]}) as s:
        for rows in (3, 4, 7):
            assert len(np.unique(s.run(None, {"x": np.zeros((rows, 9), F32)})[0])) == 9 * rows
        assert s.report().misses == 2


def test_sparse_weights_are_part_of_what_reads_them() -> None:
    """Of the outermost graph and of a body; before, in and behind a loop; where values decide shapes."""
    dense = {"w": np.diag(np.arange(3, dtype=F32)), "mask": np.array([0, 7, 0], F32)}
    own = helper.make_sparse_tensor(
        onnx.numpy_helper.from_array(np.array([5], F32), "mine"),
        onnx.numpy_helper.from_array(np.array([1])),
        [3],
    )
    model = parsed(
        """all (int64 m, float[3, 3] x) => (float[3, 3] z, int64[1, k] at) {
          a = MatMul (x, w)
          y = Loop <body = step (int64 i, bool c, float[3, 3] h) => (bool again, float[3, 3] g) {
            again = Identity (c) p = MatMul (h, w) g = Add (p, mine)
          }> (m, "", a)
          z = MatMul (y, w)
          at = NonZero (mask)
        }"""
    )
    for name, value in dense.items():
        places = np.flatnonzero(value)
        parts = (value.ravel()[places], name), (places, "")
        model.graph.sparse_initializer.append(
            helper.make_sparse_tensor(*(onnx.numpy_helper.from_array(*part) for part in parts), value.shape)
        )
    (loop,) = (node for node in model.graph.node if node.op_type == "Loop")
    loop.attribute[0].g.sparse_initializer.append(own)
    x, m = draw(3, 3), 4
    wanted = x @ dense["w"]
    for _ in range(m):
        wanted = wanted @ dense["w"] + np.array([0, 5, 0], F32)
    with session(model) as s:
        z, at = s.run(None, {"m": np.array(m), "x": x})
        np.testing.assert_allclose(z, wanted @ dense["w"], rtol=1e-4)
        assert at.tolist() == [[1]] and loops_of(s).ready


def boxes(
    count: int, kinds: int, most: int, batch: int = 1, centred: int = 0, least: float | None = None
) -> ModelProto:
    """Boxes of which some are kept; scores and sides are round numbers, so that some are equal."""
    weights = {"most": np.array([most]), "overlap": np.array([0.4], F32)}
    if least is not None:
        weights["least"] = np.array([least], F32)
    return parsed(
        f"""pick (float[{batch}, {count}, 4] boxes, float[{batch}, {kinds}, {count}] scores) => (int64[k, 3] kept) {{
          kept = NonMaxSuppression <center_point_box = {centred}> (boxes, scores, {", ".join(weights)})
        }}""",
        **weights,
    )


@pytest.mark.parametrize(
    ("count", "kinds", "more"),
    [(6, 1, {"most": 3}), (20, 3, {"most": 5, "batch": 2, "least": 0.3}), (9, 2, {"most": 20, "centred": 1})],
)
def test_kept_boxes_are_a_program(count: int, kinds: int, more: dict[str, Any]) -> None:
    """One program for all boxes, though each keeps another number of them."""
    model = boxes(count, kinds, **more)
    random = np.random.default_rng(count)
    batch = more.get("batch", 1)
    feeds = [
        {
            "boxes": np.round(random.random((batch, count, 4)), 1).astype(F32),
            "scores": np.round(random.random((batch, kinds, count)), 1).astype(F32)
            - (F32(np.inf) if n == 5 else F32(0)),
        }
        for n in range(9)
    ]
    with session(model) as s:
        agrees(s, model, feeds)
        assert (s.report().misses, s._stages) == (1, None)


def test_scores_that_are_no_numbers_come_last() -> None:
    """As where NumPy selects the boxes, and no box is lost."""
    apart = np.arange(4, dtype=F32)[:, None] * 10 + np.array([0, 0, 1, 1], F32)
    scores = np.array([0.5, np.nan, 0.9, 0.1], F32)
    with session(boxes(4, 1, 3)) as s:
        (kept,) = s.run(None, {"boxes": apart[None], "scores": scores[None, None]})
    assert kept.tolist() == [[0, 0, 2], [0, 0, 0], [0, 0, 3]]


def test_kept_elements_of_other_types() -> None:
    """Strings have no program that counts them; a model may use the name of a number."""
    model = parsed(
        """keep (string[4] x, bool[4] mask, float[2, 3] z) =>
             (string[k] y, int64[n] shape, int64[2, m] at, float[2, 3] v) {
          y = Compress <axis = 0> (x, mask)
          shape = Shape (y)
          at = NonZero (z)
          v = Neg (z)
        }"""
    )
    model.graph.node[3].output[0] = model.graph.output[3].name = "at#count"
    feed = {
        "x": np.array(["a", "b", "c", "d"], object),
        "mask": np.array([True, False, True, False]),
        "z": np.array([[0, 1, 0], [2, 0, 3]], F32),
    }
    with session(model) as s:
        y, shape, at, negative = s.run(None, feed)
    assert y.tolist() == ["a", "c"] and shape.tolist() == [2]
    assert at.tolist() == [[0, 1, 1], [1, 0, 2]] and negative.tolist() == (-feed["z"]).tolist()


@pytest.mark.parametrize("size", [7, 1024, 1025])
def test_kept_elements_are_a_program(size: int) -> None:
    """Of NonZero and Compress, up to a size; beyond it NumPy computes them, without a compilation for each mask."""
    model = parsed(
        f"""keep (float[2, {size}] x, bool[{size}] mask, float[{size}, 70] wide)
            => (float[2, k] y, float[m] flat, int64[2, n] at, float[p, 70] rows) {{
          rows = Compress <axis = 0> (wide, mask)
          y = Compress <axis = 1> (x, mask)
          flat = Compress (x, mask)
          at = NonZero (x)
        }}"""
    )
    random = np.random.default_rng(size)
    feeds = [
        {
            "x": random.random((2, size)).astype(F32) * (random.random((2, size)) < share),
            "mask": random.random(size) < share,
            "wide": random.standard_normal((size, 70)).astype(F32),
        }
        for share in (0.5, 0, 1, 0.1, 0.9)
    ]
    feeds[0]["x"][:, 0] = np.nan
    with session(model) as s:
        agrees(s, model, feeds)
        kept = s.report()
        (rows,) = s.run(["rows"], feeds[4])
        agrees(s, model, [{**feeds[0], "mask": ~feeds[0]["mask"]}])
        np.testing.assert_array_equal(rows, feeds[4]["wide"][feeds[4]["mask"]])  # a later run leaves them as they are
        assert size > 1024 or (kept.misses, s.report().misses) == (1 + (2 * size > 1024), kept.misses)


def test_what_reads_kept_elements_runs_behind_them() -> None:
    """Also their number, in branches, as what a loop carries, and where they are of a loop that is unrolled."""
    model = parsed(
        """read (float[9] x, float[9] z, bool[9] mask, int64 m)
            => (float[k] y, int64[r] size, float[3, 9] rows, float[p] last, float[q] chosen) {
          a = Relu (x)
          at = NonZero (a)
          t = Transpose (at)
          y = GatherND (z, t)
          size = Shape (at)
          rows = Loop <body = step (int64 i, bool c) => (bool d, float[9] row) {
            d = Identity (c)
            all = Relu (z)
            always = Greater (all, minus)
            row = Compress (z, always)
          }> (three, "")
          last = Loop <body = shrink (int64 j, bool e, float[n] h) => (bool f, float[o] g) {
            f = Identity (e)
            positive = Greater (h, minus)
            g = Compress (h, positive)
          }> (m, "", x)
          some = ReduceMax <keepdims = 0> (mask32)
          mask32 = Cast <to = 6> (mask)
          any = Cast <to = 9> (some)
          chosen = If (any) <
            then_branch = b () => (float[u] v) { v = Compress (x, mask) },
            else_branch = w () => (float[s] l) { l = Neg (x) }
          >
        }""",
        three=np.array(3),
        minus=np.array(-0.5, F32),
    )
    random = np.random.default_rng(5)
    feeds = [
        {"x": random.random(9).astype(F32) - F32(0.8), "z": draw(9), "mask": random.random(9) < n / 4, "m": np.array(n)}
        for n in range(4)
    ]
    with session(model) as s:
        agrees(s, model, feeds)
        agrees(s, model, feeds)
