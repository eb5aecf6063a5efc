"""Loops and branches that only run time decides: models in parts, bodies as programs of their own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from onnx import ModelProto

import rammer
from rammer.errors import InputError, ModelError

F32 = np.float32


def parsed(text: str, **weights: Any) -> ModelProto:
    """A model from ONNX's text form, of opset 18; `weights` are initializers."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]>\n{text}')
    for name, value in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    return model


def session(model: ModelProto, **options: Any) -> rammer.Session:
    return rammer.Session(model, "cpu", device=2, tune_seconds=0, **options)


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(F32)


def agrees(s: rammer.Session, model: ModelProto, feeds: Sequence[dict[str, Any]]) -> None:
    """Both give the same for all feeds."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    peer = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for given in feeds:
        for found, wanted in zip(s.run(None, given), peer.run(None, given), strict=True):
            if not isinstance(wanted, list):
                assert found.dtype == wanted.dtype
            for part, other in zip(_listed(found), _listed(wanted), strict=True):
                assert type(part) is np.ndarray and part.shape == other.shape
                np.testing.assert_allclose(part, other, rtol=1e-4, atol=1e-5)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def settling() -> ModelProto:
    """Steps until a vector is short; what every step had is collected, and goes on behind the loop."""
    return parsed(
        """settle (float[n, 7] x, float limit) => (float[n, 7] z, float[t, n, 7] all, float total) {
          start = Relu(x)
          y, all = Loop <body = step (int64 i, bool c, float[n, 7] h)
              => (bool again, float[n, 7] g, float[n, 7] minus) {
            p = MatMul(h, w)
            g = Tanh(p)
            most = ReduceMax <keepdims = 0> (g)
            again = Less(limit, most)
            minus = Neg(g)
          }> ("", "", start)
          z = Add(y, x)
          total = ReduceSum <keepdims = 0> (all)
        }""",
        w=draw(7, 7) / F32(6),
    )


def test_a_loop_runs_until_its_condition_says() -> None:
    with session(settling()) as s:
        assert s.warm([{"n": 3}, {"n": 3}]).result() == 1  # what comes before the loop
        feeds = [{"x": draw(n, 7), "limit": np.array(limit, F32)} for n in (3, 1, 5) for limit in (0.5, 0.1, 1e-3, 0.1)]
        agrees(s, settling(), feeds)
        assert s.report().compiled_ahead == 1
        bodies = [text for text, _, _ in s.report().programs if "body" in text]
        assert len(bodies) == 3  # one for each shape, however many steps it takes
        assert s.report().hits > 30


def test_branches_are_taken_at_run_time() -> None:
    """Of other shapes, one within the other, with values from around them; each is compiled when it is first taken."""
    model = parsed(
        """choose (float[n, 5] x, float limit) => (float[a, b] y, float z) {
          h = Relu(x)
          total = ReduceSum <keepdims = 0> (h)
          big = Greater(total, limit)
          t = If (big) <
            then_branch = much () => (float[a, b] r) {
              double = Add(h, h)
              m = ReduceMax <keepdims = 0> (x)
              odd = Greater(m, total)
              r = If (odd) <
                then_branch = a () => (float[p, q] u) { u = Sub(double, x) },
                else_branch = b () => (float[p, q] v) { v = MatMul(double, w) }
              >
            },
            else_branch = little () => (float[c, d] s) { s = Transpose(h) }
          >
          y = Neg(t)
          z = ReduceSum <keepdims = 0> (t)
        }""",
        w=draw(5, 3),
    )
    limits = [np.array(value, F32) for value in (0, 1e6)]
    with session(model) as s:
        agrees(s, model, [{"x": draw(4, 5), "limit": limits[0]}])
        assert not [text for text, _, _ in s.report().programs if "else_branch: h" in text]
        single = np.zeros((1, 5), F32)
        single[0, 2] = 2
        feeds = [{"x": x, "limit": limit} for x in (draw(1, 5), draw(4, 5), -draw(29, 5), single) for limit in limits]
        agrees(s, model, feeds)
        assert [text for text, _, _ in s.report().programs if "else_branch: h" in text]


def test_flags_choose_a_program() -> None:
    """A branch that an input of one bool decides is part of a program; there are two."""
    model = parsed(
        """flag (bool c, float[n] x) => (float[n] y) {
          d = Not(c)
          y = If (d) <
            then_branch = a () => (float[n] u) { u = Neg(x) },
            else_branch = b () => (float[n] v) { v = Abs(x) }
          >
        }"""
    )
    with session(model) as s:
        agrees(s, model, [{"c": np.array(c), "x": draw(3)} for c in (True, False, True)])
        assert (s.report().hits, s.report().misses) == (1, 2)


def test_trip_counts_are_no_signature() -> None:
    """Any number of steps by the same programs, none at all, too: then outputs have no rows, of the right type."""
    model = parsed(
        """times (int64 m, float[n, 3] x, int64[k] q)
            => (float[n, 3] y, float[t, n] sums, int64[t, k] counts, int64[k] r) {
          y, r, sums, counts = Loop <body = step (int64 i, bool c, float[n, 3] h, int64[k] j)
              => (bool again, float[n, 3] g, int64[k] j2, float[n] s, int64[k] count) {
            again = Identity(c)
            g = Add(h, x)
            j2 = Add(j, i)
            axis = Constant <value_ints = [1]> ()
            s = ReduceSum <keepdims = 0> (g, axis)
            count = Mul(j2, j2)
          }> (m, "", x, q)
        }"""
    )
    with session(model) as s:
        feeds = [{"m": np.array(m), "x": draw(n, 3), "q": np.arange(n)} for n in (1, 29) for m in (3, 1, 29)]
        agrees(s, model, feeds)
        y, sums, counts, r = s.run(None, feeds[-1] | {"m": np.array(0)})
        np.testing.assert_array_equal(y, feeds[-1]["x"])
        np.testing.assert_array_equal(r, feeds[-1]["q"])
        assert (sums.shape, sums.dtype, counts.shape, counts.dtype) == ((0, 29), F32, (0, 29), np.int64)
        assert s.report().misses == 2
        with pytest.raises(ModelError, match="Loop '→y': the trip count is -2"):
            s.run(None, feeds[0] | {"m": np.array(-2)})


def test_values_that_are_carried_on_change_places() -> None:
    """Outputs that are inputs of the body, one output for two of them, and one that never changes."""
    model = parsed(
        """swap (int64 m, float[n] x, float[n] z) => (float[n] p, float[n] q, float[n] r, float[n] s) {
          p, q, r, s = Loop <body = step (int64 i, bool c, float[n] a, float[n] b, float[n] d, float[n] e)
              => (bool c, float[n] b, float[n] f, float[n] f, float[n] e) {
            f = Add(a, b)
          }> (m, "", x, z, z, x)
        }"""
    )
    x, z = draw(11), draw(11, seed=1)
    with session(model) as s:
        for m in (0, 1, 2, 7, 40):
            a, b, d = x, z, z
            for _ in range(m):
                a, b, d = b, a + b, a + b
            found = s.run(None, {"m": np.array(m), "x": x, "z": z})
            for part, wanted in zip(found, (a, b, d, x), strict=True):
                np.testing.assert_allclose(part, wanted, rtol=1e-5)
                assert not np.shares_memory(part, x) and not np.shares_memory(part, z)


def test_values_that_are_carried_on_may_grow() -> None:
    """A greedy decoder: it ends at a token, and each length is compiled once."""
    vocabulary, width = 13, 6
    model = parsed(
        """greedy (int64[b, t] ids, int64 most) => (int64[b, u] found, float[steps, b] shares) {
          first = Constant <value = bool {1}> ()
          found, shares = Loop <body = step (int64 i, bool c, int64[b, t] sofar)
              => (bool again, int64[b, u] more, float[b] best) {
            x = Gather(table, sofar)
            mixed = ReduceMean <keepdims = 0> (x, one)
            scores = MatMul(mixed, out)
            shares = Softmax <axis = -1> (scores)
            token = ArgMax <axis = -1, keepdims = 1> (shares)
            best = ReduceMax <keepdims = 0> (shares, one)
            more = Concat <axis = 1> (sofar, token)
            same = Equal(token, end)
            other = Not(same)
            number = Cast <to = 6> (other)
            left = ReduceMax <keepdims = 0> (number)
            again = Cast <to = 9> (left)
          }> (most, first, ids)
        }""",
        table=draw(vocabulary, width, seed=3),
        out=draw(width, vocabulary, seed=4),
        one=np.array([1]),
        end=np.array(7),
    )
    with session(model) as s:
        feeds = [{"ids": np.array([[n, 2]]), "most": np.array(most)} for n in (0, 1, 5) for most in (1, 6)]
        agrees(s, model, feeds)
        misses = s.report().misses
        agrees(s, model, feeds)
        assert s.report().misses == misses <= 2 * 6 + 1


@pytest.mark.parametrize("rows", [7, 300])
def test_caches_in_loops_are_changed_where_they_lie(rows: int) -> None:
    """A step stores its row, and reads all of the cache; the cache that is given stays as it was."""
    model = parsed(
        """decode (float[rows, 16] cache, float[1, 16] x, float limit) => (float[rows, 16] filled, float[1, 16] last) {
          filled, last = Loop <body = step (int64 i, bool c, float[rows, 16] past, float[1, 16] h)
              => (bool again, float[rows, 16] present, float[1, 16] g) {
            place = Unsqueeze(i, zero)
            index = Unsqueeze(place, one)
            present = ScatterND(past, index, h)
            t = Transpose(present)
            scores = MatMul(h, t)
            shares = Softmax <axis = -1> (scores)
            mixed = MatMul(shares, present)
            g = Mul(mixed, keep)
            most = ReduceMax <keepdims = 0> (g)
            again = Greater(most, limit)
          }> (most_steps, "", cache, x)
        }""",
        zero=np.array([0]),
        one=np.array([0]),
        keep=F32(0.9),
        most_steps=np.array(6),
    )
    cache = draw(rows, 16)
    with session(model) as s:
        feeds = [{"cache": cache, "x": draw(1, 16), "limit": np.array(limit, F32)} for limit in (-9, 0.05, 0.2)]
        agrees(s, model, feeds)
        np.testing.assert_array_equal(cache, draw(rows, 16))
        assert s._stages is not None
        (body,) = (part for label, part in s._stages.sessions() if "body" in label)
        (kept,) = body._cache.kept()
        assert kept.program and "update" in {op.kind for op in kept.program.plan.graph.operators}


def test_loops_in_branches_in_loops() -> None:
    """Values come from two graphs around, weights of every graph are constants, and names are used again inside."""
    model = parsed(
        """nest (float[n, 4] x, float limit, int64 most) => (float[n, 4] y, float[k, n, 4] rows) {
          twice = Add(limit, limit)
          half = Constant <value = float {0.5}> ()
          y, rows = Loop <body = outer (int64 i, bool c, float[n, 4] h)
              => (bool again, float[n, 4] g, float[n, 4] row) {
            s = ReduceSumSquare <keepdims = 0> (h)
            far = Greater(s, limit)
            g = If (far) <
              then_branch = shrink () => (float[n, 4] u) {
                u = Loop <body = inner (int64 j, bool d, float[n, 4] a) => (bool more, float[n, 4] b) {
                  p = MatMul(a, w)
                  b = Mul(p, half)
                  sq = ReduceSumSquare <keepdims = 0> (b)
                  more = Greater(sq, limit)
                }> ("", "", h)
              },
              else_branch = grow () => (float[n, 4] v) { t = Add(h, h) v = Add(t, x) }
            >
            left = ReduceSumSquare <keepdims = 0> (g)
            again = Less(left, twice)
            row = Sub(g, h)
          }> (most, "", x)
        }""",
        w=np.linalg.qr(draw(4, 4))[0],
    )
    with session(model) as s:
        feeds = [
            {"x": draw(n, 4) * F32(scale), "limit": np.array(limit, F32), "most": np.array(9)}
            for n in (1, 5)
            for scale in (0.01, 100)
            for limit in (0.5, 50.0)
        ]
        agrees(s, model, feeds)


def test_a_scan_over_branches() -> None:
    """Backwards, along other axes, with a branch in each step."""
    model = parsed(
        """scan (float[n, 3] h, float[n, t, 3] xs) => (float[n, 3] last, float[n, 3, t] ys) {
          last, ys = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [-1],
              scan_input_directions = [1], scan_output_directions = [1],
              body = step (float[n, 3] a, float[n, 3] x) => (float[n, 3] b, float[n, 3] y) {
            s = ReduceSum <keepdims = 0> (x)
            zero = Constant <value = float {0}> ()
            up = Greater(s, zero)
            b = If (up) <
              then_branch = p () => (float[n, 3] u) { u = Add(a, x) },
              else_branch = q () => (float[n, 3] v) { v = Sub(a, x) }
            >
            y = Tanh(b)
          }> (h, xs)
        }"""
    )
    with session(model) as s:
        agrees(s, model, [{"h": draw(n, 3), "xs": draw(n, t, 3)} for n in (1, 4) for t in (1, 7, 29)])
        with pytest.raises(ModelError, match=r"Scan '→last': scanned inputs have \[0\] elements"):
            s.run(None, {"h": draw(1, 3), "xs": draw(1, 0, 3)})


def test_lists_are_carried_on() -> None:
    """They may be empty first, and get longer with each step."""
    model = parsed(
        """lists (int64 m, float[n] x) => (seq(float[k]) all, float[j] flat) {
          none = SequenceEmpty()
          all = Loop <body = step (int64 i, bool c, seq(float[k]) before) => (bool again, seq(float[k]) after) {
            again = Identity(c)
            f = Cast <to = 1> (i)
            row = Mul(x, f)
            after = SequenceInsert(before, row)
          }> (m, "", none)
          flat = ConcatFromSequence <axis = 0> (all)
        }"""
    )
    with session(model) as s:
        agrees(s, model, [{"m": np.array(m), "x": draw(n)} for n in (1, 5) for m in (1, 4)])


def test_state_of_a_model_that_is_cut() -> None:
    """Its streams are independent, also from several threads."""
    model = parsed(
        """count (float[n] x, float[n] h_in) => (float[n] y, float[n] h_out) {
          s = Add(x, h_in)
          ten = Constant <value = float {10}> ()
          h_out = Loop <body = step (int64 i, bool c, float[n] a) => (bool again, float[n] b) {
            half = Constant <value = float {0.5}> ()
            b = Mul(a, half)
            most = ReduceMax <keepdims = 0> (b)
            again = Greater(most, ten)
          }> ("", "", s)
          y = Neg(h_out)
        }"""
    )

    def expected(number: int, runs: int) -> list[float]:
        h, found = 0.0, []
        for _ in range(runs):
            h = (h + number) / 2
            while h > 10:
                h /= 2
            found.append(-h)
        return found

    results: dict[int, Any] = {}
    with session(model, state=True) as s:

        def work(number: int) -> None:
            stream = s.stream()
            results[number] = [float(stream(np.full(3, number, F32))[0]) for _ in range(12)]

        threads = [threading.Thread(target=work, args=(n,)) for n in (1, 30, 500)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {n: pytest.approx(expected(n, 12), rel=1e-5) for n in (1, 30, 500)}


def test_functions_are_opened_up() -> None:
    """A loop in a function of the model's own."""
    text = """<ir_version: 10, opset_import: ["" : 18, "own" : 1]>
        main (float[n] x) => (float[n] y) { h = own.settle(x) y = Abs(h) }
        <opset_import: ["" : 18], domain: "own">
        settle (x) => (y) {
          none = Constant <value = bool {1}> ()
          y = Loop <body = step (int64 i, bool c, float[n] a) => (bool again, float[n] b) {
            b = Mul(a, a)
            most = ReduceMax <keepdims = 0> (b)
            least = Constant <value = float {0.001}> ()
            again = Greater(most, least)
          }> ("", none, x)
        }"""
    model = onnx.parser.parse_model(text)
    with session(model) as s:
        agrees(s, model, [{"x": np.array(x, F32)} for x in ([0.9], [0.01, -0.5, 0.99])])


