"""Prefetches: which ones the pass adds to tile programs, that they are hints and no more, and how they are printed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from kernel_harness import SLOW_SPEC, SPEC, Runner, library, operation, random_inputs
from test_every_operator import CASES

from rammer.errors import LoweringError
from rammer.ir.analysis.access import Access, Accesses
from rammer.ir.analysis.simplify import simplify_body
from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.ir.expr import Call, Const, Load, Range, rename_tensors, rewrite
from rammer.ir.index import Index, evaluate, simplify, substitute, var, variables
from rammer.ir.kernel import RKernel
from rammer.ir.tensor import TensorType
from rammer.ir.tile import (
    NEXT,
    Alloc,
    Apply,
    Body,
    Buffer,
    For,
    If,
    Kind,
    Prefetch,
    Scope,
    Stmt,
    Store,
    TileProgram,
    children,
    rewrite_body,
    statements,
    with_children,
)
from rammer.ir.verify.kernel import RULES, Finding, KernelEvidence, prove
from rammer.kernels import candidates
from rammer.vdevice.cpu.codegen import amx
from rammer.vdevice.cpu.codegen.emit import function, translation_unit
from rammer.vdevice.cpu.codegen.prefetch import LARGE_PARTS, LINE, STREAMED, capacity, prefetched
from rammer.vdevice.cpu.codegen.printer import CpuPrinter
from rammer.vdevice.ctext.cfamily import CFamilyPrinter

LANES = 16
NEAR = 48 << 10  # bytes of the nearest cache
ONCE = replace(SPEC, non_temporal=True)
UNIT = replace(SLOW_SPEC, instructions=amx.AMX)
b, h, i, j, k, o, q = map(var, "bhijkoq")
turn = var("rammer_turn")


# small programs


def argument(name: str, size: int) -> Buffer:
    return Buffer(name, size, Scope.ARGUMENT)


def program(body: Body, *inputs: Buffer) -> TileProgram:
    return TileProgram("small", (argument("out", 4096), *inputs), 1, body, (), 1, ())


def serial(name: str, stop: int, *body: Stmt) -> For:
    return For(name, 0, stop, Kind.SERIAL, body)


def lanes(*body: Stmt, start: int = 0) -> For:
    return For("j", start, LANES, Kind.VECTOR, body)


def sums(rows: int, steps: int, row: Index, weight: Index, start: int = 0) -> tuple[Stmt, ...]:
    """A register block of `rows` vectors that goes on for `steps` steps, in registers of its own."""
    at = i * LANES + j
    product = Call("mul", (Load("x", (row,)), Load("w", (weight,))))
    add = Store("acc", at, Call("add", (Load("acc", (at,)), product)))

    def each(stmt: Stmt, start: int = 0) -> For:
        return For("i", 0, rows, Kind.UNROLLED, (lanes(stmt, start=start),))

    body = (
        each(Store("acc", at, Const(0.0))),
        serial("k", steps, each(add, start)),
        each(Store("out", at, Load("acc", (at,)))),
    )
    return (Alloc(Buffer("acc", rows * LANES, Scope.REGISTER), body),)


def taps(rows: int, steps: int, row: Index, *weights: Index) -> tuple[Stmt, ...]:
    """A register block of sums by several loops, `k0`, `k1`, …, one after the other: of each of the weights."""
    (alloc,) = sums(rows, steps, row, weights[0])
    assert isinstance(alloc, Alloc)
    first, _, last = alloc.body
    loops = []
    for n, weight in enumerate(weights):
        ((_, one, _),) = (a.body for a in sums(rows, steps, row, weight) if isinstance(a, Alloc))
        loops.append(replace(one, var=f"k{n}", body=simplify_body(moved_to(one.body, f"k{n}"), {})))
    return (replace(alloc, body=(first, *loops, last)),)


def moved_to(body: Body, name: str) -> Body:
    """A body in which `k` has another name."""
    other = {"k": var(name)}

    def load(value: Load) -> Load:
        return replace(value, index=tuple(substitute(ix, other) for ix in value.index))

    def stmt(s: Stmt) -> Stmt:
        return replace(s, index=substitute(s.index, other), value=rewrite(s.value, load)) if isinstance(s, Store) else s

    return rewrite_body(body, stmt)


def found(program: TileProgram, spec: VDeviceSpec = ONCE) -> dict[str, list[Stmt]]:
    """What prefetches stand at the beginning of which loop, "" for none."""
    places: dict[str, list[Stmt]] = {}

    def walk(body: Body, loop: str) -> None:
        for stmt in body:
            if is_hint(stmt):
                places.setdefault(loop, []).append(stmt)
            else:
                walk(children(stmt), stmt.var if isinstance(stmt, For) else loop)

    walk(prefetched(program, spec).body, "")
    return places


def is_hint(stmt: Stmt) -> bool:
    inside = children(stmt)
    return isinstance(stmt, Prefetch) or (bool(inside) and not isinstance(stmt, Apply) and all(map(is_hint, inside)))


def test_long_sums_ask_for_what_runs_next_and_small_inputs_come_at_once() -> None:
    small = program(
        (serial("b", 2, *sums(8, 64, i * 64 + k, b * 1024 + k * 16 + j)),), argument("x", 512), argument("w", 2048)
    )
    line = Prefetch(NEXT, b * 16 - 32 + k // 4, 1, 2)  # sums of 64 steps ask for 16 lines each
    assert found(small) == {"": [Prefetch("x", Index(), 512)], "k": [If((Range(k % 4, 0, 1),), (line,))]}
    assert capacity(prefetched(small, ONCE)) == 32


def test_tiles_ask_for_pieces_of_the_next_panel() -> None:
    tile = sums(4, 128, h * 512 + i * 128 + k, o * 2048 + k * 16 + j)
    panels = program((serial("o", 3, serial("h", 4, *tile)),), argument("x", 2048), argument("w", 3 * 2048))
    assert found(panels) == {"h": [Prefetch("w", o * 2048 + h * 512 + 2048, 512, 2, once=True)]}
    assert capacity(prefetched(panels, ONCE)) == 0  # four sums take no longer than asking


def test_long_sums_ask_for_pieces_of_the_next_panel_line_by_line() -> None:
    """A panel of 128 lines, past which three tiles of 128 steps walk: 43 lines each, one every other step."""
    tile = sums(8, 128, h * 1024 + i * 128 + k, o * 2048 + k * 16 + j)
    panels = program((serial("o", 3, serial("h", 3, *tile)),), argument("x", 3072), argument("w", 3 * 2048))
    line = Prefetch("w", o * 2048 + h * 688 + 2048 + k // 2 * 16, 16, 2, once=True)
    assert found(panels)["k"][-1] == If((Range(k, 0, 86), Range(k % 2, 0, 1)), (line,))
    short = sums(8, 30, h * 240 + i * 30 + k, o * 1920 + k * 64 + j)
    bursts = program((serial("o", 3, serial("h", 3, *short)),), argument("x", 3072), argument("w", 3 * 1920))
    assert found(bursts)["h"] == [Prefetch("w", o * 1920 + h * 624 + 1920, 624, 2, once=True)]


def test_sums_one_after_another_share_the_lines_of_a_panel() -> None:
    """Three taps of 16 steps read a panel of 144 lines, three rows of it in turn, past which three tiles walk: each of
    nine blocks of 48 steps asks for 16 lines, one every other step of the first two taps."""
    tile = serial(
        "q", 3, *taps(8, 16, h * 128 + i * 16 + k, *(o * 2304 + q * 768 + n * 256 + k * 16 + j for n in range(3)))
    )
    panels = program((serial("o", 3, serial("h", 3, tile)),), argument("x", 4096), argument("w", 3 * 2304))
    places = found(panels)
    for n, name in enumerate(("k0", "k1", "k2")):
        index = o * 2304 + h * 768 + q * 256 + 2304 + var(name) // 2 * 16 + n * 8 * 16
        due = Range(var(name) % 2, 0, 1)
        assert places.get(name) == ([If((due,), (Prefetch("w", index, 16, 2, once=True),))] if n < 2 else None)
    asked = {
        (o_, line)
        for o_, h_, q_, n, k_ in product(range(3), range(3), range(3), range(2), range(0, 16, 2))
        for line in [(o_ * 2304 + h_ * 768 + q_ * 256 + 2304 + k_ // 2 * 16 + n * 128) // 16]
    }
    assert asked == {(o_, line) for o_ in range(3) for line in range((o_ + 1) * 144, (o_ + 2) * 144)}


def test_one_of_several_nests_asks_for_the_panel_that_all_of_them_read() -> None:
    """The first: for 128 lines in four tiles of 32 steps, or in two of two taps of 32 steps each."""
    w = o * 2048 + q * 512 + k * 16 + j
    x = i * 32 + k
    for first in (serial("q", 4, *sums(8, 32, x, w)), serial("q", 2, *taps(8, 32, x, w, w + 1024))):
        second = serial("q", 4, *sums(8, 32, x + 256, w))
        tiles = serial("o", 3, serial("h", 4, first, second))
        small = program((tiles,), argument("x", 4096), argument("w", 6144))
        made = list(statements(prefetched(small, ONCE).body))
        asked = {s for s in made if isinstance(s, Prefetch) and s.buffer == "w"}
        nests = [stmt for stmt in made if isinstance(stmt, For) and stmt.var == "q"]
        inside = [{s for s in statements(nest.body) if s in asked} for nest in nests]
        assert inside[0] == asked and asked and not inside[1]
        lines = {
            evaluate(s.index, {"o": 0, "h": h_, "q": q_, name: k_}) // 16 + n
            for s in asked
            for name in variables(s.index) & {"k", "k0", "k1"}
            for h_, q_, k_ in product(range(4), range(first.stop), range(32))
            for n in range(s.size // 16)
        }
        assert set(range(128, 256)) <= lines


def test_sums_ask_for_the_part_that_is_transformed_after_them() -> None:
    """Of weights as large as a cache a part is read in two pieces, transformed, and summed in four blocks: two blocks
    ask for each piece of the next part; the last part is followed by the first one."""
    piece, blocks = 64 * 16, 4
    w = o * piece + q * (LARGE_PARTS // 2) + k * 16 + j
    made = serial("q", 2, serial("k", 64, lanes(Store("u", q * piece + k * 16 + j, Load("w", (w,))))))
    summed = serial("b", blocks, *sums(8, 64, i * 64 + k, b * 512 + k * 16 + j))
    parts = program(
        (serial("o", 8, made, replace(summed, body=reading(summed.body, "u"))),),
        argument("x", 512),
        argument("w", LARGE_PARTS),
    )
    index = (o + 1) % 8 * piece + b // 2 * (LARGE_PARTS // 2) + b % 2 * 512 + k // 2 * 16
    line = Prefetch("w", simplify(index, {"o": (0, 7), "b": (0, 3), "k": (0, 63)}), 16, 2)
    assert If((Range(k % 2, 0, 1),), (line,)) in found(parts)["k"]
    small = replace(parts, arguments=(*parts.arguments[:2], argument("w", LARGE_PARTS - 1)))
    assert not any(getattr(s, "buffer", "") == "w" for stmts in found(small).values() for s in statements(tuple(stmts)))


def reading(body: Body, name: str) -> Body:
    """A body that loads its weights from another buffer."""

    def stmt(s: Stmt) -> Stmt:
        return replace(s, value=rename_tensors(s.value, {"w": name})) if isinstance(s, Store) else s

    return rewrite_body(body, stmt)


def test_few_rows_ask_for_several_lines_in_a_step() -> None:
    """A panel of 298 lines in 100 steps, past which two tiles walk: 149 lines each, two in a step, and one is left."""
    rows = sums(8, 100, h * 800 + i * 100 + k, o * 4800 + k * 48 + j)
    panels = program((serial("o", 3, serial("h", 2, *rows)),), argument("x", 1600), argument("w", 3 * 4800))
    wide = Prefetch("w", o * 4800 + h * 2384 + 4800 + k * 32, 32, 2, once=True)
    assert If((Range(k, 0, 74),), (wide,)) in found(panels)["k"]


def test_walks_past_strips_of_panels_ask_for_the_next_strip() -> None:
    """Two panels of 128 lines, past both of which four tiles walk: 32 lines for each of the eight sums."""
    tile = sums(8, 128, h * 1024 + i * 128 + k, o * 4096 + q * 2048 + k * 16 + j)
    strips = program(
        (serial("o", 3, serial("h", 4, serial("q", 2, *tile))),), argument("x", 4096), argument("w", 12288)
    )
    line = Prefetch("w", o * 4096 + h * 1024 + q * 512 + 4096 + k // 4 * 16, 16, 2, once=True)
    assert If((Range(k % 4, 0, 1),), (line,)) in found(strips)["k"]


@pytest.mark.parametrize(
    ("steps", "near", "once"), [(384, NEAR, True), (385, NEAR, False), (256, 32 << 10, True), (257, 32 << 10, False)]
)
def test_only_short_panels_may_leave_caches_first(steps: int, near: int, once: bool) -> None:
    """While tiles walk past a long one, the nearest cache does not hold it, and others may have dropped it already."""
    tile = sums(8, steps, h * 8 * steps + i * steps + k, o * (16 * steps) + k * 16 + j)
    panels = program((serial("o", 3, serial("h", 4, *tile)),), argument("x", 32 * steps), argument("w", 48 * steps))
    core = replace(ONCE, memory=(MemoryLevel("L1", near, "veu"),))
    hints = [s for stmt in found(panels, core)["k"] for s in statements((stmt,)) if isinstance(s, Prefetch)]
    assert [hint.once for hint in hints if hint.buffer == "w"] == [once]


def test_nothing_is_said_to_be_read_once_where_that_is_slow() -> None:
    stream = program(sums(4, 1 << 14, k, k * 64 + i * 16 + j), argument("x", 1 << 14), argument("w", STREAMED))
    tile = sums(8, 128, h * 1024 + i * 128 + k, o * 2048 + k * 16 + j)
    panels = program((serial("o", 3, serial("h", 4, *tile)),), argument("x", 4096), argument("w", 3 * 2048))
    for small in (stream, panels):
        quick, slow = (statements(prefetched(small, replace(SPEC, non_temporal=said)).body) for said in (True, False))
        quickly = [s for s in quick if isinstance(s, Prefetch) and s.buffer == "w"]
        slowly = [s for s in slow if isinstance(s, Prefetch) and s.buffer == "w"]
        assert quickly and {s.once for s in quickly} == {True} and {s.level for s in quickly} == {2}
        assert slowly == [replace(s, once=False) for s in quickly]


def test_large_weights_that_are_read_once_come_some_way_ahead() -> None:
    stream = program(sums(4, 1 << 14, k, k * 64 + i * 16 + j), argument("x", 1 << 14), argument("w", STREAMED))
    ahead = Prefetch("w", k * 64 + 2048, 64, 2, once=True)
    assert found(stream) == {"k": [ahead]}
    near = program(sums(4, 1 << 13, k, k * 64 + i * 16 + j), argument("x", 1 << 13), argument("w", STREAMED // 2))
    assert found(near) == {}
    again = serial("h", 3, *sums(4, 1 << 14, h + k, k * 64 + i * 16 + j))
    rows = program((again,), argument("x", 1 << 15), argument("w", STREAMED))
    assert ahead not in found(rows).get("k", [])


def test_lines_that_loops_write_to_large_outputs_come_ahead_for_writing() -> None:
    def copy(step: int, size: int) -> TileProgram:
        move = For("i", 0, 2, Kind.UNROLLED, (lanes(Store("out", k * step + i * 16 + j, Load("x", (k * 32 + j,)))),))
        return replace(
            program((serial("k", 64, move),), argument("x", 4096)),
            arguments=(argument("out", size), argument("x", 4096)),
        )

    large = ONCE.l2.nbytes // 4 + 1
    assert found(copy(32, large)) == {"k": [Prefetch("out", k * 32 + 256, 32)]}
    assert found(copy(48, large)) == found(copy(32, large - 1)) == {}  # not contiguous; stays in the private cache
    text = function(CpuPrinter(prefetched(copy(32, large), ONCE), LANES)).text
    assert re.search(r"__builtin_prefetch\(&out\[32\*k \+ 256 \+ rammer_n\], 1, 3\)", text), text


def test_what_is_added_to_sums_comes_while_they_are_computed() -> None:
    """Four lines in two blocks of sums: two lines each."""
    more = serial("q", 4, lanes(Store("out", q * 16 + j, Load("c", (q * 16 + j + 64,)))))
    block = serial("b", 2, *sums(4, 64, k, k * 64 + i * 16 + j))
    following = program((block, more), argument("x", 2048), argument("w", 4096), argument("c", 128))
    lines = For("rammer_turn", 0, 2, Kind.UNROLLED, (Prefetch("c", b * 32 + turn * 16 + 64),))
    assert found(following) == {"b": [lines]}
    assert found(replace(following, body=(more, block)))[""] == [Prefetch("c", Index(), 128)]  # not after them: at once


def test_pieces_of_vectors_are_not_repeated() -> None:
    """Each takes the compiler as long as many whole vectors: neither for speed, nor because the loop asks."""
    for start in (0, 4):
        block = serial("b", 2, *sums(8, 64, i * 64 + k, b * 1024 + k * 16 + j, start))
        hinted = prefetched(program((block,), argument("x", 2048), argument("w", 2048)), ONCE)
        text = function(CpuPrinter(hinted, LANES)).text
        assert ("vload_from" in text) == bool(start)
        assert bool(re.search(r"#pragma unroll 4\s+for \(long k ", text)) == (not start)
        assert bool(capacity(hinted)) == (not start)


# hints, and nothing else


def without(body: Body) -> Body:
    """A body without prefetches."""

    def plain(stmt: Stmt) -> Stmt:
        return replace(stmt, meanwhile=None) if isinstance(stmt, Apply) else stmt

    def kept(body: Body) -> Body:
        return tuple(with_children(s, kept(children(s))) for s in body if not is_hint(s))

    return kept(rewrite_body(body, plain))


def hinted(kernel: RKernel) -> RKernel:
    assert isinstance(kernel.body, TileProgram)
    return replace(kernel, body=prefetched(kernel.body, ONCE))


def prefetches(kernel: RKernel) -> list[Prefetch]:
    """Each once."""
    return list(dict.fromkeys(s for s in statements(kernel.body.body) if isinstance(s, Prefetch)))


def accesses(kernel: RKernel) -> list[object]:
    """What statements touch, but for the loops, whose bodies differ."""

    def plain(a: Access) -> object:
        return replace(a, loops=()), [(lp.var, lp.start, lp.stop, lp.kind) for _, lp in a.loops]

    return [str(plain(a)) for a in Accesses(kernel.body).found]


def broken(kernel: RKernel) -> list[Finding]:
    return list(RULES["R209"].check(KernelEvidence(kernel, kernel.body)))


@pytest.mark.parametrize("name", CASES)
def test_nothing_but_hints_is_added(name: str) -> None:
    for spec in (SPEC, SLOW_SPEC, UNIT):
        for kernel in candidates(CASES[name], spec):
            made = hinted(kernel)
            assert without(made.body.body) == without(kernel.body.body)
            assert accesses(made) == accesses(kernel)
            assert not broken(made), f"{kernel.name}: {broken(made)[0]}"


def unit_product() -> RKernel:
    """Rows pass by panels of encoded weights, for each of which the next one is asked for."""
    op = operation("matmul", TensorType((192, 64)), TensorType((64, 160)), static=["b"])
    near = MemoryLevel("L2", 32 << 10, "veu", 250.0)  # in which the weights do not stay
    spec = replace(SPEC, instructions=amx.AMX, clock_ghz=1 / 64, memory=(near,))
    return next(k for k in candidates(op, spec) if any(s.encoding for s in prefetches(hinted(k))))


def cell() -> RKernel:
    types = (TensorType((1, 4, 256)), TensorType((1, 256)), TensorType((1, 256)), TensorType((4, 256, 256)))
    return candidates(operation("lstm_cell", *types, static=["r"]), SPEC)[0]


@pytest.mark.parametrize("make", [cell, unit_product], ids=lambda f: f.__name__)
def test_results_are_the_same_bit_by_bit(make: Callable[[], RKernel]) -> None:
    kernel = make()
    assert prefetches(hinted(kernel))
    texts = [function(CpuPrinter(k.body, LANES)) for k in (kernel, hinted(kernel))]
    spec = replace(SPEC, instructions=amx.AMX)
    lib, inputs = library(translation_unit(texts, spec), spec.arch), random_inputs(kernel.operation)
    plain, with_hints = (Runner(kernel, lib, text.symbol, inputs).run() for text in texts)
    for got, want in zip(with_hints, plain, strict=True):
        np.testing.assert_array_equal(got, want)


# misplaced ones


def moved(kernel: RKernel, change: Callable[[Prefetch], Iterable[Prefetch]]) -> Iterator[RKernel]:
    """Kernels that have another prefetch in place of one of theirs."""
    program = kernel.body
    for hint in prefetches(kernel):
        for other in change(hint):
            body = rewrite_body(program.body, lambda s, hint=hint, other=other: other if s == hint else s)
            yield replace(kernel, body=replace(program, body=body))


@pytest.mark.parametrize("make", [cell, unit_product], ids=lambda f: f.__name__)
def test_misplaced_prefetches_are_found(make: Callable[[], RKernel]) -> None:
    kernel = hinted(make())
    assert not prove(kernel)

    def misplaced(hint: Prefetch) -> Iterator[Prefetch]:
        yield replace(hint, buffer="nothing")
        yield from (replace(hint, index=hint.index + far) for far in (1 << 30, -(1 << 30)) if hint.buffer != NEXT)

    others = list(moved(kernel, misplaced))
    assert len(others) >= 4
    for other in others:
        assert {f.rule for f in prove(other) if f.broken} == {"R209"}


def test_misplaced_prefetches_for_writing_are_found() -> None:
    """Of an output that does not fit the private cache."""
    small = replace(SPEC, memory=(MemoryLevel("L2", 4 << 10, "veu", 250.0),))
    plain = candidates(operation("relu", TensorType((75, 96))), small)[0]
    kernel = replace(plain, body=prefetched(plain.body, small))
    assert {hint.buffer for hint in prefetches(kernel)} == {kernel.body.arguments[0].name} and not prove(kernel)

    def misplaced(hint: Prefetch) -> Iterator[Prefetch]:
        yield replace(hint, buffer="nothing")
        yield from (replace(hint, index=hint.index + far) for far in (1 << 30, -(1 << 30)))

    for other in moved(kernel, misplaced):
        assert {f.rule for f in prove(other) if f.broken} == {"R209"}


@pytest.mark.parametrize("make", [cell, unit_product], ids=lambda f: f.__name__)
def test_lines_of_what_runs_next_are_asked_for_once(make: Callable[[], RKernel]) -> None:
    kernel = hinted(make())

    def again(hint: Prefetch) -> Iterator[Prefetch]:
        if hint.buffer == NEXT:
            yield replace(hint, index=hint.index + 1)
            yield replace(hint, size=hint.size + 1)
            for n, (atom, coef) in enumerate(hint.index.terms):
                terms = (*hint.index.terms[:n], *([(atom, coef - 1)] if coef > 1 else []), *hint.index.terms[n + 1 :])
                yield replace(hint, index=Index(hint.index.const, terms))

    others = list(moved(kernel, again))
    assert len(others) > 3
    for other in others:
        assert broken(other)


# in text


def test_a_language_without_prefetches_leaves_them_out() -> None:
    small = program((Prefetch("x", Index(), 64), serial("i", 4, Store("out", i, Load("x", (i,))))), argument("x", 64))
    assert "x" in "".join(CFamilyPrinter(small, 4).body(small.body, 0))
    assert "prefetch" not in "".join(CFamilyPrinter(small, 4).body(small.body, 0))
    assert CpuPrinter(small, 4).body(small.body[:1], 0) == [
        "#pragma unroll 4",
        f"for (long rammer_n = 0; rammer_n < 64; rammer_n += {LINE}) __builtin_prefetch(&x[rammer_n], 0, 3);",
    ]
    once = CpuPrinter(small, 4).body((Prefetch("x", Index(), 64, once=True),), 0)
    assert once[-1].endswith("__builtin_prefetch(&x[rammer_n], 0, 0);")  # C's word for what leaves caches first


def test_what_runs_next_is_asked_for_in_loops() -> None:
    """Where the request begins is computed before a loop: without one it has no place."""
    small = program((Prefetch(NEXT, Index(-1)),))
    with pytest.raises(LoweringError, match=f"small: {NEXT}"):
        CpuPrinter(small, 4).body(small.body, 0)


def test_prefetches_are_simplified_and_keep_nothing_alive() -> None:
    once = For("i", 3, 4, Kind.SERIAL, (Prefetch("x", i * 8 + k // 16),))
    assert simplify_body((once,), {"k": (0, 15)}) == (Prefetch("x", Index(24)),)
    acc = Alloc(Buffer("acc", 1, Scope.REGISTER), (Store("acc", Index(), Const(0.0)), Prefetch("x", Index())))
    assert simplify_body((acc,), {}) == ()
