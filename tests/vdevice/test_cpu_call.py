"""Calls in one step: the same results and errors as step by step, from any thread, and nothing is kept too long."""

from __future__ import annotations

import gc
import os
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import rammer
from rammer.errors import InputError, RammerError
from rammer.ir.tensor import Array
from rammer.vdevice.cpu.runtime import call
from rammer.vdevice.cpu.runtime import executable as runtime

node = helper.make_node
KINDS = {"x": (np.float32, (3, 5)), "k": (np.int64, ()), "flag": (np.bool_, (1, 1))}


def model() -> rammer.Program:
    """Rows of x, weighed, and the one that k names; k counted on; the other one of flag."""
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape)
        for n, (kind, shape) in KINDS.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(n) for n in ("y", "row", "next", "other")]
    nodes = [
        node("MatMul", ["x", "w"], ["y"]),
        node("Gather", ["y", "k"], ["row"]),
        node("Add", ["k", "one"], ["next"]),
        node("Not", ["flag"], ["other"]),
    ]
    weights = [
        numpy_helper.from_array(np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32), "w"),
        numpy_helper.from_array(np.array(1, np.int64), "one"),
    ]
    graph = helper.make_graph(nodes, "calls", inputs, outputs, weights)
    made = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 20)])
    return rammer.compile(made, "cpu", tune_seconds=0.0)


@pytest.fixture(scope="module")
def program() -> Iterator[rammer.Program]:
    with closing(model()) as made:
        yield made


def usual(k: int = 1) -> dict[str, Array]:
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    return {"x": x, "k": np.array(k), "flag": np.array([[True]])}


def step_by_step(program: rammer.Program, inputs: Any) -> dict[str, Any]:
    return program._evaluate(inputs, program._names()[1])


def in_one_step(program: rammer.Program, inputs: Any) -> Any:
    assert program._try_run is not None
    return program._try_run(inputs)


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, strict=True)
        assert type(found[name]) is np.ndarray and found[name].flags.owndata


def test_the_same_results(program: rammer.Program) -> None:
    for k in range(3):
        found = in_one_step(program, usual(k))
        assert_same(found, step_by_step(program, usual(k)))
        np.testing.assert_array_equal(found["row"], found["y"][k])
        assert_same(program.run(usual(k)), found)


def test_results_are_the_callers(program: rammer.Program) -> None:
    first, second = program.run(usual(0)), program.run(usual(2))
    assert not np.shares_memory(first["row"], second["row"])
    np.testing.assert_array_equal(first["row"], first["y"][0])


