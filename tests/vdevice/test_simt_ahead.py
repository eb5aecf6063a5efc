"""Constants asked for before a wait: the right ones, inside their tensors, and only where there is time."""

from __future__ import annotations

import re

import numpy as np
from simt_plans import spec
from test_simt_residency import inputs_of, operations, recurrent

from rammer.ir.analysis.dependency import read_elements
from rammer.ir.analysis.intervals import expand
from rammer.kernels import candidates
from rammer.vdevice.rocm.prelude import hip
from rammer.vdevice.simt.codegen.image import make_image, make_program
from rammer.vdevice.simt.codegen.prefetch import LEAST_BYTES, MOST_BYTES, SECTOR_BYTES, prefetch_text
from rammer.vdevice.simt.codegen.prelude import CUDA
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable

_LOOP = re.compile(
    r"n < (\d+); n \+= 256\) \{\s*const int64_t at = (.*);\s*if \(\(uint64_t\)at < (\d+)\) "
    r"mk_ahead\(MK_TENSOR\(const char \*, args, (\d+)\) \+ at \* (\d+)\)"
)


def test_what_is_asked_for_is_what_is_read() -> None:
    """The text's own formula, evaluated: every sector that an rTask reads, and no address outside of the tensor."""
    seen = 0
    for operation in operations():
        for kernel in candidates(operation, spec(4)):
            _, text = prefetch_text(kernel, frozenset(), 256)
            for count, formula, elements, argument, itemsize in _LOOP.findall(text):
                position = int(argument) - len(operation.outputs)
                python = formula.replace("(int64_t)", "").replace("/", "//")
                for rtask in range(kernel.num_rtasks):
                    at = np.array([eval(python, {"n": n, "rtask": rtask}) for n in range(int(count))])
                    at = at[(at >= 0) & (at < int(elements))]
                    asked = np.unique(at * int(itemsize) // SECTOR_BYTES)
                    read = np.unique(expand(read_elements(kernel, position)[rtask]) * int(itemsize) // SECTOR_BYTES)
                    missing = np.setdiff1d(read, asked)
                    assert len(missing) <= 0.25 * len(read), (kernel.name, position)  # rows that begin inside a sector
                    assert (at + SECTOR_BYTES // int(itemsize) <= int(elements) + SECTOR_BYTES).all()
                seen += 1
    assert seen > 10


def test_small_constants_and_copies_are_not_asked_for() -> None:
    cell = next(o for o in operations() if "tanh" in o.kind and o.kind.startswith("gate_matmul+add"))
    kernel = candidates(cell, spec(4))[0]
    name, text = prefetch_text(kernel, frozenset(), 256)
    assert name in text and len(_LOOP.findall(text)) == 1  # the matrix, no bias
    matrix = max(range(len(cell.inputs)), key=lambda n: cell.inputs[n].size)
    assert prefetch_text(kernel, frozenset({matrix}), 256) == ("", "")
    assert LEAST_BYTES < MOST_BYTES


def test_the_question_comes_before_the_wait() -> None:
    plan = recurrent().plan
    text = make_program(plan, CUDA, resident=False).text
    asked = [m.start() for m in re.finditer(r"a_[0-9a-f]{16}\(arg", text)]
    waits = [m.start() for m in re.finditer(r"mk_wait\(run, .*near, waits \+ now", text)]
    assert asked and all(any(a < w for w in waits) for a in asked)
    assert "mk_ahead(MK" not in make_program(plan, hip(64)).text


def test_no_address_leads_out_of_memory() -> None:
    """The emulator really reads what is asked for."""
    program = recurrent("round_robin")
    inputs = inputs_of(program)
    image = make_image(program.plan, make_program(program.plan, CUDA, resident=False), {})
    assert "mk_ahead(MK" in image.files["program.cu"].decode()
    np.testing.assert_array_equal(EmulatorExecutable(image, poison=True).run(inputs)["y"], program.run(inputs)["y"])
