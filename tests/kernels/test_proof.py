"""Every candidate is proven, and one that is changed in a single number is not: or running it shows the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import simt_harness
import test_byte_products
import test_matrix_unit
import test_threads_tensor
from kernel_harness import SLOW_SPEC, SPEC, check_compiled, compile_all
from numpy.typing import NDArray
from rammer_testing.mutate.tiles import mutants
from simt_harness import SMALL
from test_every_operator import CASES

from rammer.ir.analysis.access import Access, Accesses
from rammer.ir.analysis.dependency import read_elements
from rammer.ir.analysis.intervals import expand
from rammer.ir.expr import Call, Const, Load
from rammer.ir.index import Index, var
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.tensor import Digit, Layout
from rammer.ir.tile import Alloc, Body, Buffer, For, Kind, Scope, Stmt, Store, TileProgram
from rammer.ir.verify import kernel as proof
from rammer.ir.verify.flow import ROLE, TAG, Flow, Untraceable
from rammer.ir.verify.kernel import RULES, Finding, covers, prove, proven
from rammer.kernels import candidates
from rammer.vdevice.cpu.codegen import amx

UNIT = replace(SLOW_SPEC, instructions=amx.AMX)
CAUGHT = 0.99  # of changes that make a difference
TAKEN = sorted(name for name, op in CASES.items() if op.kind != "scatter")  # by rKernels of threads
SOME = TAKEN[::9]


@pytest.mark.parametrize("name", CASES)
def test_candidates_are_proven(name: str) -> None:
    for spec in (SPEC, SLOW_SPEC, UNIT):
        for kernel in candidates(CASES[name], spec):
            assert not prove(kernel), f"{kernel.name}: {prove(kernel)[0]}"


@pytest.mark.parametrize("name", [n if n in SOME else pytest.param(n, marks=pytest.mark.slow) for n in TAKEN])
def test_candidates_of_many_threads_are_proven(name: str) -> None:
    for kernel in candidates(CASES[name], SMALL):
        _, findings = proven(kernel)
        assert not any(f.broken for f in findings), f"{kernel.name}: {findings[0]}"


@pytest.mark.parametrize("unit", test_threads_tensor.UNITS)
def test_products_of_waves_are_proven(unit: str) -> None:
    """Through the registers of other threads."""
    for operation in test_threads_tensor.OPERATIONS.values():
        kernels = test_threads_tensor.on_unit(operation, test_threads_tensor.UNITS[unit])
        assert kernels
        for kernel in kernels:
            assert not proven(kernel)[1], f"{kernel.name}: {proven(kernel)[1][0]}"


def test_elements_that_are_too_many_are_left_out_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is traced as if the others had not been asked for; and where nothing is left, that is said."""
    kernel = candidates(CASES["conv"], SPEC)[0]
    assert isinstance(kernel.body, TileProgram)
    accesses = Accesses(kernel.body)
    name, *inputs = (b.name for b in kernel.body.arguments)
    store = next(a for a in accesses.found if a.write and a.buffer == name)
    rows = {n: np.arange(12) % (high - low + 1) + low for n, (low, high) in store.ranges.items()}

    def traced(tags: NDArray[np.int64], rounds: NDArray[np.int64]) -> tuple[Flow, dict[str, NDArray[np.int64]]]:
        flow = Flow(accesses, inputs)
        start = {n: v[tags] for n, v in rows.items()} | {TAG: np.arange(len(tags)), ROLE: np.zeros_like(tags)}
        return flow, flow.sources({store.statement: start}, rounds)

    last = np.arange(0, 12, 4)
    alone, wanted = traced(last, np.zeros_like(last))
    limit = 1
    monkeypatch.setattr("rammer.ir.verify.flow.MAX_INSTANCES", limit)
    while True:  # the least power of two that is enough for them, and then not for four times as many
        try:
            traced(last, np.zeros_like(last))
            break
        except Untraceable:
            limit *= 2
            monkeypatch.setattr("rammer.ir.verify.flow.MAX_INSTANCES", limit)
    every = np.arange(12)
    fewer, found = traced(every, np.where(every % 4, 0, 1))
    assert fewer.kept.tolist() == last.tolist()
    assert all(np.array_equal(found[n], wanted[n]) for n in wanted)
    assert all(np.array_equal(fewer.terms[n], alone.terms[n]) for n in alone.terms)
    monkeypatch.setattr("rammer.ir.verify.flow.MAX_INSTANCES", 1)
    with pytest.raises(Untraceable):
        traced(every, np.where(every % 4, 0, 1))


