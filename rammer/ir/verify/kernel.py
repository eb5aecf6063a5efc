"""Prove an rKernel by rules with stable ids on its tile program, explained in docs/semantics.md.

A rule holds, is broken, or cannot be shown. What cannot be shown is named, and left to a check by execution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from math import prod

import numpy as np

from rammer.ir.analysis.access import Access, Accesses, common_loops
from rammer.ir.analysis.dependency import logical_elements, places_of, read_elements, written_elements
from rammer.ir.analysis.footprint import Footprint, footprint, line, states
from rammer.ir.analysis.intervals import NOTHING, Intervals, missing, union, within
from rammer.ir.expr import Range, decided_by
from rammer.ir.index import Index, bounds, evaluate, variables
from rammer.ir.kernel import RKernel
from rammer.ir.remembered import remembered
from rammer.ir.semantics.evaluate import holds
from rammer.ir.tensor import Layout, TensorType
from rammer.ir.tile import NEXT, Apply, Body, For, If, Kind, Sync, TileProgram, block_syncs, children, meets
from rammer.ir.verify import update as proof_update
from rammer.ir.verify.flow import ROLE, TAG, Flow, Points, Untraceable
from rammer.ir.verify.reference import Reference

MAX_RTASKS = 64  # that are checked one by one; of more, those at the corners of the digits
INNER_LOOPS = 4  # innermost loops of a store whose ends are traced
MOST_ELEMENTS = 96  # elements that are traced together
FORM_ELEMENTS = 16  # likewise, if elements are computed in thousands of statements
FEWER, FEWEST = 3, 3  # keep each third instance of a store that has too many, down to three and then one
NEVER = 64  # a round that is not reached by dropping instances
SWEEP = 24  # values of each inner loop that are traced with the other loops in the middle
MAX_STATES = 1 << 20  # values of the loops around an access that are distinguished


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that an rKernel breaks, or (not `broken`) one that cannot be shown."""

    rule: str
    what: str
    broken: bool = True

    def __str__(self) -> str:
        return f"{self.rule} {RULES[self.rule].name}: {self.what}" + ("" if self.broken else " (not shown)")


class KernelEvidence:
    """Facts that the rules look at; each part is computed once."""

    def __init__(self, kernel: RKernel, program: TileProgram) -> None:
        self.kernel, self.program = kernel, program
        self.accesses = Accesses(program)

    @cached_property
    def by_buffer(self) -> dict[str, list[Access]]:
        found: dict[str, list[Access]] = {}
        for access in self.accesses.found:
            found.setdefault(access.buffer, []).append(access)
        return found

    @cached_property
    def rtasks(self) -> list[int]:
        """All rTasks; of more than MAX_RTASKS, those at the corners of the digits: first, second, last two."""
        digits = self.program.digits
        if self.program.num_rtasks <= MAX_RTASKS:
            return list(range(self.program.num_rtasks))
        ends = [sorted({0, min(1, d.extent - 1), max(d.extent - 2, 0), d.extent - 1}) for d in digits]
        chosen = {sum(n * d.stride for n, d in zip(at, digits, strict=True)) for at in product(*ends)}
        return sorted(n for n in chosen if n < self.program.num_rtasks)

    def touched(self, accesses: Iterable[Access], rtask: int) -> tuple[Intervals, bool]:
        """Return the elements that an rTask touches by these accesses, and whether they are exact."""
        found = [footprint(a, a.of_rtask(rtask)) for a in accesses]
        return union([f.elements for f in found]), all(f.exact for f in found)


@dataclass(frozen=True, slots=True)
class KernelRule:
    """A rule: `check` yields what breaks it, and what it cannot show."""

    name: str
    check: Callable[[KernelEvidence], Iterator[Finding]]


def proven(kernel: RKernel) -> tuple[RKernel, tuple[Finding, ...]]:
    """Return the rKernel and all findings against it. One that only reads too much is marked `overreads`.

    Plans then include the surplus in its dependencies.
    """
    findings, program = prove(kernel), kernel.body
    if isinstance(program, TileProgram) and {f.rule for f in findings if f.broken} == {"R204"}:
        kernel = replace(kernel, overreads=True)
        others = tuple(f for f in findings if f.rule != "R204")
        findings = (*others, *_reads_declared(KernelEvidence(kernel, program)))
    return kernel, findings


