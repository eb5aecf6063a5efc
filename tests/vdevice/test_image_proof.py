"""Images are proven, not only plans: each fault put into one is stopped, and by the rule that is for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from layers import attention, conv, matmul, quantised, recurrent

import rammer
from rammer.errors import VerificationError
from rammer.ir.graph import Graph
from rammer.runtime.program import Program
from rammer.vdevice.base import Image
from rammer.vdevice.cpu.runtime.table import SIGNALS_DONE, TABLE, TICKETS, Table
from rammer.vdevice.image import placement
from rammer.vdevice.ipu.codegen import placement as ipu_placement
from rammer.vdevice.ipu.codegen.build import TABLES, emit
from rammer.vdevice.ipu.codegen.tables import plan_text
from rammer.vdevice.ipu.spec import parse_arch
from rammer.vdevice.proof.decoded import SCRATCH
from rammer.vdevice.proof.verify import RULES, verify_image
from rammer.vdevice.simt.codegen.table import Streams
from rammer.vdevice.simt.decode import COPIES

NETWORKS: dict[str, Callable[[], Graph]] = {
    "LSTM": lambda: recurrent("LSTM", 4, 28, 1, 75, 96, 1),
    "Winograd": lambda: conv(32, 48, 19, 3),
    "quantised": lambda: quantised(32, 40, 14),
    "attention": lambda: attention(28, 96, 4),
}
KERNEL, RTASK, ARGS, FLAGS, AHEAD = range(5)


def compiled(name: str, target: str, **options: object) -> Program:
    return rammer.compile(NETWORKS[name](), target, tune_seconds=0, **options)


def changed(image: Image, of: type[Table] | type[Streams] = Table, **fields: object) -> Image:
    """An image with other arrays or header entries in its table."""
    table = of.from_bytes(image.files[TABLE])
    arrays = {k: v for k, v in fields.items() if isinstance(v, np.ndarray)}
    header = {**table.header, **{k: v for k, v in fields.items() if k not in arrays}}
    return replace(image, files={**image.files, TABLE: replace(table, header=header, **arrays).to_bytes()})


def faults(image: Image) -> Iterator[tuple[str, str, Image]]:
    """(what is wrong, the rule that is for it, the image)."""
    table = Table.from_bytes(image.files[TABLE])
    slots, waits, header = table.slots, table.waits, table.header
    rng = np.random.default_rng(0)
    tasks, barriers = np.flatnonzero(slots[:, KERNEL] >= 0), np.flatnonzero(slots[:, KERNEL] < 0)

    def with_slot(n: int, column: int, value: int) -> Image:
        made = slots.copy()
        made[n, column] = value
        return changed(image, slots=made)

    used = {int(slots[n, ARGS]) + k for n in tasks for k in range(header["kernels"][slots[n, KERNEL]][2])}
    for n in rng.permutation(sorted(used))[:12].tolist():
        offsets = table.arg_offset.copy()
        offsets[n] += 64
        yield "operand + 64", "R306" if table.arg_base[n] < 0 else "R307", changed(image, arg_offset=offsets)
    bases = table.arg_base.copy()
    bases[min(used)] = 0 if len(image.weights) else 5
    yield "operand in a constant", "R306", changed(image, arg_base=bases)
    for n in rng.permutation(tasks)[:5].tolist():
        yield "rTask + 1", "R302", with_slot(n, RTASK, int(slots[n, RTASK]) + 1)
        if len(header["kernels"]) > 1:
            other = (int(slots[n, KERNEL]) + 1) % len(header["kernels"])
            yield "another kernel", "R303", with_slot(n, KERNEL, other)
        m = int(rng.choice(tasks[tasks != n]))
        if (slots[n] != slots[m]).any():
            made = slots.copy()
            made[[n, m]] = made[[m, n]]
            operators = table.operators.copy()
            operators[[n, m]] = operators[[m, n]]
            yield "slots exchanged", "R302", changed(image, slots=made, operators=operators)
            yield "slots exchanged, but for reports", "R302 R303 R306", changed(image, slots=made)
    for n in rng.permutation(barriers)[:5].tolist():
        yield "waits dropped", "R304", with_slot(n, RTASK, 0)
        row = int(slots[n, ARGS])
        if waits[row, 1]:
            less = waits.copy()
            less[row, 1] -= 1
            yield "a wait one slot less far", "R304", changed(image, waits=less)
        on = table.bounds[_program(table, n) * header["num_veus"] + waits[row, 0]] + waits[row, 1]
        yield "nothing published", "R305", with_slot(int(on), FLAGS, int(slots[on, FLAGS]) & ~SIGNALS_DONE)
    if header["scratch_bytes"]:
        yield "one scratch for all", "R309", changed(image, scratch_stride=0)
        yield "half the scratch", "R309", changed(image, scratch_bytes=header["scratch_bytes"] // 2)
    for names in ("inputs", "outputs"):
        base, offset = header[names][0]
        yield "port moved", "R308", changed(image, **{names: [[base, offset + 64], *header[names][1:]]})
    yield "a part too many", "R310", with_slot(int(tasks[0]), TICKETS, 99)
    aheads = np.concatenate([table.aheads, [[-1, header["arena_bytes"], 2]]])
    slot = slots.copy()
    slot[tasks[0], AHEAD] = len(aheads) - 1
    yield "asked for beyond the arena", "R310", changed(image, aheads=aheads, slots=slot)
    yield "arena too small", "R306", changed(image, arena_bytes=header["arena_bytes"] - 64)
    yield "table cut off", "R301", replace(image, files={**image.files, TABLE: image.files[TABLE][:-64]})
    yield from weight_faults(image)


def _program(table: Table, slot: int) -> int:
    lane = int(np.searchsorted(table.bounds, slot, "right")) - 1
    return lane // int(table.header["num_veus"])


def rule_of(image: Image, program: Program) -> str:
    """The rule that an image breaks."""
    try:
        verify_image(image, program.plan, program._vdevice)
    except VerificationError as error:
        assert error.rule in RULES and len(str(error)) < 600
        return error.rule
    return ""


def gpu_faults(image: Image) -> Iterator[tuple[str, str, Image]]:
    """The same of a GPU's program."""
    table = Streams.from_bytes(image.files[TABLE])
    rows, waits, header = table.instructions, table.waits, table.header
    rng = np.random.default_rng(0)
    tasks, waiting = np.flatnonzero(rows[:, 0] >= 0), np.flatnonzero(rows[:, 5] > 0)
    functions = len(set(rows[tasks, 0].tolist()))

    def with_row(n: int, column: int, value: int) -> Image:
        made = rows.copy()
        made[n, column] = value
        return changed(image, Streams, instructions=made)

    used = {int(rows[n, 2]) + k for n in tasks for k in range(rows[n, 3])}
    for n in rng.permutation(sorted(used))[:12].tolist():
        offsets = table.arg_offset.copy()
        offsets[n] += 64
        rule = {-1: "R306", SCRATCH: "R307"}.get(int(table.arg_base[n]), "R307")
        yield "operand + 64", rule, changed(image, Streams, arg_offset=offsets)
    for n in rng.permutation(tasks)[:5].tolist():
        yield "rTask + 1", "R302", with_row(n, 1, int(rows[n, 1]) + 1)
        if functions > 1:
            yield "another kernel", "R303", with_row(n, 0, (int(rows[n, 0]) + 1) % functions)
        m = int(rng.choice(tasks[tasks != n]))
        made, operators = rows.copy(), table.operators.copy()
        made[np.ix_([n, m], [0, 1, 2, 3])] = made[np.ix_([m, n], [0, 1, 2, 3])]
        operators[[n, m]] = operators[[m, n]]
        if (made != rows).any():
            yield "slots exchanged", "R302", changed(image, Streams, instructions=made, operators=operators)
    for n in rng.permutation(waiting)[:5].tolist():
        yield "waits dropped", "R304", with_row(n, 5, 0)
        first, count = int(rows[n, 4]), int(rows[n, 5])
        veu = (int(np.searchsorted(table.bounds, n, "right")) - 1) % header["num_veus"]
        other = first + int(np.argmax(waits[first : first + count, 0] != veu))
        if waits[other, 1]:
            less = waits.copy()
            less[other, 1] -= 1
            yield "a wait one slot less far", "R304", changed(image, Streams, waits=less)
        lanes = (int(np.searchsorted(table.bounds, n, "right")) - 1) // header["num_veus"] * header["num_veus"]
        begin, end = table.bounds[lanes + waits[other, 0]], table.bounds[lanes + waits[other, 0] + 1]
        on = begin + int(np.argmax(rows[begin:end, 7] >= waits[other, 1]))
        yield "nothing published", "R305", with_row(on, 6, 0)
        yield "published too early", "R305", with_row(on, 6, int(rows[on, 6]) + 1)
    if header["scratch_bytes"]:
        yield "little shared memory", "R309", changed(image, Streams, shared_bytes=1024)
    for copying in np.flatnonzero(rows[:, 0] == COPIES)[:3].tolist():
        for k, what in ((0, "copied from elsewhere"), (1, "copied to elsewhere"), (2, "a quarter copied")):
            offsets = table.arg_offset.copy()
            at = int(rows[copying, 2]) + k
            offsets[at] = offsets[at] // 4 if k == 2 else offsets[at] + 64
            yield what, "R307", changed(image, Streams, arg_offset=offsets)
    base, offset = header["outputs"][0]
    yield "port moved", "R308", changed(image, Streams, outputs=[[base, offset + 64]])
    yield from weight_faults(image)