def test_values_that_are_computed_decide_shapes() -> None:
    """Boxes that a network finds, as many as there are: what finds them is one program, whatever it finds."""
    model = parsed(
        """detect (float[n, 6] x) => (float[k, 6] found, int64[k] rows, float total, float[m, 2] cut) {
          h = MatMul(x, w)
          r = Relu(h)
          score = ReduceMax <keepdims = 0> (r, one)
          where = Greater(score, limit)
          places = NonZero(where)
          rows = Squeeze(places, zero)
          found = Gather(r, rows)
          total = ReduceSum <keepdims = 0> (found)
          count = Shape(rows)
          most = ReduceMax <keepdims = 0> (score)
          high = Cast <to = 7> (most)
          end = Unsqueeze(high, zero)
          begin = Constant <value_ints = [0]> ()
          some = Slice(r, begin, end, zero)
          cut = Slice(some, begin, two, one)
        }""",
        w=draw(6, 6),
        limit=F32(1.5),
        zero=np.array([0]),
        one=np.array([1]),
        two=np.array([2]),
    )
    with session(model) as s:
        agrees(s, model, [{"x": draw(n, 6, seed=seed)} for n in (1, 29) for seed in range(4)])
        first = [runs for text, runs, _ in s.report().programs if text.startswith("part: x: ")]
        assert first == [4, 4]
        agrees(s, model, [{"x": np.zeros((3, 6), F32)}])  # nothing is found


