"""Large inputs and outputs stay where the caller has them: the CPU neither copies nor changes them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rammer
from rammer.frontend.builder import GraphBuilder
from rammer.ir.graph import Graph
from rammer.ir.tensor import Array

SHAPE = (3, 75, 640)


def network() -> Graph:
    """Two outputs that are read again inside, one that is an input's copy, and small ports beside them."""
    b = GraphBuilder("large")
    x, z, s = b.input("x", SHAPE), b.input("z", SHAPE), b.input("s", (640,))
    y = b.add("tanh", b.add("add", b.add("mul", x, s), z))
    b.output(y, "y")
    b.output(b.add("reduce", b.add("mul", y, y), fn="sum", axes=(0, 1), keepdims=False), "small")
    b.output(b.add("sub", z, y), "d")
    return b.build()


def expected(feeds: dict[str, Array]) -> dict[str, Array]:
    y = np.tanh(feeds["x"] * feeds["s"] + feeds["z"])
    return {"y": y, "small": (y * y).sum((0, 1)), "d": feeds["z"] - y}


def draw(shape: tuple[int, ...], seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def shifted(array: Array) -> Array:
    """The same values, four bytes past a multiple of 64."""
    room = np.zeros(array.size + 32, np.float32)
    first = (-room.ctypes.data % 64) // 4 + 1
    room[first : first + array.size] = array.reshape(-1)
    return room[first : first + array.size].reshape(array.shape)


def misplaced(array: Array) -> Array:
    """The same values at an odd address, as in a file that was mapped."""
    room = np.zeros(array.nbytes + 1, np.uint8)
    made = room[1:].view(np.float32).reshape(array.shape)
    made[...] = array
    return made


FORMS: dict[str, Callable[[Array], Array]] = {
    "plain": lambda a: a,
    "shifted": shifted,
    "misplaced": misplaced,
    "in columns": np.asfortranarray,
    "every other": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "read only": lambda a: np.frombuffer(a.tobytes(), np.float32).reshape(a.shape),
}


@pytest.fixture(scope="module")
def program() -> rammer.Program:
    return rammer.compile(network(), target="cpu", tune_seconds=0)


def agree(found: dict[str, Array], wanted: dict[str, Array]) -> None:
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("form", FORMS)
def test_inputs_are_read_where_they_lie_and_not_changed(program: rammer.Program, form: str) -> None:
    kept = []
    for seed in range(3):  # each time other addresses
        feeds = {"x": draw(SHAPE, seed), "z": draw(SHAPE, 9 + seed), "s": draw((640,), seed)}
        given = {name: FORMS[form](value) for name, value in feeds.items()}
        found = program.run(given)
        agree(found, expected(feeds))
        for name, value in feeds.items():
            np.testing.assert_array_equal(given[name], value)
        kept.append((found, expected(feeds)))
    for found, wanted in kept:  # later runs wrote elsewhere
        agree(found, wanted)


def test_one_array_for_two_inputs(program: rammer.Program) -> None:
    x, s = draw(SHAPE, 1), draw((640,), 2)
    agree(program.run({"x": x, "z": x, "s": s}), expected({"x": x, "z": x, "s": s}))


@pytest.mark.parametrize("overlap", ["none", "y on x", "y on d", "d on z, by a row"])
def test_bound_arrays_may_overlap(program: rammer.Program, overlap: str) -> None:
    """An output that lies on an input or on another output is written when everything has been read and computed."""
    room = draw((4, *SHAPE[1:]), 3)
    feeds = {"x": draw(SHAPE, 1), "z": room[1:], "s": draw((640,), 2)}
    outputs = {port.name: np.zeros(port.shape, np.float32) for port in program.outputs}
    match overlap:
        case "y on x":
            outputs["y"] = feeds["x"]
        case "y on d":
            outputs["y"] = outputs["d"]
        case "d on z, by a row":
            outputs["d"] = room[:-1]
    wanted = expected({name: value.copy() for name, value in feeds.items()})
    if overlap == "y on d":
        del wanted["y"]  # the last one written stays
    program.bind(feeds, outputs)()
    agree(outputs, wanted)


def test_a_saved_program_and_timed_runs_agree(program: rammer.Program, tmp_path: object) -> None:
    feeds = {"x": draw(SHAPE, 1), "z": draw(SHAPE, 4), "s": draw((640,), 2)}
    path = f"{tmp_path}/large.rammer"
    program.save(path)
    loaded = rammer.load(path)
    agree(loaded.run(feeds), expected(feeds))
    loaded.profile(feeds, seconds=0.01)  # at home
    agree(loaded.run(feeds), expected(feeds))