def weight_faults(image: Image) -> Iterator[tuple[str, str, Image]]:
    rng = np.random.default_rng(0)
    for name, weight in image.weights.items():
        for what, made in (("an element changed", weight.copy()), ("weights permuted", weight.copy())):
            flat = made.reshape(-1).view(np.uint8)
            if what == "weights permuted":
                flat[:] = np.roll(flat, 64)
            else:
                flat[int(rng.integers(len(flat)))] ^= 1
            if not np.array_equal(flat, weight.reshape(-1).view(np.uint8)):
                yield what, "R307", replace(image, weights={**image.weights, name: made})


def tile_faults(image: Image, arch: str) -> Iterator[tuple[str, str, Image]]:
    """The same of an IPU's program: what is placed is changed, and written again."""
    assert image.plan is not None
    placed, _ = emit(image.plan, parse_arch(arch))
    rng = np.random.default_rng(0)

    def written(**changes: object) -> Image:
        return replace(image, files={**image.files, TABLES: plan_text(replace(placed, **changes)).encode()})

    def with_group(n: int, **changes: object) -> Image:
        groups = list(placed.groups)
        groups[n] = replace(groups[n], **changes)
        return written(groups=tuple(groups))

    assert written().files == image.files
    for n in rng.permutation(len(placed.groups))[:6].tolist():
        group = placed.groups[n]
        for k, (variable, base) in enumerate(group.arguments):
            some = list(group.arguments)
            some[k] = variable, base + 16
            where = "R303 R304 R306 R307 R308"  # as far as it takes until somebody misses something
            yield "operand + 16 elements", where, with_group(n, arguments=tuple(some))
        yield "a vertex on another tile", "R302", with_group(n, tiles=(group.tiles + 1) % placed.arch.tiles)
        if placed.num_sets > 1:
            sets = np.where(group.sets == 0, placed.num_sets - 1, 0)
            yield "another compute set", "R302 R303 R304 R306", with_group(n, sets=sets)
        other = next((g.table for g in placed.groups if g.table is not group.table), None)
        if other and len(other.chosen) == len(group.table.chosen):
            yield "another kernel", "R303 R306", with_group(n, table=other)
    for n in (0, len(placed.steps) - 1):
        yield "a step dropped", "R302 R303 R304", written(steps=placed.steps[:n] + placed.steps[n + 1 :])
    for tensor in image.plan.graph.outputs:
        variable, base = placed.ports[tensor]
        yield "port moved", "R308", written(ports={**placed.ports, tensor: (variable, base + 1)})
    yield from weight_faults(image)


