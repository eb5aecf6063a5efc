"""Memory of large outputs is lent to the caller, and lent again when nobody refers to it any more."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rammer
from rammer.ir.tensor import Array
from rammer.vdevice.cpu.runtime.executable import CpuExecutable
from rammer.vdevice.cpu.spec import DIRECT_BYTES
from rammer.vdevice.image.memory import allocate

SHAPE = (1031, 257)


@pytest.fixture
def program() -> Iterator[rammer.Program]:
    """total = x · y, next = x + small, same = x."""
    assert 4 * SHAPE[0] * SHAPE[1] >= DIRECT_BYTES
    nodes = [
        helper.make_node("Mul", ["x", "y"], ["total"]),
        helper.make_node("Add", ["x", "small"], ["next"]),
        helper.make_node("Identity", ["x"], ["same"]),
    ]
    ports = {"x": SHAPE, "y": SHAPE, "small": (1, 257), "total": SHAPE, "next": SHAPE, "same": SHAPE}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ports.items()]
    graph = helper.make_graph(nodes, "large", values[:3], values[3:])
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    with rammer.compile(model, "cpu", device=2, tune_seconds=0) as made:
        assert isinstance(made.executable, CpuExecutable)
        made.executable.poison = True
        yield made


def drawn(seed: int, *, skew: int = 0, turned: bool = False) -> Array:
    """Numbers that begin so many bytes behind a page, maybe with rows and columns exchanged in memory."""
    shape = SHAPE[::-1] if turned else SHAPE
    nbytes = 4 * shape[0] * shape[1]
    array: Array = allocate(nbytes + 4096)[skew : skew + nbytes].view(np.float32).reshape(shape)
    array[...] = np.random.default_rng(seed).standard_normal(shape)
    return array.T if turned else array


def check(found: dict[str, Array], x: Array, y: Array, small: Array) -> None:
    np.testing.assert_array_equal(found["total"], x * y)
    np.testing.assert_array_equal(found["next"], x + small)
    np.testing.assert_array_equal(found["same"], x)


def test_outputs_are_the_callers(program: rammer.Program) -> None:
    """They stay what they are while anything refers to them, parts too; then their memory is used again."""
    inputs = [{"x": drawn(n), "y": drawn(n + 10), "small": drawn(n)[:1]} for n in range(5)]
    found = [program.run(given) for given in inputs]
    for outputs, given in zip(found, inputs, strict=True):
        check(outputs, given["x"], given["y"], given["small"])
        outputs["same"][...] = 0  # nobody else's
    part = found[0]["total"].T[3:5]
    wanted = part.copy()
    places = {outputs["total"].ctypes.data for outputs in found[1:]}
    del found, outputs
    gc.collect()
    again = [program.run(inputs[0]) for _ in range(2)]
    check(again[1], *inputs[0].values())
    assert {outputs["total"].ctypes.data for outputs in again} <= places
    np.testing.assert_array_equal(part, wanted)
    program.close()
    check(again[0], *inputs[0].values())


def test_bound_calls_and_runs_take_turns(program: rammer.Program) -> None:
    given = {"x": drawn(1), "y": drawn(2), "small": drawn(3)[:1]}
    bound = program.bind(given)
    for seed in range(3):
        other = {"x": drawn(seed + 20), "y": drawn(4), "small": drawn(5)[:1]}
        check(program.run(other), *other.values())
        given["x"][...] = seed
        bound()
        check(dict(bound.outputs), *given.values())


def test_large_ports_share_no_memory() -> None:
    """An input that is dead lends its bytes to nobody: it may be the caller's."""
    names = [f"t{n}" for n in range(6)]
    nodes = [helper.make_node("Exp", [a], [b]) for a, b in pairwise(names)]
    nodes += [helper.make_node("MatMul", ["t5", "w"], ["y"])]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "chain",
        [value("t0", TensorProto.FLOAT, SHAPE), value("w", TensorProto.FLOAT, (257, 1031))],
        [value("y", TensorProto.FLOAT, (1031, 1031))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    with rammer.compile(model, "cpu", device=2, tune_seconds=0) as program:
        executable = program.executable
        assert isinstance(executable, CpuExecutable) and {"t0", "w", "y"} <= executable._direct
        assert [*executable._makers] == ["y"]