def at_once(work: Callable[[int], None], numbers: Iterable[int]) -> None:
    """Work on each number in a thread of its own."""
    threads = [threading.Thread(target=work, args=(n,)) for n in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


OTHERS: dict[str, Any] = {
    "an array that is not contiguous": {**usual(), "x": np.zeros((5, 3), np.float32).T},
    "every second row": {**usual(), "x": np.zeros((6, 5), np.float32)[::2]},
    "another byte order": {**usual(), "x": usual()["x"].astype(">f4")},
    "a class of its own": {**usual(), "x": usual()["x"].view(np.matrix)},
    "a list": {**usual(), "x": usual()["x"].tolist()},
    "a number": {**usual(), "k": 1},
    "a scalar of NumPy": {**usual(), "k": np.int64(1)},
    "another mapping": type("Names", (dict,), {})(usual()),
}
WRONG: dict[str, Any] = {
    "another type": {**usual(), "x": usual()["x"].astype(np.float64)},
    "another shape": {**usual(), "x": np.zeros((5, 3), np.float32)},
    "another rank": {**usual(), "k": np.zeros(1, np.int64)},
    "one too few": {n: v for n, v in usual().items() if n != "k"},
    "one too many": {**usual(), "z": np.zeros(1)},
    "another name": {**{n: v for n, v in usual().items() if n != "k"}, "key": np.array(1)},
    "no mapping": [1, 2, 3],
    "nothing": None,
    "an object": {**usual(), "x": object()},
    "a name that cannot be compared": {**{n: v for n, v in usual().items() if n != "k"}, 5: np.array(1)},
    "a place that does not exist": usual(7),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_converted(program: rammer.Program, name: str) -> None:
    """One step leaves it alone, and it is right all the same."""
    assert in_one_step(program, OTHERS[name]) is None
    assert_same(program.run(OTHERS[name]), step_by_step(program, OTHERS[name]))


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_the_same(program: rammer.Program, name: str) -> None:
    with pytest.raises((RammerError, TypeError)) as one:
        program.run(WRONG[name])
    with pytest.raises((RammerError, TypeError)) as other:
        step_by_step(program, rammer.runtime.call._mapping(WRONG[name]))
    assert str(one.value) == str(other.value)
    assert_same(program.run(usual()), step_by_step(program, usual()))


def test_names_that_raise(program: rammer.Program) -> None:
    """A key that has the hash of a name and cannot be compared with it."""

    class Key(str):
        def __eq__(self, other: object) -> bool:
            raise ValueError("not with me")

        __hash__ = str.__hash__

    inputs = {Key("x"): usual()["x"], "k": np.array(1), "flag": np.array([[True]])}
    with pytest.raises((InputError, ValueError)):
        program.run(inputs)
    assert_same(program.run(usual()), step_by_step(program, usual()))


def test_several_threads(program: rammer.Program) -> None:
    wrong: list[str] = []

    def work(k: int) -> None:
        inputs = usual(k % 3)
        inputs["x"] = inputs["x"] + np.float32(k)
        wanted = step_by_step(program, inputs)
        for turn in range(300):
            found = program.run(inputs) if turn % 3 else step_by_step(program, inputs)
            if any(not np.array_equal(found[n], wanted[n]) for n in wanted):
                wrong.append(f"thread {k}, turn {turn}")

    at_once(work, range(6))
    assert not wrong


def test_nothing_is_kept(program: rammer.Program) -> None:
    inputs, wrong = usual(), {**usual(), "x": np.zeros((5, 3), np.float32)}
    names = [*program._names()[0], *program._names()[1]]

    def counts() -> list[int]:
        gc.collect()
        return [sys.getrefcount(v) for v in (*inputs.values(), *wrong.values(), *names)]

    for _ in range(3):
        program.run(inputs)
    before = counts()
    tracemalloc.start()
    try:
        size = 0
        for turn in range(2000):
            program.run(inputs)
            in_one_step(program, wrong)
            if turn == 200:
                size = tracemalloc.get_traced_memory()[0]
        grown = tracemalloc.get_traced_memory()[0] - size
    finally:
        tracemalloc.stop()
    assert counts() == before
    assert grown < 16 << 10


def test_bound_arrays_between_calls(program: rammer.Program) -> None:
    bound = program.bind(usual(2))
    for _ in range(3):
        bound()
        assert_same(program.run(usual(0)), step_by_step(program, usual(0)))
        np.testing.assert_array_equal(bound.outputs["row"], bound.outputs["y"][2])


def test_bound_arrays_of_any_kind(program: rammer.Program) -> None:
    """Rows apart, columns first, and an output that lies in an input: as step by step."""
    apart = np.zeros((6, 5), np.float32)[::2]
    turned = np.zeros((7, 3), np.float32).T
    k = np.array(1)
    bound = program.bind({**usual(), "x": apart, "k": k}, {**program.run(usual()), "y": turned, "next": k})
    for step in range(1, 3):
        apart[...] = usual()["x"] + np.float32(step)
        wanted = step_by_step(program, {**usual(step), "x": apart})
        bound()
        np.testing.assert_array_equal(turned, wanted["y"])
        np.testing.assert_array_equal(bound.outputs["row"], wanted["row"])
        assert k == step + 1


def test_a_bound_call_that_fails(program: rammer.Program) -> None:
    """The outputs keep what they held, the error is that of any call, and the next call is right."""
    inputs = usual(1)
    bound = program.bind(inputs)
    bound()
    before = {name: array.copy() for name, array in bound.outputs.items()}
    inputs["k"][...] = 7
    with pytest.raises(InputError, match="index out of range"):
        bound()
    assert_same(dict(bound.outputs), before)
    inputs["k"][...] = 2
    bound()
    assert_same(dict(bound.outputs), step_by_step(program, usual(2)))


def test_bound_calls_from_several_threads(program: rammer.Program) -> None:
    wrong: list[int] = []

    def work(k: int) -> None:
        bound, wanted = program.bind(usual(k)), step_by_step(program, usual(k))
        for _ in range(300):
            bound()
            wrong.extend(k for n in wanted if not np.array_equal(bound.outputs[n], wanted[n]))

    at_once(work, (0, 1, 2))
    assert not wrong


def test_junk_is_written_first_where_that_is_asked_for(program: rammer.Program) -> None:
    executable = program.executable
    assert isinstance(executable, runtime.CpuExecutable)
    executable.poison = True
    try:
        assert in_one_step(program, usual()) is None
        assert_same(program.run(usual()), step_by_step(program, usual()))
    finally:
        executable.poison = False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_calls(program: rammer.Program) -> None:
    wanted = program.run(usual())
    child = os.fork()
    if not child:
        same = all(np.array_equal(program.run(usual())[n], wanted[n]) for n in wanted)
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert_same(program.run(usual()), wanted)


def test_a_closed_program() -> None:
    program = model()
    program.run(usual())
    bound = program.bind(usual())
    bound()
    program.close()
    for call_again in (lambda: program.run(usual()), bound):
        with pytest.raises(RammerError, match="the program is closed"):
            call_again()


def test_another_layout_of_arrays_is_called_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    assert call._layout_is_known()
    monkeypatch.setattr(call, "_PLACES", (*call._PLACES[:2], call._PLACES[3], *call._PLACES[3:]))
    call._layout_is_known.cache_clear()
    try:
        assert not call._layout_is_known()
        with closing(model()) as program:
            assert in_one_step(program, usual()) is None
            assert_same(program.run(usual()), step_by_step(program, usual()))
            bound = program.bind(usual())
            bound()
            assert_same(dict(bound.outputs), program.run(usual()))
    finally:
        call._layout_is_known.cache_clear()


@pytest.fixture(scope="module")
def large() -> Iterator[rammer.Program]:
    """Large and small ports; a row that an index picks; the outputs are in another order than they are computed."""
    kinds = {"x": ("FLOAT", (256, 256)), "k": ("INT64", ())}
    inputs = [helper.make_tensor_value_info(n, getattr(TensorProto, t), shape) for n, (t, shape) in kinds.items()]
    outputs = [helper.make_empty_tensor_value_info(n) for n in ("row", "y", "next")]
    nodes = [node("Relu", ["x"], ["y"]), node("Gather", ["x", "k"], ["row"]), node("Add", ["k", "k"], ["next"])]
    graph = helper.make_graph(nodes, "large", inputs, outputs)
    made = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 20)])
    with closing(rammer.compile(made, "cpu", tune_seconds=0.0)) as program:
        assert program.executable._direct == {"x", "y"}  # type: ignore[attr-defined]
        yield program