LOOP = """bad (float[3] x, int64 m) => (float[3] y, float[a, b] z) {{
  h = Relu(x)
  y, z = Loop <body = step ({inputs}) => ({outputs}) {{
    {nodes}
  }}> (m, "", h)
}}"""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, ""),
        ({"nodes": "b = Add(a, x) again = Identity(c) r = Gelu(b)"}, r"Gelu(.|\n)*not in opset 18"),
        ({"outputs": "bool again, float[3] b"}, "Loop '→y': the body has 2 results instead of 3"),
        (
            {"inputs": "int64 i, bool c", "nodes": "b = Relu(x) again = Identity(c) r = Abs(b)"},
            "Loop '→y': the body has 2 inputs instead of 3",
        ),
        ({"nodes": "b = MatMul(a, t) t = Reshape(x, i) again = Identity(c) r = Abs(b)"}, "Reshape '→t'"),
        (
            {"nodes": "d = Concat <axis = 0> (a, a) b = Add(d, t) again = Identity(c) r = Abs(b)"},
            "'t' is produced by no",
        ),
        ({"nodes": "b = Concat <axis = 0> (a, a) again = Identity(c) r = Abs(b)"}, "Loop '→y': .*rows of shapes"),
        (
            {"nodes": "d = Shape(a) b = Cast <to = 7> (a) again = Identity(c) r = Abs(b)"},
            "Loop '→y': step 1: input 'a': dtype int64, the model takes float32",
        ),
    ],
)
def test_bodies_that_are_wrong(changes: dict[str, str], message: str) -> None:
    parts = {
        "inputs": "int64 i, bool c, float[3] a",
        "outputs": "bool again, float[3] b, float[3] r",
        "nodes": "b = Add(a, x) again = Identity(c) r = Abs(b)",
    }
    model = parsed(LOOP.format(**parts | changes))
    with session(model) as s:
        if message:
            with pytest.raises(ModelError, match=message):
                s.run(None, {"x": draw(3), "m": np.array(3)})
        else:
            agrees(s, model, [{"x": draw(3), "m": np.array(3)}])


