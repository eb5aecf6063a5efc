"""Calls of the same arrays again and again: `program.bind`."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rammer
from rammer.errors import InputError

SHAPE = (3, 75)


@pytest.fixture(params=["cpu", "interpreter"])
def program(request: pytest.FixtureRequest) -> rammer.Program:
    """total, state_out = x · state_in, x + state_in."""
    nodes = [helper.make_node("Mul", ["x", "state"], ["total"]), helper.make_node("Add", ["x", "state"], ["next"])]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in names]
        for names in (("x", "state"), ("total", "next"))
    )
    graph = helper.make_graph(nodes, "step", inputs, outputs)
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 9
    return rammer.compile(model, request.param, tune_seconds=0)


def test_what_arrays_hold_is_read_and_written_at_each_call(program: rammer.Program) -> None:
    x, state = np.ones(SHAPE, np.float32), np.zeros(SHAPE, np.float32)
    bound = program.bind({"x": x, "state": state})
    for step in range(3):
        x[...], state[...] = step, 10 * step
        bound()
        np.testing.assert_array_equal(bound.outputs["total"], np.full(SHAPE, 10 * step * step))
        np.testing.assert_array_equal(bound.outputs["next"], np.full(SHAPE, 11 * step))


def test_a_state_is_handed_on_in_place(program: rammer.Program) -> None:
    x, state, total = np.full(SHAPE, 2, np.float32), np.zeros(SHAPE, np.float32), np.empty(SHAPE, np.float32)
    bound = program.bind({"x": x, "state": state}, {"total": total, "next": state})
    for step in range(4):
        bound()
        assert (total == 4 * step).all() and (state == 2 * (step + 1)).all()


def test_arrays_may_be_parts_of_others(program: rammer.Program) -> None:
    table = np.zeros((2, *SHAPE[::-1]), np.float32)
    bound = program.bind({"x": table[0].T, "state": table[1].T})
    table[0], table[1] = 3, 5
    bound()
    assert (bound.outputs["total"] == 15).all()


def test_what_cannot_be_bound_is_refused(program: rammer.Program) -> None:
    x = np.zeros(SHAPE, np.float32)
    fixed = x.copy()
    fixed.flags.writeable = False
    for inputs, outputs, message in (
        ({"x": x}, None, "missing inputs: state"),
        ({"x": x, "state": x.tolist()}, None, "'state': a list has no memory"),
        ({"x": x, "state": x.astype(np.float64)}, None, "state"),
        ({"x": x, "state": x[:2]}, None, "state"),
        ({"x": x, "state": x.astype(">f4")}, None, "byte order"),
        ({"x": x, "state": x}, {"total": x}, "missing outputs: next"),
        ({"x": x, "state": x}, {"total": x, "next": fixed}, "output 'next' cannot be written"),
        ({"x": x, "state": x}, {"total": x, "nxt": x}, "no output named 'nxt'"),
    ):
        with pytest.raises(InputError, match=message):
            program.bind(inputs, outputs)


def test_a_closed_program_is_not_called(program: rammer.Program) -> None:
    x = np.zeros(SHAPE, np.float32)
    bound = program.bind({"x": x, "state": x})
    program.close()
    with pytest.raises(InputError, match="closed"):
        bound()