@pytest.mark.parametrize("name", SOME)
def test_what_is_plainly_written_is_written(name: str) -> None:
    """Whatever the short way says of a write and a read after it, counting out says as well; and it says so of some."""
    for kernel in candidates(CASES[name], SPEC):
        for changed in (kernel, *(mutant for _, mutant in mutants(kernel, 20, seed=0))):
            assert isinstance(changed.body, TileProgram)
            for read, write in reads_after_writes(Accesses(changed.body).found):
                if proof._trivially_covers(write, read):
                    assert not any(f.broken for f in proof._covered("R205", read, [write], "{}"))


def test_most_of_what_is_kept_is_plainly_written() -> None:
    """Sums in registers, which are set to zero in loops of their own."""
    kernel = candidates(CASES["conv"], SPEC)[0]
    assert isinstance(kernel.body, TileProgram)
    pairs = list(reads_after_writes(Accesses(kernel.body).found))
    reads = {read for read, _ in pairs}
    plain = {read for read, write in pairs if proof._trivially_covers(write, read)}
    assert 2 * len(plain) > len(reads) > 0


def reads_after_writes(found: Sequence[Access]) -> Iterator[tuple[Access, Access]]:
    for read in found:
        for write in found:
            if not read.write and write.write and write.buffer == read.buffer and write.statement < read.statement:
                yield read, write


def test_a_kernel_that_reads_too_much_says_so() -> None:
    """A dilated convolution copies a box with gaps: plans must know of all that it reads."""
    copying = [k for k in candidates(CASES["conv-3d"], SMALL) if any(f.rule == "R204" for f in prove(k))]
    assert copying
    for kernel in copying:
        wider, findings = proven(kernel)
        assert wider.overreads and not any(f.broken for f in findings)
        narrow, wide = (sum(len(expand(read_elements(k, 0)[r])) for r in range(k.num_rtasks)) for k in (kernel, wider))
        assert wide > narrow


Missed = list[tuple[Operation, RKernel, str]]


def unseen(found: Iterable[tuple[Operation, Sequence[RKernel]]], count: int, seed: int) -> tuple[int, Missed]:
    """How many changed kernels there are, and those of which the rules do not see that they are changed."""
    kernels: dict[str, tuple[Operation, RKernel]] = {}
    for operation, options in found:
        for kernel, (whole, findings) in zip(options, map(proven, options), strict=True):
            if not findings:
                kernels[str(kernel.body)] = operation, whole
    total, missed = 0, []
    for operation, kernel in kernels.values():
        for what, mutant in mutants(kernel, count, seed):
            total += 1
            if not prove.__wrapped__(mutant):
                missed.append((operation, mutant, what))
    assert total > 100
    return total, missed


def check_real(total: int, missed: Missed, right: Callable[[str], object]) -> None:
    """Of changes that the rules do not see, those that a run does not see either change nothing."""
    real = [what for n, (_, _, what) in enumerate(missed) if not _passes(right, str(n))]
    harmless = len(missed) - len(real)
    assert len(real) <= (1 - CAUGHT) * (total - harmless), "\n".join(real)


def _passes(right: Callable[[str], object], name: str) -> bool:
    try:
        right(name)
    except AssertionError:
        return False
    return True


def check_mutants(names: Sequence[str], count: int, seed: int) -> None:
    specs = (SPEC, SLOW_SPEC)
    total, missed = unseen([(CASES[n], candidates(CASES[n], spec)) for n in names for spec in specs], count, seed)
    built = compile_all({str(n): (op, [m]) for n, (op, m, _) in enumerate(missed)}, SPEC, check=True)
    check_real(total, missed, lambda name: check_compiled(built, name))


