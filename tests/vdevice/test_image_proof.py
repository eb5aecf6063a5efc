"""Images are proven, not only plans: each fault put into one is stopped, and by the rule that is for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from layers import attention, conv, quantised, recurrent

import rammer
from rammer.errors import VerificationError
from rammer.ir.graph import Graph
from rammer.program import Program
from rammer.vdevice.base import Image
from rammer.vdevice.cpu.build import TABLE
from rammer.vdevice.cpu.table import PUBLISH, TICKETS, Table
from rammer.vdevice.proof.packed import difference
from rammer.vdevice.proof.verify import RULES, verify_image

NETWORKS: dict[str, Callable[[], Graph]] = {
    "LSTM": lambda: recurrent("LSTM", 4, 28, 1, 75, 96, 1),
    "Winograd": lambda: conv(32, 48, 19, 3),
    "quantised": lambda: quantised(32, 40, 14),
    "attention": lambda: attention(28, 96, 4),
}
KERNEL, RTASK, ARGS, FLAGS, AHEAD = range(5)


@pytest.fixture(scope="module", params=NETWORKS)
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    """A network for two vEUs with a matrix unit, which is emulated where it is missing."""
    with closing(
        rammer.compile(NETWORKS[request.param](), "cpu", device=2, arch="x86-64-amx@here", tune_seconds=0)
    ) as found:
        yield found


def changed(image: Image, **fields: object) -> Image:
    """An image with other arrays or header entries in its table."""
    table = Table.from_bytes(image.files[TABLE])
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
        yield "nothing published", "R305", with_slot(int(on), FLAGS, int(slots[on, FLAGS]) & ~PUBLISH)
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
    for name, weight in image.weights.items():
        for what, made in (("an element changed", weight.copy()), ("weights permuted", weight.copy())):
            flat = made.reshape(-1).view(np.uint8)
            if what == "weights permuted":
                flat[:] = np.roll(flat, 64)
            else:
                flat[int(rng.integers(len(flat)))] ^= 1
            if not np.array_equal(flat, weight.reshape(-1).view(np.uint8)):
                yield what, "R307", replace(image, weights={**image.weights, name: made})


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


def test_every_fault_in_a_table_is_stopped(program: Program) -> None:
    assert not rule_of(program.image, program)
    seen = set()
    for what, rule, image in faults(program.image):
        assert rule_of(image, program) in rule.split(), what
        seen.add(what)
    assert len(seen) >= 13