def test_loops_without_an_end_are_ended() -> None:
    forever = """forever (float[3] x) => (float[3] y) {
      y = Loop <body = step (int64 i, bool c, float[3] a) => (bool c, float[3] b) { b = Add(a, x) }> ("", "", x)
    }"""
    nothing = """nothing (float[3] x) => (float[3] y) {
      y = Loop <body = step (int64 i, bool c, float[3] a) => (bool c, float[3] a) { }> ("", "", x)
    }"""
    for text in (forever, nothing):
        with pytest.raises(ModelError, match=r"Loop '→y': takes more than 10000 steps(.|\n)*rammer.Session"):
            rammer.from_onnx(parsed(text))
    message = r"Loop '→y': has taken 12,345 steps, and would go on(.|\n)*max_steps="
    with session(parsed(forever), max_steps=12_345) as s, pytest.raises(ModelError, match=message):
        s(draw(3))


def test_what_a_model_that_is_cut_cannot_have() -> None:
    x = draw(3, 7)
    with pytest.raises(ModelError, match=r"Loop '→y': the condition of the loop (.|\n)*leave out buckets="):
        session(settling(), buckets={"n": [4]}).run(None, {"x": x, "limit": np.array(1, F32)})
    with pytest.raises(ModelError, match=r"Loop '→y': the condition of the loop (.|\n)*rammer.Session"):
        rammer.compile(settling(), "cpu", dims={"n": 3})
    with session(settling()) as s:
        s.run(None, {"x": x, "limit": np.array(1, F32)})
        with pytest.raises(InputError, match="'x': axis 1 is 6"):
            s.run(None, {"x": x[:, :6], "limit": np.array(1, F32)})
    with pytest.raises(InputError, match="closed"):
        s.run(None, {"x": x, "limit": np.array(1, F32)})