@remembered(1 << 12)
def prove(kernel: RKernel) -> tuple[Finding, ...]:
    """Return all findings against an rKernel: none, if each rule holds for all of its rTasks."""
    if not isinstance(kernel.body, TileProgram):
        return (Finding("R201", f"{kernel.name} is foreign text, of which nothing is known", broken=False),)
    evidence = KernelEvidence(kernel, kernel.body)
    findings: list[Finding] = []
    for rule in RULES.values():
        findings += rule.check(evidence)
        if any(f.broken for f in findings):
            break  # what later rules say of such a program misleads
    return tuple(findings)


def _size(elements: Intervals) -> int:
    return int((elements[:, 1] - elements[:, 0]).sum())


def _show(elements: Intervals) -> str:
    return f"[{elements[0, 0]}, {elements[0, 1]})"


# R202: the arguments


def _arguments(evidence: KernelEvidence) -> Iterator[Finding]:
    program, types = evidence.program, evidence.kernel.argument_types()
    for buffer, kind in zip(program.arguments, types, strict=False):
        if kind.layout is not None and any(d.dim >= kind.rank for d in kind.layout.digits):
            yield Finding("R202", f"the layout of {buffer.name} has digits of a dimension that {kind} has not")
            return
    if len(program.arguments) != len(types) or program.num_outputs != len(evidence.kernel.operation.outputs):
        yield Finding("R202", f"{len(program.arguments)} arguments for {len(types)} tensors")
        return
    for buffer, kind in zip(program.arguments, types, strict=True):
        if buffer.size != kind.span or buffer.dtype is not kind.dtype:
            yield Finding(
                "R202",
                f"{buffer.name} is {buffer.size} elements of {buffer.dtype.value}, but it is given {kind}, "
                f"{kind.span} elements in its layout",
            )
        if kind.layout is not None and not covers(kind.layout, kind.shape):
            yield Finding("R202", f"the layout of {buffer.name} does not have a place of its own for each element")


def covers(layout: Layout, shape: tuple[int, ...]) -> bool:
    """Return whether a layout has one place for each element: digits of a dimension follow one another to its end."""
    for dim, extent in enumerate(shape):
        end = 1
        for digit in sorted((d for d in layout.digits if d.dim == dim), key=lambda d: d.div):
            if digit.div != end:
                return False
            end = digit.div * digit.mod if digit.mod else max(extent, end)
        if end < extent:
            return False
    return layout.encoding is None or prod(layout.physical_shape(shape)) % layout.encoding.block == 0


# R206: all threads together


def _uniform(evidence: KernelEvidence) -> Iterator[Finding]:
    program = evidence.program
    digits = {(d.stride, d.extent) for d in program.digits}

    def walk(body: Body, inside: bool) -> Iterator[Finding]:
        for stmt in body:
            match stmt:
                case Sync() | Apply() if inside and meets(stmt):
                    yield Finding("R206", f"a {type(stmt).__name__} stands under a condition")
                case For(kind=Kind.TASK) if (stmt.stride, stmt.stop) not in digits or stmt.start:
                    yield Finding("R206", f"loop {stmt.var} counts no digit of the rTask's number")
                case For(kind=Kind.THREAD) if stmt.start or stmt.stride * stmt.stop > program.num_threads:
                    yield Finding("R206", f"loop {stmt.var} counts beyond the {program.num_threads} threads")
                case _:
                    yield from walk(children(stmt), inside or isinstance(stmt, If))

    yield from walk(program.body, False)
    for access in evidence.accesses.found:
        if access.write and not access.register and (name := _overlapping(access)):
            yield Finding("R206", f"statement {access.statement} counts threads twice, by {name} and others")
    if (count := block_syncs(program.body)) != program.num_block_syncs:
        yield Finding("R206", f"{count} syncs, where the rKernel says {program.num_block_syncs}")
    if sorted(d.stride for d in program.digits) != _strides(program):
        yield Finding("R206", "the digits of the rTask's number do not follow one another")


def _strides(program: TileProgram) -> list[int]:
    stride, found = 1, []
    for digit in sorted(program.digits, key=lambda d: (d.stride, d.extent)):
        found.append(stride)
        stride *= digit.extent
    return found


def _overlapping(access: Access) -> str:
    """Return a thread loop whose digit overlaps another one's, of those on which an access depends; else empty."""
    used = decided_by(access.index, access.path)
    end = 1
    for loop in sorted((lp for _, lp in access.loops if lp.kind is Kind.THREAD), key=lambda lp: lp.stride):
        if loop.var in used:
            if loop.stride % end:
                return loop.var
            end = loop.stride * loop.stop
    return ""


