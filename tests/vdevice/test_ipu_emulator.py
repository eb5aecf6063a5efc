"""The emulator refuses what Poplar refuses, with Poplar's classes, and counts what a program costs."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from rammer.errors import ToolchainError
from rammer.vdevice.ipu.sdk import compile_emulated, host_cxx

# in the order of `cases` in ipu_rules.cpp: what is wrong, and the class and a part of the text that Poplar has for it
RULES = [
    (
        "two writers of an element",
        "graph_cycle_error: Field Twice.y writes to elements [4:12) of variable 'b' that are",
    ),
    (
        "a reader beside a writer",
        "graph_cycle_error: Field Twice.x reads elements [0:16) of variable 'b' that are written",
    ),
    ("a vertex that reads what it writes", "graph_cycle_error: Field Twice.x reads"),
    ("variable without tiles", "invalid_tile_mapping: Tile mapping of variable 'c' is not complete: elements [0:16)"),
    (
        "variable with tiles for a half",
        "invalid_tile_mapping: Tile mapping of variable 'c' is not complete: elements [8:16)",
    ),
    ("vertex without a tile", "invalid_tile_mapping: Vertex of type 'Twice'"),
    ("field without an edge", "graph_connection_error: Field Twice.y: no edges to a vertex input"),
    ("field with two edges", "graph_connection_error: Field Twice.x: multiple edges to a vertex input"),
    ("state without a value", "graph_connection_error: Field Twice.n has no initial value"),
    (
        "variable too large",
        "graph_memory_allocation_error: Out of memory on tile 7: 280476 bytes used but tiles only have 262144 bytes",
    ),
    ("edges too large", "graph_memory_allocation_error: Out of memory on tile 7"),
    ("unknown field", "graph_connection_error: Vertex type 'Twice' has no field 'z'"),
    ("unknown vertex", "graph_object_creation_error: Unknown vertex type 'Thrice'"),
    ("variable on no tile", "invalid_tile_mapping: Tile 1216 is out of range"),
    ("vertex on no tile", "invalid_tile_mapping: Tile 5000 is out of range"),
    ("rank-2 edge", "graph_connection_error: Field Twice.x cannot be connected to a tensor of rank 2"),
    ("edge of another type", "type_error: Field Twice.x cannot be connected to a tensor of type int"),
    ("scalar edge of 16 elements", "graph_connection_error: Field One.x cannot be connected"),
    ("value of another type", "type_error: Field Twice.n: initial value of another type"),
    ("value of an edge", "type_error: Field Twice.x: initial value"),
    ("edge of a state field", "graph_connection_error: Field Twice.n is not an edge"),
    (
        "codelet behind its field",
        "runtime_error: Vertex of type 'Twice' accesses element 16 of a field with 16 elements",
    ),
    ("output with an element twice", "graph_connection_error: Field Twice.y writes an element twice"),
    ("output into a constant", "graph_connection_error: Field Twice.y writes to a constant"),
    ("vertex without an estimate", "poplar_error: Vertex of type 'Twice' has no performance estimate"),
    ("copy of another size", "control_program_error: Copy: source and destination have different sizes"),
    ("stream of the other direction", "control_program_error: Copy: stream 'out' has the other direction"),
    ("stream of another size", "control_program_error: Copy: stream 'in' has another number of elements"),
    ("stream not connected", "stream_connection_error: Stream 'in' is not connected"),
    ("no such stream", "stream_connection_error: There is no stream 'nowhere'"),
    ("run before load", "poplar_error: Engine::run: no device is loaded"),
    ("no such program", "control_program_error: There is no program 1"),
    ("no such option", "invalid_option: Unrecognised option 'debg.instrument'"),
    ("slice out of range", "poplar_error: slice [8:17) of dimension 0 is out of range"),
    ("reshape to another size", "poplar_error: reshape changes the number of elements"),
    ("no codelet file", "graph_object_load_error: Could not open codelet file"),
    ("no such IPU", "poplar_error: Unknown IPU version 'ipu9'"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    try:
        host_cxx()
    except ToolchainError as error:
        pytest.skip(str(error))
    text = Path(__file__).with_name("ipu_rules.cpp").read_text(encoding="utf-8")
    target = tmp_path_factory.mktemp("ipu") / "rules.so"
    target.write_bytes(compile_emulated({"rules.cpp": text}, "rules.cpp", ("-shared",)))
    return ctypes.CDLL(str(target))


@pytest.mark.parametrize("number", range(len(RULES)), ids=[what.replace(" ", "-") for what, _ in RULES])
def test_rule(library: ctypes.CDLL, number: int) -> None:
    out = ctypes.create_string_buffer(500)
    assert library.rule(number, out, 500) == 0
    assert out.value.decode().removeprefix("poplar::").startswith(RULES[number][1])


def test_every_case_has_its_rule(library: ctypes.CDLL) -> None:
    assert library.rule(len(RULES), ctypes.create_string_buffer(10), 10) == -1


def test_elements_left_alone_are_nan(library: ctypes.CDLL) -> None:
    """An Output is a buffer of its own: what a vertex does not write is undefined."""
    out = np.zeros(16, np.float32)
    library.partial_output(out.ctypes.data_as(ctypes.c_void_p))
    assert np.isnan(out[1::2]).all() and not np.isnan(out[::2]).any()


def test_undefined_variables_and_copies_on_a_tile(library: ctypes.CDLL) -> None:
    """What is undefined is NaN; 64 bytes that stay on their tile take 16 cycles, and no exchange."""
    out = np.zeros(32, np.float32)
    library.undefined_and_copy.restype = ctypes.c_ulong
    assert library.undefined_and_copy(out.ctypes.data_as(ctypes.c_void_p)) == 16
    assert (out[:16] == 1).all() and np.isnan(out[16:]).all()


def test_costs(library: ctypes.CDLL) -> None:
    """Each round: 16 floats to tile 1 before the set, 16 back by the copy; a Vertex alone uses one worker in six."""
    out = ctypes.create_string_buffer(2000)
    library.costs(3, out, 2000)
    found = {k: int(v) for k, v in (line.split() for line in out.value.decode().splitlines())}
    assert found["result"] == 8
    assert found["supersteps"] == 2 * 3 and found["sync_cycles"] == 2 * 3 * 90
    assert found["exchange_bytes"] == 2 * 3 * 64 and found["exchange_cycles"] == 2 * 3 * (100 + 16)
    assert found["compute_cycles"] == 3 * 6 * 10
    assert found["cycles"] == found["compute_cycles"] + found["exchange_cycles"] + found["sync_cycles"]
    assert found["host_bytes"] == 2 * 64
    assert found["peak_tile_bytes"] == 64 + 64 + 400 + 4 + 4 + 4  # b, the copy of a, code, state