def check_mutants_on_the_unit(count: int, seed: int) -> None:
    of_unit = [(op, test_matrix_unit.on_unit(op)) for op in test_matrix_unit.CASES.values()]
    for spec in (test_matrix_unit.PIECE_SPEC, test_matrix_unit.LYING_SPEC):
        of_unit += [(op, test_matrix_unit.on_unit(op, spec)) for op in test_matrix_unit.PIECES]
    total, missed = unseen(of_unit, count, seed)
    built = compile_all({str(n): (op, [m]) for n, (op, m, _) in enumerate(missed)}, test_matrix_unit.UNIT_SPEC)
    check_real(total, missed, lambda name: check_compiled(built, name))


def check_mutants_of_bytes(count: int, seed: int) -> None:
    operations = test_byte_products.CASES.values()
    total, missed = unseen([(op, test_byte_products.on_unit(op)) for op in operations], count, seed)
    built = compile_all({str(n): (op, [m]) for n, (op, m, _) in enumerate(missed)}, test_byte_products.BYTES)
    check_real(total, missed, lambda name: check_compiled(built, name))


def check_mutants_of_many_threads(names: Sequence[str], count: int, seed: int) -> None:
    total, missed = unseen([(CASES[n], candidates(CASES[n], SMALL)) for n in names], count, seed)
    built = simt_harness.build({str(n): (op, [m]) for n, (op, m, _) in enumerate(missed)})
    check_real(total, missed, lambda name: simt_harness.check(built, name))


def check_mutants_of_waves(count: int, seed: int) -> None:
    spec = test_threads_tensor.UNITS["mfma-fp32"]  # which rounds no operand
    operations = test_threads_tensor.OPERATIONS.values()
    total, missed = unseen([(op, test_threads_tensor.on_unit(op, spec)) for op in operations], count, seed)
    built = simt_harness.build({str(n): (op, [m]) for n, (op, m, _) in enumerate(missed)})
    check_real(total, missed, lambda name: simt_harness.check(built, name))


def test_changed_kernels_are_not_proven() -> None:
    check_mutants(sorted(CASES)[::5], 6, seed=1)


def test_changed_kernels_of_many_threads_are_not_proven() -> None:
    check_mutants_of_many_threads(TAKEN[::6], 3, seed=3)


def test_changed_kernels_on_the_unit_are_not_proven() -> None:
    check_mutants_on_the_unit(12, seed=1)


def test_changed_products_of_bytes_are_not_proven() -> None:
    check_mutants_of_bytes(12, seed=1)


def test_changed_kernels_of_waves_are_not_proven() -> None:
    check_mutants_of_waves(6, seed=1)


@pytest.mark.slow
def test_changed_kernels_of_all_generators_are_not_proven() -> None:
    check_mutants(sorted(CASES), 8, seed=3)
    check_mutants_on_the_unit(40, seed=3)
    check_mutants_of_many_threads(TAKEN, 4, seed=5)
    check_mutants_of_waves(40, seed=3)