# R201: inside


def _inside(evidence: KernelEvidence) -> Iterator[Finding]:
    for access in evidence.accesses.found:
        size = evidence.accesses.sizes.get(access.buffer)
        verb = "writes" if access.write else "reads"
        if size is None:
            yield Finding("R201", f"statement {access.statement} {verb} {access.buffer}, which is no buffer")
            continue
        low, high = bounds(access.index, access.ranges)
        if low >= 0 and high < size:  # whatever the conditions
            continue
        found = footprint(access)
        if len(found.elements) and (found.elements[0, 0] < 0 or found.elements[-1, 1] > size):
            yield Finding(
                "R201",
                f"statement {access.statement} {verb} {access.buffer}[{access.index}], elements "
                f"[{found.elements[0, 0]}, {found.elements[-1, 1]}) of {size}",
                found.exact,
            )


# R203: outputs


def _written(evidence: KernelEvidence) -> Iterator[Finding]:
    expr = evidence.kernel.operation.expr
    if expr.in_place:
        return
    for position, kind in enumerate(evidence.kernel.operation.outputs):
        name = evidence.program.arguments[position].name
        stores = [a for a in evidence.by_buffer.get(name, ()) if a.write]
        stores = proof_update.copies(evidence.program, stores) if expr.copied else stores
        whole = [footprint(a) for a in stores]
        exact = all(f.exact for f in whole)
        total = union([f.elements for f in whole])
        if sum(f.times for f in whole) != _size(total):
            yield Finding("R203", f"elements of {name} are stored more than once", exact)
        logical = logical_elements(kind)
        declared = written_elements(evidence.kernel, position)
        for rtask in evidence.rtasks:
            own, sharp = evidence.touched(stores, rtask)
            box = declared[rtask]
            if len(stray := missing(own, box)):
                yield Finding("R203", f"rTask {rtask} writes {name}{_show(stray)}, outside of its box", sharp)
            if len(gap := missing(common(box, logical), own)) or not sharp:
                what = f"leaves {name}{_show(gap)} of its box unwritten" if len(gap) else f"writes {name} somehow"
                yield Finding("R203", f"rTask {rtask} {what}", bool(len(gap)))


def common(first: Intervals, second: Intervals) -> Intervals:
    """Return the elements in both sets."""
    return missing(first, missing(first, second))


# R204: inputs


def _reads_declared(evidence: KernelEvidence) -> Iterator[Finding]:
    outputs = evidence.program.num_outputs
    for position, kind in enumerate(evidence.kernel.input_types()):
        name = evidence.program.arguments[outputs + position].name
        own = [a for a in evidence.by_buffer.get(name, ()) if not a.write]
        if any(a.write for a in evidence.by_buffer.get(name, ())):
            yield Finding("R204", f"the input {name} is written")
        declared = read_elements(evidence.kernel, position)
        logical = logical_elements(kind)
        for rtask in evidence.rtasks if not evidence.kernel.operation.static[position] else ():
            touched, sharp = evidence.touched(own, rtask)
            if len(stray := common(missing(touched, declared[rtask]), logical)):
                what = f"rTask {rtask} reads {name}{_show(stray)}, of which the plan does not know"
                yield Finding("R204", what, sharp)
        everything = union([footprint(a).elements for a in own])
        wanted = union(declared.sets) if declared.exact else NOTHING
        if len(gap := common(missing(wanted, everything), logical)):
            yield Finding("R204", f"no rTask reads {name}{_show(gap)}", False)


# R205: scratch and registers


def _own_buffers(evidence: KernelEvidence) -> Iterator[tuple[str, list[Access], list[Access]]]:
    """Yield buffers of an rTask or a thread, with their writes and their reads."""
    arguments = {b.name for b in evidence.program.arguments}
    for name, accesses in evidence.by_buffer.items():
        if name not in arguments:
            yield name, [a for a in accesses if a.write], [a for a in accesses if not a.write]


