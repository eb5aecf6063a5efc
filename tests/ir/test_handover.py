"""Which loops of tile programs may be handed over: programs made by hand, of which most may not."""

from __future__ import annotations

import pytest

from rammer.ir.expr import Load, Range
from rammer.ir.index import Index, var
from rammer.ir.tile import Alloc, Body, Buffer, For, If, Kind, Scope, Store, TaskDigit, TileProgram
from rammer.planner.stealing import stealable

X, OUT = Buffer("x", 64, Scope.ARGUMENT), Buffer("out", 64, Scope.ARGUMENT)
S = Buffer("s", 64, Scope.LOCAL)
i, j = var("i"), var("j")


def at(buffer: Buffer, index: Index) -> Load:
    return Load(buffer.name, (index,))


def serial(name: str, stop: int, *body: object) -> For:
    return For(name, 0, stop, Kind.SERIAL, body)  # type: ignore[arg-type]


def of(*body: object) -> TileProgram:
    """A program of two rTasks, of 32 elements each."""
    task = For("t", 0, 2, Kind.TASK, body)  # type: ignore[arg-type]
    return TileProgram("made", (OUT, X), 1, (task,), (TaskDigit("e", 32, 2, 1),), 1, (S,))


def place(index: Index) -> Index:
    return var("t") * 32 + index


COPY = serial("i", 32, Store("out", place(i), at(X, place(i))))
FILL = serial("j", 32, Store("s", j, at(X, j)))
FROM_SCRATCH = serial("i", 32, Store("out", place(i), at(S, i)))
IN_ITERATION = serial("i", 32, Store("s", i, at(X, i)), Store("out", place(i), at(S, i)))
HELD = Buffer("r", 1, Scope.REGISTER)
REGISTERS = serial("i", 32, Alloc(HELD, (Store("r", Index(), at(X, i)), Store("out", place(i), at(HELD, Index())))))
TWICE = serial("i", 4, serial("j", 8, Store("out", place(i * 8 + j), at(X, j))))
AROUND = serial("i", 4, FILL, serial("k", 8, Store("out", place(i * 8 + var("k")), at(S, var("k")))))
FIRST, SECOND = (Range(var("t"), 0, 1),), (Range(var("t") - 1, 0, 1),)
EVEN = (Range(var("t") % 2, 0, 1),)


LEFT = serial("i", 32, Store("out", place(i), at(S, i)), Store("s", i, at(X, i)))  # for another iteration to read
SHIFTED = serial("i", 16, Store("s", i, at(X, i)), Store("out", place(i), at(S, i + 1)))
ONE = Store("out", place(Index()), at(X, Index()))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param((COPY,), (COPY,), id="copy"),
        pytest.param((FILL, FROM_SCRATCH), (FROM_SCRATCH,), id="everybody fills scratch"),
        pytest.param((IN_ITERATION,), (IN_ITERATION,), id="scratch in an iteration"),
        pytest.param((REGISTERS,), (REGISTERS,), id="registers"),
        pytest.param((If(FIRST, (COPY,)),), (COPY,), id="condition"),
        pytest.param((TWICE,), (TWICE,), id="nest"),
        pytest.param((IN_ITERATION, IN_ITERATION), (IN_ITERATION, IN_ITERATION), id="loops in turn"),
        pytest.param((IN_ITERATION, FILL, FROM_SCRATCH), (IN_ITERATION, FROM_SCRATCH), id="filled again"),
        pytest.param((If(FIRST, (LEFT,)), If(SECOND, (FILL, FROM_SCRATCH))), (LEFT, FROM_SCRATCH), id="cases"),
        pytest.param((ONE, COPY), (ONE, COPY), id="a statement and a loop"),
    ],
)
def test_what_stores_results_may_be_handed_over(body: Body, expected: Body) -> None:
    assert tuple(u.stmt for u in stealable(of(*body), lambda loop: False)) == expected


@pytest.mark.parametrize(
    "body",
    [
        pytest.param((IN_ITERATION, FROM_SCRATCH), id="another loop reads what is left"),
        pytest.param((FILL, LEFT, FROM_SCRATCH), id="what everybody wrote is written over in parts"),
        pytest.param((FILL, LEFT), id="and read in other iterations"),
        pytest.param((IN_ITERATION, SHIFTED), id="another element is read"),
        pytest.param((If(FIRST, (LEFT,)), If(EVEN, (FILL, FROM_SCRATCH))), id="cases that meet"),
        pytest.param(
            (COPY, serial("i", 32, Store("out", place(i), at(OUT, place(i)) + at(X, i)))), id="adds to results"
        ),
    ],
)
def test_what_others_need_may_not(body: Body) -> None:
    assert stealable(of(*body), lambda loop: False) == ()


def test_loops_are_opened_where_they_should_be() -> None:
    """Of the loops inside, with those around them; what fills scratch for them is everybody's."""
    (inner,) = stealable(of(AROUND), lambda loop: loop.var == "i")
    assert inner.stmt is AROUND.body[1] and inner.around == (AROUND,)
    (outer,) = stealable(of(AROUND), lambda loop: False)
    assert outer.stmt is AROUND and outer.around == ()


def test_an_opened_loop_reads_what_was_written_before_it() -> None:
    inside = serial("k", 8, Store("out", place(i * 8 + var("k")), at(S, i * 8 + var("k"))))
    assert [u.stmt for u in stealable(of(IN_ITERATION, FILL, serial("i", 4, inside)), lambda loop: loop.stop == 4)] == [
        IN_ITERATION,
        inside,
    ]


def test_what_an_opened_loop_carries_may_not_be_handed_over() -> None:
    carries = serial("o", 4, serial("i", 8, Store("out", place(i), at(S, i)), Store("s", i, at(X, i))), FILL)
    assert stealable(of(FILL, carries), lambda loop: loop.var == "o") == ()


def test_conditions_are_told() -> None:
    (unit,) = stealable(of(If(FIRST, (COPY,))), lambda loop: False)
    assert unit.where == FIRST


def test_threads_of_one_rtask_hand_nothing_over() -> None:
    program = of(COPY)
    assert (
        stealable(TileProgram(**{**{f: getattr(program, f) for f in program.__slots__}, "num_threads": 2}), bool) == ()
    )
