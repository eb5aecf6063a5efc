"""The emitted text: golden, for the two forms of a program; and tables that say what the text expects."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from goldens import Golden
from simt_plans import chain, mirror, placed, spec

from rammer.errors import ArtifactError, DeviceError
from rammer.ir.operator import Operations, attributes
from rammer.ir.ops import OPS
from rammer.ir.tensor import DType, TensorType
from rammer.kernels import candidates
from rammer.vdevice.simt.codegen.image import make_program
from rammer.vdevice.simt.codegen.prelude import CUDA
from rammer.vdevice.simt.codegen.printer import SimtPrinter, emit
from rammer.vdevice.simt.codegen.table import END, ONLY_WAIT, Streams

CHAIN = chain(4)
LANES = [[0, [(1, 1)], 2, [(1, 2)]], [[(0, 0)], 1, [(0, 2)], 3]]


def after_prelude(text: str) -> str:
    return text[text.index("#define MK_TASK") :]


def test_program_text(golden: Golden) -> None:
    plan = placed(CHAIN, [mirror(CHAIN, 32), mirror(CHAIN, 64), mirror(CHAIN, 1), mirror(CHAIN, 64)], LANES)
    golden.check(after_prelude(make_program(plan, CUDA).text))


@pytest.mark.parametrize(
    ("kind", "shapes", "attrs", "loose"),
    [
        ("matmul", ((8, 32), (32, 64)), {}, ()),
        ("softmax", ((4, 40),), {"axis": 1}, (1,)),
    ],
)
def test_kernel_text(
    kind: str, shapes: tuple[tuple[int, ...], ...], attrs: dict[str, int], loose: tuple[int, ...]
) -> None:
    """Whole vectors only where memory is aligned; scratch never restrict; every thread of the block named."""
    operation = Operations(OPS).define(kind, tuple(TensorType(s) for s in shapes), attributes(**attrs))
    for kernel in candidates(operation, spec()):
        text = emit(kernel, CUDA, 256).text
        assert "__restrict__ scratch" not in text and "char *scratch" in text
        assert emit(kernel, CUDA, 256).text == text
        every = frozenset(range(len(kernel.body.arguments)))  # type: ignore[union-attr]
        for line in emit(kernel, CUDA, 256, every).text.splitlines():
            assert not any(f"V({b.name}[" in line for b in kernel.body.arguments), line  # type: ignore[union-attr]


def test_barriers_go_with_the_task_behind_them() -> None:
    plan = placed(CHAIN, [mirror(CHAIN)] * 4, LANES)
    streams = make_program(plan, CUDA).streams
    first, second = streams.lane(0, 0).tolist(), streams.lane(0, 1).tolist()
    # function, rTask, first argument, arguments, first wait, waits, step, order
    assert [row[4:] for row in first] == [[0, 0, 1, 0], [0, 1, 3, 2], [1, 1, 0, 3]]
    assert [row[0] for row in first] == [0, 0, ONLY_WAIT]
    assert [row[4:] for row in second] == [[2, 1, 2, 1], [3, 1, 3, 2], [0, 0, 0, 3]]  # vEU 0 waits for the barrier
    assert streams.waits.tolist() == [[1, 1], [1, 2], [0, 0], [0, 2]]
    assert (streams.instructions[streams.bounds[1:] - 1, 0] == END).all()
    assert streams.span(0) > 3


def test_barriers_that_others_wait_for_publish_on_their_own() -> None:
    """Taken along by the next task, they would be seen too late, perhaps never."""
    lanes = [[0, [(1, 0)], [(1, 1)], 3], [1, [(0, 1)], 2]]
    streams = make_program(placed(CHAIN, [mirror(CHAIN)] * 4, lanes), CUDA).streams
    assert streams.lane(0, 0)[:, 0].tolist() == [0, ONLY_WAIT, 0]
    assert streams.lane(0, 0)[1, 6] == 2


def test_tables_survive_the_file() -> None:
    streams = make_program(placed(CHAIN, [mirror(CHAIN)] * 4, LANES), CUDA).streams
    again = Streams.from_bytes(streams.to_bytes())
    assert again.header == json.loads(json.dumps(streams.header))
    for name in ("bounds", "instructions", "waits", "operators", "arg_base", "arg_offset"):
        np.testing.assert_array_equal(getattr(again, name), getattr(streams, name))
    assert again.operator_at(0, 1, 0) == 1 and again.operator_at(0, 0, 9) == -1


@pytest.mark.parametrize("column", range(8))
def test_tables_with_wild_numbers_are_refused(column: int) -> None:
    streams = make_program(placed(CHAIN, [mirror(CHAIN)] * 4, LANES), CUDA).streams
    instructions = streams.instructions.copy()
    instructions[0, column] = 1000 if column in (0, 2, 3, 4, 5) else -7
    with pytest.raises(ArtifactError, match="damaged"):
        Streams.from_bytes(replace(streams, instructions=instructions).to_bytes())


def test_code_does_not_grow_with_the_number_of_rtasks() -> None:
    few, many = (
        make_program(placed(g, [mirror(g)] * n, [[*range(n)], []]), CUDA).text
        for n, g in ((2, chain(2)), (50, chain(50)))
    )
    assert few == many


def test_a_plan_without_memory_is_refused() -> None:
    plan = replace(placed(CHAIN, [mirror(CHAIN)] * 4, LANES), memory=None)
    with pytest.raises(DeviceError, match="no memory"):
        make_program(plan, CUDA)


def test_every_element_type_has_a_name() -> None:
    assert set(SimtPrinter.ctype) == set(DType)


WAVE = [[0, [(1, 0), (2, 0)], 3], [1, [(0, 0), (2, 0)], 4], [2, [(0, 0), (1, 0)], 5], [[(0, 0), (1, 0), (2, 0)], 6]]


def test_lanes_of_a_wave_share_a_list_and_a_lane_that_waits_for_itself_is_refused() -> None:
    graph = chain(7)
    streams = make_program(placed(graph, [mirror(graph)] * 7, WAVE), CUDA).streams
    assert streams.waits.tolist() == [[0, 0], [1, 0], [2, 0]]
    assert [streams.lane(0, v)[-1, 4:6].tolist() for v in range(4)] == [[0, 3]] * 4
    streams.check()
    ahead = streams.waits.copy()
    ahead[1, 1] = 1  # vEU 1 would wait for its own barrier
    twice = np.array([[0, 0], [1, 0], [1, 0]], np.int32)
    for waits in (ahead, twice):
        with pytest.raises(ArtifactError, match="waits for itself"):
            Streams.from_bytes(replace(streams, waits=waits).to_bytes())


def test_a_lane_whose_own_slot_is_still_to_come_has_a_list_of_its_own() -> None:
    lanes = [[[(1, 0), (2, 0)], 0], [1, [(0, 1), (2, 0)], 3], [2], [[(0, 1), (1, 0), (2, 0)], 4]]
    graph = chain(5)
    streams = make_program(placed(graph, [mirror(graph)] * 5, lanes), CUDA).streams
    assert streams.waits.tolist() == [[1, 0], [2, 0], [0, 1], [2, 0], [0, 1], [1, 0], [2, 0]]
    streams.check()