def _defined(evidence: KernelEvidence) -> Iterator[Finding]:
    for name, writes, reads in _own_buffers(evidence):
        # Past an edge, threads sum unwritten elements, and do not store the sum. R207 detects it if one does.
        if evidence.program.num_threads > 1:
            writes = [replace(w, path=()) for w in writes]
        spans = [bounds(w.index, w.ranges) for w in writes]
        known: set[tuple[object, ...]] = set()
        for read in reads:
            alike = read.index, read.path, read.more, tuple(read.ranges.items()), evidence.accesses.shared(read)
            if alike in known:  # an equal read came before; since then more was written
                continue
            known.add(alike)
            low, high = bounds(read.index, read.ranges)
            meeting = [w for w, (first, last) in zip(writes, spans, strict=True) if first <= high and low <= last]
            before = [w for w in meeting if w.statement < read.statement]
            if any(_trivially_covers(write, read) for write in before):
                continue
            what = f"statement {read.statement} reads {name}{{}} before it is written"
            yield from _covered("R205", read, before, what)


def written_before(read: Access, writes: Sequence[Access]) -> bool:
    """Return whether `writes`, all before the read, cover it entirely, for each value of the loops around both."""
    return any(_trivially_covers(write, read) for write in writes) or not any(_covered("R205", read, writes, ""))


def _trivially_covers(write: Access, read: Access) -> bool:
    """Return whether a write covers a read: the same index, loops as long, and no further conditions.

    Then for each value of a loop around both, each step of the read has one of the write at the same element. The write
    may have further loops in its index, of which one step adds nothing.
    """
    of_write, of_read = write.ranges, read.ranges
    if not set(write.path) <= set(read.path) or any(high < low for low, high in of_write.values()):
        return False
    rest = write.index - read.index
    own = variables(rest)
    taken = of_read.keys() | decided_by(Index(), write.path)
    if own & taken or not all(isinstance(atom, str) for atom, _ in rest.terms):
        return False
    used = decided_by(write.index, write.path) - own
    if not all(n in of_read and of_write[n][0] <= of_read[n][0] and of_read[n][1] <= of_write[n][1] for n in used):
        return False
    return bool(len(within(line(rest, of_write), 0, 1)))


def _covered(rule: str, access: Access, others: Sequence[Access], what: str) -> Iterator[Finding]:
    """Yield a finding unless others touch all that an access does, for each value of the loops shared with them."""
    with_loops = [(other, common_loops(access, other)) for other in others]
    around = max((names for _, names in with_loops), key=len, default=[])
    found = states([access, *(other for other, _ in with_loops)], around, access.ranges, MAX_STATES)
    if found is None:
        yield Finding(rule, what.format("") + ": too many cases", False)
        return
    for values in found:
        wanted = footprint(access, values)
        if not wanted.times:
            continue
        there: list[Footprint] = []
        for other, names in with_loops:
            there.append(footprint(other, {n: v for n, v in values.items() if n in names}))
        gap = missing(wanted.elements, union([f.elements for f in there if f.exact]))
        if len(gap):
            exact = wanted.exact and all(f.exact for f in there)
            yield Finding(rule, what.format(_show(gap)), exact)
            return


# R208: sums


def _accumulates(evidence: KernelEvidence) -> Iterator[Finding]:
    for name, accesses in evidence.by_buffer.items():
        reads: dict[int, list[Access]] = {}
        for access in accesses:
            if not access.write:
                reads.setdefault(access.statement, []).append(access)
        folded: dict[tuple[int, ...], list[Footprint]] = {}  # by the loops that each fold belongs to
        for write in (a for a in accesses if a.write and a.statement in reads):
            others = [r for r in reads[write.statement] if r.index != write.index]
            if len(others) == len(reads[write.statement]):
                yield Finding("R208", f"statement {write.statement} adds another sum to {name}[{write.index}]", False)
            elif others:
                around = tuple(n for n, lp in write.loops if not write.register and lp.kind is not Kind.UNROLLED)
                folded.setdefault(around, []).extend(map(_alone, others))
            elif (own := _alone(replace(write, path=()))).times != own.size:
                yield Finding("R208", f"statement {write.statement} adds to an element of {name} more than once")
        if any(sum(f.times for f in own) != _size(union([f.elements for f in own])) for own in folded.values()):
            yield Finding("R208", f"elements of {name} are folded more than once", False)


def _alone(access: Access) -> Footprint:
    """Return what an access touches while only the variables of its index run."""
    own = variables(access.index)
    return footprint(access, {n: low for n, (low, _) in access.ranges.items() if n not in own})


# R210: updates


