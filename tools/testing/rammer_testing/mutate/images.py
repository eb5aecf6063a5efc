"""Define bugs behind the proof: in packed constants, in tables that vEUs walk, and in the runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from rammer.ir.tensor import Array
from rammer.vdevice.cpu.codegen.compile import KernelSource
from rammer.vdevice.cpu.runtime.table import SIGNALS_DONE, TICKETS
from rammer.vdevice.ipu.codegen.program import PoplarProgram
from rammer_testing.mutate.bug import HOST, IPU, SIMT, Bug, Hit, Plant, afterwards, bug, once

HOSTED = (*HOST, *SIMT)  # targets whose operands have addresses
TABLE = "rammer.vdevice.cpu.codegen.build:Table"
STREAMS = "rammer.vdevice.simt.codegen.image:Streams"
Fields = dict[str, Any]


def _arranged(change: Callable[[Array], None]) -> Plant:
    """Change a constant after it was packed into another layout."""

    def planted(original: Any, hit: Hit) -> Any:
        def erring(array: Array, layout: Any, out: Array) -> None:
            original(array, layout, out)
            flat = out.reshape(-1)
            if layout is not None and flat.size > 64 and flat.dtype.kind != "V":
                before = flat.copy()
                change(flat)
                if not np.array_equal(before, flat):
                    hit()

        return erring

    return planted


def _roll(flat: Array) -> None:
    flat[:] = np.roll(flat, 16)


def _one(flat: Array) -> None:
    flat[flat.size // 2] = -flat[flat.size // 2] if flat[flat.size // 2] else 1


def _packed(weights: Mapping[str, Array]) -> dict[str, Array] | None:
    """Exchange two constants of one shape."""
    names = list(weights)
    for n, name in enumerate(names):
        for other in names[:n]:
            a, b = weights[name], weights[other]
            if (a.shape, a.dtype) == (b.shape, b.dtype) and a.size > 1 and not np.array_equal(a, b):
                return {**weights, name: b, other: a}
    return None


PACKING: tuple[Bug, ...] = (
    bug("packing", "a packed constant is permuted", "rammer.vdevice.image.placement:arrange", _arranged(_roll), HOSTED),
    bug(
        "packing",
        "a packed constant has one wrong sign",
        "rammer.vdevice.image.placement:arrange",
        _arranged(_one),
        HOSTED,
    ),
    bug(
        "packing",
        "two constants are exchanged",
        "rammer.vdevice.image.placement:ArenaPlacement.pack",
        afterwards(_packed),
        HOSTED,
    ),
)


def _fields(change: Callable[[Fields], bool]) -> Plant:
    """Change the fields of a table."""

    def planted(original: Any, hit: Hit) -> Any:
        class Erring(original):  # type: ignore[misc]  # a dataclass, known at run time
            def __init__(self, header: Fields, **arrays: Array) -> None:
                fields = {k: np.array(v) for k, v in arrays.items()} | {"header": dict(header)}
                if arrays["bounds"].size and change(fields):
                    hit()
                super().__init__(**fields)

        return Erring

    return planted


def _operand(fields: Fields) -> bool:
    """Move an operand's address by 64 bytes, in every second rTask."""
    args = np.flatnonzero(fields["arg_base"] == -1)[1::2]
    fields["arg_offset"][args] += 64
    return bool(args.size)


def _constant(fields: Fields) -> bool:
    """Read another constant."""
    base = fields["arg_base"]
    if base.max(initial=-1) < 1:
        return False
    base[base == 1] = 0
    return True


def _no_waits(fields: Fields) -> bool:
    slots = fields["slots"]
    barriers = np.flatnonzero((slots[:, 0] < 0) & (slots[:, 1] > 0))
    slots[barriers, 1] = 0
    return bool(barriers.size)


def _shorter_waits(fields: Fields) -> bool:
    waits = fields["waits"]
    before = waits.copy()
    waits[:, 1] = np.maximum(waits[:, 1] - 1, 0)
    return not np.array_equal(before, waits)


def _unpublished(fields: Fields) -> bool:
    flags = fields["slots"][:, 3]
    some = np.flatnonzero(flags & SIGNALS_DONE)[:1]
    flags[some] &= ~SIGNALS_DONE
    return bool(some.size)