@pytest.mark.parametrize("together", [True, False])
def test_a_sum_in_two_halves_is_not_refused(together: bool) -> None:
    """A plugin's program may compute in other steps than the expression: that cannot be shown, and is no fault."""
    operation = CASES["reduce-sum"]
    kernel = min(candidates(operation, SPEC), key=lambda k: k.num_rtasks)
    assert isinstance(kernel.body, TileProgram)
    out, x = kernel.body.arguments
    rows, terms, i, k = out.size, x.size // out.size, var("i"), var("k")
    halves = [Buffer(name, 1, Scope.REGISTER) for name in ("even", "odd")]

    def add(half: Buffer, first: int) -> Body:
        at = (Index(),)
        term = Call("add", (Load(half.name, at), Load("x", (i * terms + k * 2 + first,))))
        steps = For("k", 0, (terms - first + 1) // 2, Kind.SERIAL, (Store(half.name, Index(), term),))
        return Store(half.name, Index(), Const(0.0)), steps

    total = Call("add", tuple(Load(half.name, (Index(),)) for half in halves))
    more = Call("add", (Load("even", (Index(),)), Load("odd", (Index(),))))
    steps = (Store("even", Index(), more), Store("out", i, Load("even", (Index(),))))
    inner: Body = (*add(halves[0], 0), *add(halves[1], 1), *((Store("out", i, total),) if together else steps))
    for half in halves:
        inner = (Alloc(half, inner),)
    body = (For("i", 0, rows, Kind.SERIAL, inner),)
    program = TileProgram("halves", (replace(out, name="out"), replace(x, name="x")), 1, body, (), 1, ())
    findings = prove(RKernel("halves", operation, program))
    assert findings and not any(f.broken for f in findings), findings


def test_a_layout_has_one_place_for_each_element() -> None:
    blocked = Layout((Digit(1, 16), Digit(0), Digit(1, 1, 16)))
    assert covers(blocked, (3, 40)) and covers(blocked, (3, 16))
    assert not covers(Layout((Digit(1, 16), Digit(0), Digit(1, 1, 8))), (3, 40))  # a digit is missing
    assert not covers(Layout((Digit(1, 32), Digit(0), Digit(1, 1, 32))), (3, 2, 64))  # of another dimension
    assert not covers(Layout((Digit(0),)), (3, 2))


def test_findings_name_their_rule() -> None:
    assert str(Finding("R201", "x")) == "R201 inside: x"
    assert str(Finding("R207", "x", broken=False)) == "R207 flows: x (not shown)"
    assert all(rule.name and rule.check for rule in RULES.values())


def traced(body: Body, start: dict[str, NDArray[np.int64]], scratch: tuple[Buffer, ...] = ()) -> tuple[Flow, list[int]]:
    """The elements of x from which the last statement of a program computes what it stores."""
    arguments = Buffer("out", 9, Scope.ARGUMENT), Buffer("x", 9, Scope.ARGUMENT)
    accesses = Accesses(TileProgram("small", arguments, 1, body, (), 1, scratch))
    flow = Flow(accesses, ["x"])
    count = len(next(iter(start.values())))
    last = max(a.statement for a in accesses.found)
    starts = {last: start | {TAG: np.arange(count), ROLE: np.zeros(count, np.int64)}}
    return flow, flow.sources(starts, np.zeros(count, np.int64))["x"][:, 2].tolist()


def test_sums_are_traced_to_where_they_begin() -> None:
    """Whatever adds to a sum leaves what was asked for: what it began with is found, or that nothing was there."""
    i = var("i")
    begins = For("i", 0, 6, Kind.SERIAL, (Store("acc", i, Const(0.0)),))
    adds = For("i", 0, 6, Kind.SERIAL, (Store("acc", i, Load("acc", (i,)) + Load("x", (i,))),))
    stores = For("i", 0, 6, Kind.SERIAL, (Store("out", i, Load("acc", (i,))),))
    for first, unwritten in (((begins,), False), ((), True)):
        body = (Alloc(Buffer("acc", 6, Scope.REGISTER), (*first, adds, stores)),)
        flow, found = traced(body, {"i": np.array([1, 4])})
        assert found == [1, 4] and bool(flow.unwritten) == unwritten


def test_what_is_written_at_one_index_may_be_in_loops_of_another_order() -> None:
    """Of two statements that store at the same index the one counts rows first and the other one columns."""
    i, j = var("i"), var("j")
    at = i * 3 + j

    def nest(outer: str, inner: str, *body: Stmt) -> For:
        return For(outer, 0, 3, Kind.SERIAL, (For(inner, 0, 3, Kind.SERIAL, body),))

    first = nest("i", "j", Store("t", at, Load("x", (at,))))
    second = nest("j", "i", Store("t", at, Load("t", (at,)) * Load("x", (j * 3 + i,))))
    stores = nest("i", "j", Store("out", at, Load("t", (at,))))
    scratch = (Buffer("t", 9, Scope.LOCAL),)
    for row, column in product(range(3), repeat=2):
        flow, found = traced((first, second, stores), {"i": np.array([row]), "j": np.array([column])}, scratch)
        assert {row * 3 + column, column * 3 + row} == set(found) and not flow.unwritten