def _updates(evidence: KernelEvidence) -> Iterator[Finding]:
    writes = [a for a in evidence.accesses.found if a.write]
    for what, certain in proof_update.findings(evidence.kernel, evidence.program, writes, evidence.rtasks):
        yield Finding("R210", what, certain)


# R209: prefetches


def _prefetched(evidence: KernelEvidence) -> Iterator[Finding]:
    arguments = {b.name: n < evidence.program.num_outputs for n, b in enumerate(evidence.program.arguments)}
    for hint, asked in evidence.accesses.hints:
        if hint.buffer == NEXT:
            for rtask in evidence.rtasks:
                lines = footprint(asked, asked.of_rtask(rtask))
                if lines.times and (lines.elements[-1, 1] > 0 or lines.times != lines.size):
                    what = f"rTask {rtask} prefetches {NEXT}{_show(lines.elements)}, {lines.times} lines, not each once"
                    yield Finding("R209", what, lines.exact)
        elif (written := arguments.get(hint.buffer)) is not None:
            used = [footprint(a).elements for a in evidence.by_buffer.get(hint.buffer, ()) if a.write == written]
            parts = hint.encoding.parts if hint.encoding else 1
            wanted = footprint(asked)
            if wanted.times and not len(common(wanted.elements, union(used) * parts)):
                what = f"{hint.buffer}{_show(wanted.elements)} is prefetched, of which it uses nothing"
                yield Finding("R209", what, wanted.exact)
        else:
            yield Finding("R209", f"{hint.buffer} is prefetched, which is no argument")


# R207: flows


def _flows(evidence: KernelEvidence) -> Iterator[Finding]:
    kernel, program = evidence.kernel, evidence.program
    if kernel.operation.expr.into:
        return
    if kernel.form is not None:
        kernel = replace(kernel, operation=replace(kernel.operation, expr=kernel.form))
    names = [b.name for b in program.arguments]
    inputs = names[program.num_outputs :]
    for position, (output, kind) in enumerate(kernel.operation.expr.outputs):
        reference = Reference(kernel, output, kind)
        stores = [a for a in evidence.by_buffer.get(names[position], ()) if a.write]
        if kernel.form is not None:
            stores = stores[:1] + stores[1:][-1:]
        most = MOST_ELEMENTS if kernel.form is None else FORM_ELEMENTS
        try:
            make = partial(Flow, evidence.accesses, inputs, counting=reference.counted)
            traces = _traces(make, stores, kind, most)
        except Untraceable as error:
            yield Finding("R207", f"where {names[position]} comes from: {error}", False)
            continue
        for flow, elements, sources in traces:
            if flow.unwritten:
                yield Finding("R205", f"{names[position]} is computed from {flow.unwritten}, which nothing wrote")
            elif wrong := reference.differs(elements, sources, flow.roles):
                yield Finding("R207", f"{names[position]}{wrong[0]}", wrong[1])
            elif miscounted := reference.miscounts(elements, flow.terms):
                yield Finding("R207", f"{names[position]}{miscounted}", False)  # or of sums that are added in the end


def _traces(
    make: Callable[..., Flow], stores: Sequence[Access], kind: TensorType, most: int
) -> list[tuple[Flow, Points, dict[str, Points]]]:
    """Trace all stores together; or each by itself, with all roles as one, if sums of sums take too long.

    Raises Untraceable.
    """
    flow = make()
    try:
        return [(flow, *_traced(flow, stores, kind, most))]
    except Untraceable:
        flows = [make(most_roles=1) for _ in stores]
        return [(own, *_traced(own, [store], kind, most)) for own, store in zip(flows, stores, strict=True)]


def _traced(flow: Flow, stores: Sequence[Access], kind: TensorType, most: int) -> tuple[Points, dict[str, Points]]:
    """Return elements that stores write, by tag, and their sources; fewer where sums are long. Raises Untraceable."""
    corners = [_corners(store, kind) for store in stores]
    rounds = [_rounds(len(instances[TAG])) for instances in corners]
    if most <= FORM_ELEMENTS:  # each has very many sources: if these are too many, one element of all stores is left
        rounds[1:] = [np.minimum(own, NEVER - 1) for own in rounds[1:]]
    first = 0
    while sum(int((own >= first).sum()) for own in rounds) > max(most, FEWEST * len(stores)):
        first += 1
    corners = [{n: v[own >= first] for n, v in i.items()} for i, own in zip(corners, rounds, strict=True)]
    rounds = [own[own >= first] - first for own in rounds]
    total = 0
    for instances in corners:
        instances[TAG] = total + np.arange(len(instances[TAG]))
        instances[ROLE] = np.zeros_like(instances[TAG])
        total += len(instances[TAG])
    starts = {store.statement: instances for store, instances in zip(stores, corners, strict=True)}
    elements = [evaluate(s.index, i) + np.zeros_like(i[TAG]) for s, i in zip(stores, corners, strict=True)]
    nothing = np.zeros(0, np.int64)
    sources = flow.sources(starts, np.concatenate([nothing, *rounds]))
    return np.concatenate([nothing, *elements])[flow.kept], sources