def all_stopped(program: Program, found: Iterator[tuple[str, str, Image]], kinds: int) -> None:
    assert not rule_of(program.image, program)
    seen = set()
    for what, rule, image in found:
        assert rule_of(image, program) in rule.split(), what
        seen.add(what)
    assert len(seen) >= kinds, seen


@pytest.mark.parametrize("name", NETWORKS)
def test_every_fault_in_a_table_is_stopped(name: str) -> None:
    """For two vEUs with a matrix unit, which is emulated where it is missing."""
    with closing(compiled(name, "cpu", device=2, arch="x86-64-amx@here")) as program:
        all_stopped(program, faults(program.image), 13)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_fault_in_streams_is_stopped(name: str) -> None:
    with closing(compiled(name, "cuda", device="emulator:4")) as program:
        all_stopped(program, gpu_faults(program.image), 8)


def test_copies_in_shared_memory_are_checked() -> None:
    """Weights that stay on their vEUs: what is copied, from where and to where."""
    graph = recurrent("LSTM", 4, 6, 1, 75, 96, 1)
    with closing(rammer.compile(graph, "cuda", device="emulator:4", policy="stationary", tune_seconds=0)) as program:
        kinds = {what: rule for what, rule, _ in gpu_faults(program.image)}
        assert "copied from elsewhere" in kinds
        all_stopped(program, gpu_faults(program.image), 12)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_fault_on_tiles_is_stopped(name: str) -> None:
    with closing(compiled(name, "ipu", device="emulator", arch="gc2:16")) as program:
        all_stopped(program, tile_faults(program.image, "gc2:16"), 6)


