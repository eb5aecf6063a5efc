"""Loops whose steps need no Python between them, branches by integers, and nodes that are computed at run time."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

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
    """Other boxes in each call, whose number stays: one import of the model."""
    model = parsed(
        """pick (float[1, n, 4] boxes, float[1, c, n] scores)
            => (int64[k, 3] kept, int64[1, k] places, float[m] values) {
          kept = NonMaxSuppression (boxes, scores, most, overlap, least)
          places = NonZero (scale)
          values, first = Unique (scale)
          scale = Constant <value_floats = [3.0, 0.0, 3.0]> ()
        }""",
        most=np.array([5]),
        overlap=np.array([0.4], F32),
        least=np.array([0.2], F32),
    )
    random = np.random.default_rng(2)
    alone = parsed("unique (float[n] x) => (float[k] y, int64[n] back) { y, first, back, number = Unique (x) }")
    for tested, feeds in (
        (model, [{"boxes": random.random((1, 29, 4)), "scores": random.random((1, 2, 29))} for _ in range(6)]),
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
