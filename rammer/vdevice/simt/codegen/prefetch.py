"""Prefetch weights into L2 while an rTask waits: they do not depend on its barrier. Beyond the paper.

Known as: software prefetching.
"""

from __future__ import annotations

import hashlib

from rammer.ir.index import Div, Index, Mod
from rammer.ir.kernel import RKernel
from rammer.ir.tile import TileProgram
from rammer.vdevice.simt.codegen.slices import OperandSlice, slice_of

LEAST_BYTES = 1024  # a smaller part arrives in time without a prefetch
MOST_BYTES = 256 << 10  # more would evict what is needed first
SECTOR_BYTES = 32  # fetch unit of L2


def prefetch_text(kernel: RKernel, copied: frozenset[int], block: int) -> tuple[str, str]:
    """Return name and text of `void name(void *const *args, int rtask, int tid)`, which prefetches static operands.

    Inputs in `copied` are left out: the block's own memory has them. Operands of fewer than `LEAST_BYTES` are skipped.
    Both strings are empty if the rest is nothing, or more than `MOST_BYTES`.
    """
    body = kernel.body
    if not isinstance(body, TileProgram):
        return "", ""
    parts: list[str] = []
    total = 0
    for position, static in enumerate(kernel.operation.static):
        part = slice_of(kernel, position) if static and position not in copied else None
        if part is not None and part.nbytes >= LEAST_BYTES:
            total += part.nbytes
            parts.append(_asking(part, body.num_outputs + position, block))
    if not parts or total > MOST_BYTES:
        return "", ""
    text = "".join(parts)
    name = "a_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    return name, f"MK_TASK void {name}(void *const *args, int rtask, int tid) {{\n{text}}}\n"


def _asking(part: OperandSlice, argument: int, block: int) -> str:
    step = SECTOR_BYTES // part.itemsize
    return (
        f"  for (int n = tid; n < {-(-part.size // step)}; n += {block}) {{\n"
        f"    const int64_t at = {element_text(part, f'n * {step}')};\n"
        f"    if ((uint64_t)at < {part.elements}) "
        f"mk_ahead(MK_TENSOR(const char *, args, {argument}) + at * {part.itemsize});\n"
        "  }\n"
    )


def element_text(part: OperandSlice, place: str) -> str:
    """Return the C expression of the operand's element at position `place` of an rTask's compact copy."""
    values = {name: f"(rtask / {stride} % {extent})".replace(" / 1 ", " ") for name, stride, extent in part.digits}
    for distance, row in reversed(part.folds):
        place = f"(({place}) / {row} * {distance} + ({place}) % {row})"
    return f"(int64_t)({place}) + ({_expression(part.begin, values)})"


def _expression(index: Index, values: dict[str, str]) -> str:
    """Return the C text of an index over digits of an rTask, all of them ≥ 0."""
    terms = [str(index.const)]
    for atom, coefficient in index.terms:
        match atom:
            case Div(arg, by):
                text = f"({_expression(arg, values)}) / {by}"
            case Mod(arg, by):
                text = f"({_expression(arg, values)}) % {by}"
            case str():
                text = values[atom]
        terms.append(f"{text} * (int64_t){coefficient}")
    return " + ".join(terms)