def rows(seed: int, k: int = 3) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).standard_normal((256, 256)).astype(np.float32), "k": np.array(k)}


def agrees(found: dict[str, Array], given: dict[str, Array]) -> None:
    x, k = given.values()
    assert list(found) == ["row", "y", "next"]
    for name, value in {"row": x[k], "y": np.maximum(x, 0), "next": k + k}.items():
        np.testing.assert_array_equal(found[name], value)


def test_large_ports_are_not_copied(large: rammer.Program) -> None:
    """Outputs are new arrays, in memory that no other array uses."""
    given = [rows(seed) for seed in range(6)]
    found = [in_one_step(large, each) for each in given]
    views = [each.pop("y")[1:] for each in found]  # they hold the memory alone
    for each, view, inputs in zip(found, views, given, strict=True):
        np.testing.assert_array_equal(view, np.maximum(inputs["x"], 0)[1:])
        np.testing.assert_array_equal(each["row"], inputs["x"][3])


def test_memory_of_large_outputs_is_used_again(large: rammer.Program) -> None:
    places = {in_one_step(large, rows(seed))["y"].ctypes.data for seed in range(5)}
    assert len(places) == 1
    with pytest.raises(InputError, match="index out of range"):
        large.run(rows(1, 256))
    assert {large.run(rows(seed))["y"].ctypes.data for seed in range(5)} == places


def test_steps_of_all_kinds_follow_each_other(large: rammer.Program) -> None:
    """Each points ports elsewhere than the one before."""
    misplaced = np.zeros(256 * 256 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(256, 256)
    outputs = {port.name: np.zeros(port.shape, port.dtype.numpy) for port in large.outputs}
    for seed in range(3):
        given = rows(seed)
        agrees(in_one_step(large, given), given)
        large.bind(given, outputs)()
        agrees(outputs, given)
        misplaced[...] = given["x"]
        assert in_one_step(large, {**given, "x": misplaced}) is None
        agrees(large.run({**given, "x": misplaced}), given)
        agrees(large.run({**given, "x": np.asfortranarray(given["x"])}), given)
        large.profile(given, seconds=0.01)
        agrees(in_one_step(large, given), given)
