"""Unrolled loops of long functions: repeated, in functions of their own, and as right as unrolled ones."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import stages
from cpus import runnable
from kernel_harness import SLOW_SPEC, SPEC, check_compiled, compile_all
from layers import network, node

from rammer.ir.device import VDeviceSpec
from rammer.ir.expr import Call, Load
from rammer.ir.graph import Graph
from rammer.ir.index import var
from rammer.ir.operator import Operation
from rammer.ir.tile import Alloc, Body, Buffer, For, If, Kind, Scope, Store, TileProgram
from rammer.kernels import candidates
from rammer.vdevice.cpu.codegen import rolled as module
from rammer.vdevice.cpu.codegen.emit import emit
from rammer.vdevice.cpu.codegen.printer import CpuPrinter
from rammer.vdevice.cpu.codegen.rolled import MOST, in_registers, rolled


def image(channels: int, outs: int, height: int, width: int, size: int, act: str) -> Graph:
    nodes = [node("Conv", ["x", "w", "b"], ["c"], pads=[size // 2] * 4), node(act, ["c"], ["s"])]
    nodes += [node("Mul", ["c", "s"], ["m"]), node("Conv", ["m", "v"], ["y"])]  # channels lie in blocks between them
    return network((1, channels, height, width), nodes, w=(outs, channels, size, size), b=(outs,), v=(outs, outs, 1, 1))


def rows(count: int, width: int, columns: int) -> Graph:
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "b"], ["a"]), node("Tanh", ["a"], ["t"])]
    return network((count, width), [*nodes, node("Erf", ["t"], ["y"])], w=(width, columns), b=(columns,))


GRAPHS = {
    "image": image(32, 48, 27, 29, 1, "Sigmoid"),
    "edges": image(16, 32, 40, 41, 3, "Sigmoid"),
    "small": image(19, 21, 5, 7, 3, "Tanh"),
    "rows": rows(75, 128, 320),
    "odd rows": rows(29, 75, 131),
}


def operations(name: str, spec: VDeviceSpec) -> list[Operation]:
    return [op for op in stages.operations(GRAPHS[name], spec) if any(fn in op.kind for fn in module.LONG)]


NARROW = {"arch": runnable("x86-64-avx2"), "lanes": 8, "registers": 16}
SPECS = {"AVX-512": (SPEC, SLOW_SPEC), "AVX2": (replace(SPEC, **NARROW), replace(SLOW_SPEC, **NARROW))}


@pytest.mark.parametrize("isa", SPECS)
@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_repeated_is_right(name: str, isa: str) -> None:
    for spec in SPECS[isa]:
        for number, op in enumerate(operations(name, spec)):
            label = f"{name} {number}"
            check_compiled(compile_all({label: (op, candidates(op, spec))}, spec, check=True), label)


@pytest.mark.parametrize("name", ["image", "rows"])
def test_functions_are_in_loops(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they were unrolled, they are called: no function of vectors is left where it would be copied many times."""
    (op,) = operations(name, SPEC)
    kernels = candidates(op, SPEC)
    texts = [emit(kernel, SPEC).text for kernel in kernels]
    monkeypatch.setattr(module, "MOST", 1 << 20)
    before = [emit(kernel, SPEC).text for kernel in kernels]
    changed = [(new, old) for new, old in zip(texts, before, strict=True) if "_loop0(" in new]
    assert changed
    for new, old in changed:
        assert "_loop" not in old
        loops = re.findall(r"void k_\w+_loop\d+\(.*?\n}\n", new, re.S)
        assert loops
        assert not any("#pragma unroll\n" in text for text in loops)
        (held,) = set(re.findall(r"vf rammer_(\w+)\[", new))
        assert not any(f" {held}[" in text or f"({held}[" in text for text in loops)  # copies are read


def block(fn: str, count: int, target: str = "out", source: str = "acc") -> Body:
    place = var("n") * 16 + var("lane")
    lanes = For("lane", 0, 16, Kind.VECTOR, (Store(target, place, Call(fn, (Load(source, (place,)),))),))
    return (For("n", 0, count, Kind.UNROLLED, (lanes,)),)


ACC = Buffer("acc", 64 * 16, Scope.REGISTER)


@pytest.mark.parametrize(
    ("body", "stays"),
    [
        (block("tanh", MOST + 1), False),
        (block("tanh", MOST), True),  # too few
        (block("neg", 64), True),  # nothing long
        (block("tanh", 64, target="acc"), True),  # what is stored is in registers, too
        (block("tanh", 64, source="held"), True),  # of registers that no function is given
        (block("tanh", 64, source="x"), False),  # of memory alone
    ],
)
def test_which_loops_stay(body: Body, stays: bool) -> None:
    (loop,) = body
    assert isinstance(loop, For)
    found = rolled(loop, {"out", "x"}, {"acc": (ACC, body)}, 16)
    assert (found is None) == stays
    if found:
        assert all(s.kind is not Kind.UNROLLED for s in found.body if isinstance(s, For))


def test_registers_that_a_running_loop_counts_through_are_memory() -> None:
    """Copies of them would be copies of memory, and an unrolled loop inside of it has no place for them."""
    counted = For("m", 0, 4, Kind.SERIAL, (Store("acc", var("m") * 16, Load("x", (var("m"),))),))
    assert in_registers(ACC, block("tanh", 8))
    assert not in_registers(ACC, (counted, *block("tanh", 8)))
    assert not in_registers(replace(ACC, scope=Scope.LOCAL), block("tanh", 8))
    assert not in_registers(ACC, (If((), (Alloc(Buffer("own", 1, Scope.REGISTER), (counted,)),)),))


def test_squares_stay_where_they_are_turned() -> None:
    """What is computed by columns and stored by rows leaves as a square; what is stored as it lies, in a loop."""
    u, v, lane = var("u"), var("v"), var("l")
    number = Call("tanh", (Load("x", (u * 256 + v * 16 + lane,)),))
    arguments = Buffer("out", 3200, Scope.ARGUMENT), Buffer("x", 512, Scope.ARGUMENT)
    for place, turned in ((u * 1600 + v + lane * 75, True), (u * 256 + v * 16 + lane, False)):
        column = For("l", 0, 16, Kind.VECTOR, (Store("out", place, number),))
        loop = For("u", 0, 2, Kind.UNROLLED, (For("v", 0, 16, Kind.UNROLLED, (column,)),))
        printer = CpuPrinter(TileProgram("small", arguments, 1, (loop,), (), 1, ()), 16)
        printer.share("k_", "out, x")
        assert ("vturned(" in "".join(printer.body((loop,), 0))) == turned
        assert bool(printer.loops) != turned