def _column(table: str, column: int, change: Callable[[Array, Array], Array]) -> Callable[[Fields], bool]:
    """Change a column of all slots that hold an rTask."""

    def changed(fields: Fields) -> bool:
        slots = fields[table]
        rows = np.flatnonzero(slots[:, 0] >= 0)
        before = slots[rows, column].copy()
        slots[rows, column] = change(before, slots[rows])
        return not np.array_equal(before, slots[rows, column])

    return changed


def _next_kernel(numbers: Array, _: Array) -> Array:
    """Exchange the first two functions."""
    return np.where(numbers == 0, 1, np.where(numbers == 1, 0, numbers)) if numbers.max(initial=0) else numbers


def _next_task(numbers: Array, rows: Array) -> Array:
    """Compute the next rTask instead of each one but the last of a function."""
    last = np.array([rows[rows[:, 0] == k, 1].max() for k in rows[:, 0]])
    found: Array = np.minimum(numbers + 1, last)
    return found


def _exchange(table: str) -> Callable[[Fields], bool]:
    """Exchange the first and the last rTask of the first lane that has two."""

    def changed(fields: Fields) -> bool:
        slots, bounds = fields[table], fields["bounds"]
        for low, high in pairwise(bounds.tolist()):
            rows = low + np.flatnonzero(slots[low:high, 0] >= 0)
            if len(rows) > 1 and not np.array_equal(slots[rows[0], :3], slots[rows[-1], :3]):
                first, last = slots[rows[0], :3].copy(), slots[rows[-1], :3].copy()
                slots[rows[0], :3], slots[rows[-1], :3] = last, first
                return True
        return False

    return changed


def _small_scratch(fields: Fields) -> bool:
    before = fields["header"]["scratch_bytes"]
    fields["header"]["scratch_bytes"] = before // 4
    return bool(before)


def _port(fields: Fields) -> bool:
    """Move the first output by 64 bytes."""
    base, offset = fields["header"]["outputs"][0]
    fields["header"]["outputs"] = [(base, offset + 64), *fields["header"]["outputs"][1:]]
    return bool(base == -1)


def _more_tickets(fields: Fields) -> bool:
    tickets = fields["slots"][:, TICKETS]
    some = tickets > 0
    tickets[some] += 1
    return bool(some.any())


TABLES: tuple[Bug, ...] = (
    *(
        bug("table", name, TABLE, _fields(change), HOST)
        for name, change in (
            ("an operand's address is 64 bytes off", _operand),
            ("another constant is read", _constant),
            ("waits are dropped", _no_waits),
            ("waits are for one slot less", _shorter_waits),
            ("a slot is not published", _unpublished),
            ("two functions are exchanged", _column("slots", 0, _next_kernel)),
            ("an rTask has the next one's number", _column("slots", 1, _next_task)),
            ("two slots of a lane are exchanged", _exchange("slots")),
            ("scratch is a quarter as large", _small_scratch),
            ("an output is read 64 bytes away", _port),
            ("an rTask has one ticket too many", _more_tickets),
        )
    ),
    *(
        bug("GPU table", name, STREAMS, _fields(change), SIMT)
        for name, change in (
            ("an operand's address is 64 bytes off", _operand),
            ("another constant is read", _constant),
            ("waits are dropped", _column("instructions", 5, lambda n, _: 0 * n)),
            ("waits are for one slot less", _shorter_waits),
            ("a slot publishes too early a step", _column("instructions", 6, lambda n, _: np.maximum(n - 1, 0))),
            ("two functions are exchanged", _column("instructions", 0, _next_kernel)),
            ("an rTask has the next one's number", _column("instructions", 1, _next_task)),
            ("two instructions of a lane are exchanged", _exchange("instructions")),
            ("an output is read 64 bytes away", _port),
        )
    ),
)


def _library(change: Callable[[str], str]) -> Plant:
    """Change the C text of the runtime."""

    def found(source: KernelSource) -> KernelSource | None:
        text = change(source.text)
        return replace(source, text=text, key=f"{source.key[:-1]}m") if text != source.text else None

    return afterwards(found)