def _rounds(count: int) -> Points:
    """Return the round in which each of a store's instances is dropped, if there are too many; the first never is."""
    rounds, left = np.zeros(count, np.int64), np.arange(count)
    while len(left) > 1:
        left = left[::FEWER]
        rounds[left] += 1
    rounds[left] = NEVER
    return rounds


def _corners(store: Access, kind: TensorType) -> dict[str, Points]:
    """Return instances of a store: at the ends of its innermost loops, others at one end; and along each of them."""
    guards = [r for where, wanted in store.path for r in where if wanted]
    ranges = {n: _where_alone(n, span, guards) for n, span in store.ranges.items()}
    inner = [n for n, (low, high) in ranges.items() if low < high][-INNER_LOOPS:]
    ends = [dict(zip(inner, at, strict=True)) for at in product(*(ranges[n] for n in inner))]
    rows = [{n: span[side] for n, span in ranges.items()} | end for side in (0, 1) for end in ends]
    middle = {n: (low + high) // 2 for n, (low, high) in ranges.items()}
    rows += [middle | {n: at} for n in inner for at in range(ranges[n][0], min(ranges[n][1], ranges[n][0] + SWEEP) + 1)]
    ending = [(n, ranges[n], own) for n in inner if (own := [r for r in guards if n in variables(r.index)])]
    rows += [last for row in rows for end in ending if (last := _last(store, row, *end))]
    rows = [row for row in rows if _happens(store, row)]
    _, held = places_of(kind, np.array([int(evaluate(store.index, row)) for row in rows], np.int64))
    kept = [row for row, there in zip(rows, held.tolist(), strict=True) if there]  # no padding
    return {n: np.array([row[n] for row in kept], np.int64) for n in ranges} | {TAG: np.arange(len(kept))}


def _where_alone(name: str, span: tuple[int, int], guards: Sequence[Range]) -> tuple[int, int]:
    """Return the first and the last value of a variable that its own guards allow: code may be for one rTask only."""
    own = [r for r in guards if variables(r.index) == {name}]
    if not own or not len(inside := _inside_all(own, {}, name, span)):
        return span
    return int(inside[0]), int(inside[-1])


def _happens(access: Access, row: Mapping[str, int]) -> bool:
    return all(all(holds(r, row) for r in where) == wanted for where, wanted in access.path)


def _last(
    access: Access, row: Mapping[str, int], name: str, span: tuple[int, int], guards: Sequence[Range]
) -> dict[str, int] | None:
    """Return the row with the last value of a guarded variable at which the access happens, if its loop goes on."""
    if row[name] != span[1] or _happens(access, row):
        return None
    inside = _inside_all(guards, row, name, span)
    return {**row, name: int(inside[-1])} if len(inside) else None


def _inside_all(guards: Sequence[Range], row: Mapping[str, int], name: str, span: tuple[int, int]) -> Points:
    """Return the values of a variable at which all guards hold, the others as in the row."""
    values = np.arange(span[0], span[1] + 1)
    return values[np.logical_and.reduce([holds(r, {**row, name: values}) for r in guards])]


RULES: Mapping[str, KernelRule] = {
    "R202": KernelRule("arguments", _arguments),
    "R206": KernelRule("uniform", _uniform),
    "R201": KernelRule("inside", _inside),
    "R203": KernelRule("written", _written),
    "R208": KernelRule("accumulates", _accumulates),
    "R210": KernelRule("updated", _updates),
    "R209": KernelRule("prefetched", _prefetched),
    "R205": KernelRule("defined", _defined),
    "R207": KernelRule("flows", _flows),
    "R204": KernelRule("reads-declared", _reads_declared),
}
