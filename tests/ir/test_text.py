"""The textual rProgram: round trip, and errors with a line number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_text import parse_programs
from plans import plan_of, program

from rammer.errors import RammerError
from rammer.ir.program import BarrierRTask, Position, RProgram, RTask, TaskUid
from rammer.ir.text import print_plan, print_programs

numbers = st.integers(0, 10**9 - 1)
slots = st.one_of(
    st.builds(lambda a, b: RTask(TaskUid(a, b)), numbers, numbers),
    st.builds(BarrierRTask, st.lists(st.builds(Position, numbers, numbers), max_size=3).map(tuple)),
)
programs = st.lists(st.lists(st.lists(slots, max_size=4).map(tuple), max_size=3).map(tuple).map(RProgram), max_size=3)


@given(programs)
def test_round_trip(given_programs: list[RProgram]) -> None:
    assert list(parse_programs(print_programs(given_programs))) == given_programs


def test_plan_names_operators() -> None:
    plan = plan_of((2, 1), program(["0.0"], ["0.1", [(0, 0)], "1.0"]))
    text = print_plan(plan)
    assert parse_programs(text) == plan.programs
    assert text.splitlines()[1:] == [
        "rprogram 2",
        "lane 0",
        f"  task 0.0  # tanh node0 by {plan.kernels[0].name}",
        "lane 1",
        f"  task 0.1  # tanh node0 by {plan.kernels[0].name}",
        "  wait 0:0",
        f"  task 1.0  # tanh node1 by {plan.kernels[1].name}",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task 0.0", "line 1: not understood: 'task 0.0'"),
        ("# fine\n\nrprogram 1\nlane 1\n", "line 4: .*\n.*expected 'lane 0'"),
        ("rprogram 1\nlane 0\n task 0.x", "line 3: "),
        ("rprogram 1\nlane 0\n task 00.1", "line 3: "),
        ("rprogram 1\nlane 0\n wait 0.0", "line 3: "),
        ("rprogram 1\nlane 0\n wait 99999999999:0", "line 3: "),
        ("rprogram 2\nlane 0\n", "line 3: an rProgram of 2 lanes ends after 1"),
        ("rprogram 2\nlane 0\nrprogram 1", "line 3: an rProgram of 2 lanes ends after 1"),
        ("rprogram 99999999", "at most 1048576 lanes"),
        ("rprogram 1\nlane 0\nlane 1", "line 3: "),
        ("rprogram -1", "line 1: "),
        ("rprogram ١", "line 1: "),
    ],
)
def test_bad_text(text: str, message: str) -> None:
    with pytest.raises(RammerError, match=message):
        parse_programs(text)


@given(st.text(st.sampled_from("rprogam lnetskwi0123:.#\n -")), st.text())
def test_any_text_parses_or_is_refused(structured: str, wild: str) -> None:
    for text in (structured, wild, "rprogram 1\nlane 0\n" + structured):
        try:
            parse_programs(text)
        except RammerError as error:
            assert error.what.startswith("line ")