RUN = "rammer.vdevice.cpu.codegen.compile:KernelCompiler._library"
RUNTIME: tuple[Bug, ...] = (
    bug(
        "runtime",
        "all vEUs have one scratch",
        RUN,
        _library(lambda t: t.replace("+ veu * p->t->scratch_stride", "")),
        HOST,
    ),
    bug(
        "runtime",
        "nothing is waited for",
        RUN,
        _library(lambda t: t.replace("if (LOAD(&other->step) - base > on.order) return 1;", "return 1;")),
        HOST,
    ),
    bug(
        "runtime",
        "the end of a vEU's lane is not waited for",
        RUN,
        _library(lambda t: t.replace("if (!join(p, v)) return STUCK;", ";")),
        HOST,
    ),
    bug(
        "runtime",
        "a vEU leaves its last slot out",
        RUN,
        _library(lambda t: t.replace("s < end; s++", "s < end - (end - first > 1); s++")),
        HOST,
    ),
    bug(
        "runtime",
        "constants are exchanged in loading",
        "rammer.vdevice.cpu.runtime.executable:gather",
        afterwards(once(lambda arrays: _swapped(arrays))),
        HOST,
    ),
    bug("runtime", "rPrograms run in the wrong order", TABLE, _fields(lambda f: _reversed(f)), HOST),
)


def _swapped(arrays: list[Array]) -> list[Array] | None:
    for n, a in enumerate(arrays):
        for m in range(n):
            if a.shape == arrays[m].shape and a.size > 1 and not np.array_equal(a, arrays[m]):
                found = list(arrays)
                found[n], found[m] = arrays[m], a
                return found
    return None


def _reversed(fields: Fields) -> bool:
    """Exchange the first rProgram and the second one."""
    header, bounds = fields["header"], fields["bounds"]
    veus = header["num_veus"]
    if header["num_programs"] < 2:
        return False
    low, middle, high = (int(bounds[p * veus]) for p in range(3))
    order = np.r_[low:low, middle:high, low:middle, high : len(fields["slots"])]
    first, second = np.diff(bounds[: veus + 1]), np.diff(bounds[veus : 2 * veus + 1])
    fields["slots"], fields["operators"] = fields["slots"][order], fields["operators"][order]
    fields["bounds"] = np.r_[0, np.cumsum(np.r_[second, first, np.diff(bounds[2 * veus :])])].astype(bounds.dtype)
    return True


PLACED = "rammer.vdevice.ipu.codegen.build:place"


def _group(change: Callable[[Any], Any]) -> Plant:
    """Change the first group of a placement to which `change` applies."""

    def changed(placed: PoplarProgram) -> PoplarProgram | None:
        for n, group in enumerate(placed.groups):
            other = change(group)
            if other is not None:
                return replace(placed, groups=(*placed.groups[:n], other, *placed.groups[n + 1 :]))
        return None

    return afterwards(changed)


def _set(group: Any) -> Any:
    """Run vertices in the compute set before theirs."""
    return replace(group, sets=group.sets - 1) if group.sets.min(initial=0) > 0 else None


def _argument(group: Any) -> Any:
    """Read the second operand from element 1 on."""
    if len(group.arguments) < 3:
        return None
    variable, base = group.arguments[2]
    return replace(group, arguments=(*group.arguments[:2], (variable, max(base - 1, 0) or 1), *group.arguments[3:]))


def _value(placed: PoplarProgram) -> PoplarProgram | None:
    """Change a constant on its tile."""
    for n, v in enumerate(placed.variables):
        if v.value is not None and v.count > 16 and v.value.dtype.kind == "f":
            value = np.roll(v.value, 1)
            variables = (*placed.variables[:n], replace(v, value=value), *placed.variables[n + 1 :])
            return replace(placed, variables=variables)
    return None


def _steps(placed: PoplarProgram) -> PoplarProgram | None:
    """Run two compute sets in the wrong order."""
    if len(placed.steps) < 2:
        return None
    return replace(placed, steps=(placed.steps[1], placed.steps[0], *placed.steps[2:]))


TILES: tuple[Bug, ...] = (
    bug("IPU placement", "vertices run one compute set early", PLACED, _group(_set), IPU),
    bug("IPU placement", "an operand begins one element away", PLACED, _group(_argument), IPU),
    bug("IPU placement", "a constant is permuted on its tile", PLACED, afterwards(_value), IPU),
    bug("IPU placement", "two compute sets are exchanged", PLACED, afterwards(_steps), IPU),
)

IMAGE_BUGS: tuple[Bug, ...] = (*PACKING, *TABLES, *RUNTIME, *TILES)