@pytest.mark.parametrize("target", ["cpu", "cuda", "ipu"])
def test_a_writer_that_errs_is_stopped(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are permuted as they are packed, and operands 64 bytes off, end the compilation."""
    options = {"cuda": {"device": "emulator:2"}, "ipu": {"device": "emulator", "arch": "gc2:8"}}.get(
        target, {"device": 2}
    )
    graph = matmul(1, 20, 48, columns=75)
    monkeypatch.setenv("RAMMER_CHECK", "0")  # trials would see some of it, as long as kernels are tried out

    def stopped(rule: str) -> None:
        with pytest.raises(VerificationError) as caught:
            rammer.compile(graph, target, tune_seconds=0, **options).close()
        assert caught.value.rule in rule.split()

    arrange = placement.arrange
    with monkeypatch.context() as patched:
        if target == "ipu":
            patched.setattr(ipu_placement, "constant_value", lambda g, t: np.roll(placement.constant_value(g, t), 1))
        else:
            patched.setattr(placement, "arrange", lambda array, layout, out: arrange(np.roll(array, 1), layout, out))
        stopped("R307")
    finder = ipu_placement._Finder if target == "ipu" else placement.ArenaPlacement
    find = finder.find
    with monkeypatch.context() as patched:
        patched.setattr(finder, "find", lambda self, *of: (find(self, *of)[0], find(self, *of)[1] + 64))
        stopped("R306 R307 R308 R301")


def test_what_cannot_be_read_back_is_said() -> None:
    with closing(rammer.compile(matmul(1, 4, 8, columns=3), "interpreter", tune_seconds=0)) as program:
        assert "image not verified: vDevice 'interpreter' has no decoder" in program.plan.notes
        assert "image not verified" in str(program.report())
