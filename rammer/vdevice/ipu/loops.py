"""Compute sets that come again and again become a loop: cells of an unrolled network share their vertices over time.

A loop's body works on the variables of its last round. What earlier rounds made is kept in carries, which move on by
copies on their own tiles. Operands that are new in each round lie in arrays on the tiles that read them, where a vertex
takes the round's part; results that are wanted after the loop are put into arrays likewise.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rammer.ir.tensor import DType
from rammer.vdevice.ipu.access import Pattern
from rammer.vdevice.ipu.codelets import PUT, RESET, TAKE, bookkeeping
from rammer.vdevice.ipu.placement import spread
from rammer.vdevice.ipu.program import (
    Execute,
    Gather,
    Group,
    Homes,
    Location,
    Placement,
    Repeat,
    Scatter,
    Step,
    Undefined,
    Variable,
    VertexTable,
    copied,
    every,
    runs_of,
)

LEAST_ROUNDS = 4
LONGEST = 64  # compute sets of one round
Blocks: TypeAlias = tuple[tuple[int, ...], ...]  # operators by round, in the same order in each


class Label(NamedTuple):
    """Where an argument was made in the loop: by which output of a round, how many rounds back, at which element."""

    cell: Hashable
    back: int
    base: int


@dataclass
class Cell:
    """An output of every round: where each has it. `own`: each round has a variable for it alone."""

    own: bool
    size: int
    places: dict[int, Location] = field(default_factory=dict)  # by round


def roll(placed: Placement) -> Placement:
    """The same program with loops where it repeats itself. It must run every compute set once, in ascending order."""
    finder = _Finder(placed)
    builder = _Builder(placed)
    at = 0
    while found := finder.repeated(at):
        start, period, blocks = found
        builder.plain(at, start)
        rounds = _Rounds(placed, finder.writers, blocks)
        first, last = rounds.longest()
        at = start + period
        if last - first + 1 < LEAST_ROUNDS:
            builder.plain(start, at)
            continue
        builder.plain(start, start + first * period)
        at = start + (last + 1) * period
        _Loop(builder, rounds, first, last, range(at - period, at)).append()
    builder.plain(at, placed.num_sets)
    return builder.build()


class _Finder:
    """Finds compute sets in which equal kernels run on equal tiles with equal weights again."""

    def __init__(self, placed: Placement) -> None:
        self.count = placed.num_sets
        self.writers: dict[int, list[int]] = {}
        kinds: dict[Hashable, int] = {}
        here: list[list[tuple[int, int, int]]] = [[] for _ in range(self.count)]
        self._crossed = np.zeros(self.count + 1, bool)  # an operator runs before this set and in it
        for n, group in enumerate(placed.groups):
            for variable, _ in group.arguments[: group.table.num_outputs]:
                self.writers.setdefault(variable, []).append(n)
            if not len(group.sets):
                continue
            low, high = int(group.sets.min()), int(group.sets.max())
            weights = tuple(v for v, _ in group.arguments if placed.variables[v].value is not None)
            key = (group.table, weights, group.tiles.tobytes(), (group.sets - low).tobytes())
            kind = kinds.setdefault(key, len(kinds))
            self._crossed[low + 1 : high + 1] = True
            for s in np.unique(group.sets).tolist():
                here[s].append((s - low, kind, n))
        numbers: dict[Hashable, int] = {}
        signs = [numbers.setdefault(tuple(sorted(x[:2] for x in items)), len(numbers)) for items in here]
        self._signs: NDArray[np.int64] = np.array(signs, np.int64)
        self._members = [[n for offset, _, n in sorted(items) if not offset] for items in here]

    def repeated(self, start: int) -> tuple[int, int, Blocks] | None:
        """From `start` on: the first set of equal rounds, the sets of a round, and its operators by round."""
        signs, crossed, count = self._signs, self._crossed, self.count
        for at in range(start, count):
            rounds = period = 0
            for p in range(1, min(LONGEST, (count - at) // LEAST_ROUNDS) + 1):
                if crossed[at] or crossed[at + p] or signs[at] != signs[at + p]:
                    continue
                different = np.flatnonzero(signs[at : count - p] != signs[at + p :])
                found = (int(different[0]) if different.size else count - p - at) // p + 1
                if found >= LEAST_ROUNDS and found * p > rounds * period:
                    rounds, period = found, p
            if rounds:
                firsts = range(at, at + rounds * period, period)
                return at, period, tuple(tuple(n for m in self._members[f : f + period] for n in m) for f in firsts)
        return None


class _Rounds:
    """What equal blocks of operators make, and where each argument of theirs comes from."""

    def __init__(self, placed: Placement, writers: dict[int, list[int]], blocks: Blocks) -> None:
        self.placed = placed
        self.blocks = blocks
        self.cells: dict[Hashable, Cell] = {}
        self._own: dict[int, tuple[Hashable, int]] = {}  # variable -> cell, round
        self._parts: dict[int, list[tuple[int, Hashable, int]]] = {}  # variable -> first element, cell, round
        round_of = {n: r for r, block in enumerate(blocks) for n in block}
        for r, block in enumerate(blocks):
            for k, n in enumerate(block):
                group = placed.groups[n]
                for position, (variable, base) in enumerate(group.arguments[: group.table.num_outputs]):
                    own = all(round_of.get(w) == r for w in writers[variable])
                    if own and variable in self._own:
                        continue
                    key = (k, position, own)
                    size = placed.variables[variable].count if own else group.table.sizes[position]
                    cell = self.cells.setdefault(key, Cell(own, size))
                    cell.places[r] = (variable, 0 if own else base)
                    if own:
                        self._own[variable] = key, r
                    else:
                        self._parts.setdefault(variable, []).append((base, key, r))
        self.labels = [
            [[self._label(a, s, r) for a, s in zip(g.arguments, g.table.sizes, strict=True)] for g in self.groups(r)]
            for r in range(len(blocks))
        ]

    def groups(self, r: int) -> list[Group]:
        return [self.placed.groups[n] for n in self.blocks[r]]

    def longest(self) -> tuple[int, int]:
        """The first and the last of the most rounds in a row whose arguments come from the same places."""
        best = first = 0, 0
        for r in range(1, len(self.labels)):
            first = (first[0], r) if self.labels[r] == self.labels[r - 1] else (r, r)
            best = max(best, first, key=lambda span: span[1] - span[0])
        return best

    def _label(self, place: Location, size: int, r: int) -> Label | None:
        """None for what no round makes."""
        variable, base = place
        if variable in self._own:
            key, made = self._own[variable]
            return Label(key, r - made, base)
        over = [p for p in self._parts.get(variable, ()) if p[0] < base + size and base < p[0] + self.cells[p[1]].size]
        if not over:
            return None
        first, key, made = over[0]
        if len(over) > 1 or base < first or base + size > first + self.cells[key].size:
            return Label("of several", r, 0)  # unlike any other round
        return Label(key, r - made, base - first)


class _Builder:
    """Collects the rolled program; compute sets and variables keep their numbers until the end."""

    def __init__(self, placed: Placement) -> None:
        self.placed = placed
        self.variables = list(placed.variables)
        self.groups = [g for g in placed.groups if not len(g.sets)]
        self.steps: list[Step] = []
        self.num_sets = placed.num_sets
        self._begins: dict[int, list[Group]] = {}
        self._last_read = dict.fromkeys((placed.ports[t][0] for t in placed.plan.graph.outputs), placed.num_sets)
        for group in placed.groups:
            if len(group.sets):
                self._begins.setdefault(int(group.sets.min()), []).append(group)
                for variable, _ in group.arguments[group.table.num_outputs :]:
                    self._last_read[variable] = max(self._last_read.get(variable, 0), int(group.sets.max()))

    def plain(self, begin: int, end: int) -> None:
        """Compute sets as they are."""
        for s in range(begin, end):
            self.groups += self._begins.get(s, [])
            self.steps.append(Execute(s))

    def read_after(self, variable: int, compute_set: int) -> bool:
        """Whether this compute set, a later one, or the host reads a variable."""
        return self._last_read.get(variable, -1) >= compute_set

    def new_set(self) -> int:
        self.num_sets += 1
        return self.num_sets - 1

    def new_variable(self, dtype: DType, home: Homes) -> int:
        nowhere = np.full(len(home), -1, np.int32)
        self.variables.append(Variable(f"l{len(self.variables)}", dtype, len(home), home, produced=nowhere))
        return len(self.variables) - 1

    def restored(self, variable: int) -> None:
        """Copies write this variable, at least in part: it gets its homes whole."""
        old = self.variables[variable]
        self.variables[variable] = replace(old, produced=np.full(old.count, -1, np.int32))

    def build(self) -> Placement:
        executed = (step.compute_set for step in every(self.steps) if isinstance(step, Execute))
        order = {s: n for n, s in enumerate(executed)}
        numbers = np.array([order.get(s, -1) for s in range(self.num_sets)], np.int64)
        used = {v for g in self.groups for v, _ in g.arguments} | {v for v, _ in self.placed.ports.values()}
        used.update(v for step in every(self.steps) for v in copied(step))
        kept = sorted(used)
        new = {v: n for n, v in enumerate(kept)}
        groups = tuple(
            replace(g, arguments=tuple((new[v], base) for v, base in g.arguments), sets=numbers[g.sets])
            for g in self.groups
        )
        return replace(
            self.placed,
            variables=tuple(self.variables[v] for v in kept),
            groups=groups,
            num_sets=len(order),
            steps=tuple(_renumbered(self.steps, order, new)),
            ports={t: (new[v], base) for t, (v, base) in self.placed.ports.items()},
        )


class _Loop:
    """Appends one loop to a builder: `body` are the compute sets of its last round."""

    def __init__(self, builder: _Builder, rounds: _Rounds, first: int, last: int, body: range) -> None:
        self.builder, self.rounds, self.first, self.last, self.end = builder, rounds, first, last, body.stop
        self.body = list(body)
        self.before: list[Step] = []
        self.after: list[Step] = []
        self.resets, self.takes, self.puts = (builder.new_set() for _ in range(3))
        self.added: set[int] = set()  # which of these have vertices

    def append(self) -> None:
        builder, groups, labels = self.builder, self.rounds.groups(self.last), self.rounds.labels[self.last]
        back: dict[Hashable, int] = {}
        for made in (lb for row in labels for lb in row if lb is not None):
            back[made.cell] = max(back.get(made.cell, 0), made.back)
        versions = {key: self._versions(self.rounds.cells[key], most) for key, most in back.items()}
        taken = self._taken(groups, labels)
        for k, (group, row) in enumerate(zip(groups, labels, strict=True)):
            arguments = []
            for n, (place, label) in enumerate(zip(group.arguments, row, strict=True)):
                if label is None:
                    arguments.append((taken[k, n], 0) if (k, n) in taken else place)
                else:
                    arguments.append((versions[label.cell][label.back], label.base))
            builder.groups.append(replace(group, arguments=tuple(arguments)))
        for key, chain in versions.items():
            self._keep(self.rounds.cells[key], chain)
        moves = [
            self._copy((newer, 0), older)
            for chain in versions.values()
            for newer, older in reversed(list(itertools.pairwise(chain)))
        ]
        body = [Execute(s) for s in (self.takes, *self.body, self.puts) if s in (*self.body, *self.added)]
        if self.added:
            self.before.append(Execute(self.resets))
        builder.steps += [*self.before, Repeat(self.last - self.first + 1, (*body, *moves)), *self.after]

    def _versions(self, cell: Cell, back: int) -> list[int]:
        """The variable of a round's output, and those that hold it for 1, 2, … `back` rounds more."""
        builder = self.builder
        variable, base = cell.places[self.last]
        dtype, home = builder.variables[variable].dtype, builder.variables[variable].home[base : base + cell.size]
        chain = [variable if cell.own else builder.new_variable(dtype, home)]
        for age in range(1, back + 1):
            chain.append(builder.new_variable(dtype, home))
            self.before.append(self._copy(cell.places[self.first - age], chain[-1]))
        return chain

    def _copy(self, source: Location, target: int) -> Gather:
        return Gather((source,), ((0, self.builder.variables[target].count),), target)

    def _taken(self, groups: Sequence[Group], labels: Sequence[Sequence[Label | None]]) -> dict[tuple[int, int], int]:
        """Variables for arguments that come from outside and differ by round; filled at the begin of each."""
        readers: dict[tuple[tuple[Location, ...], int], list[tuple[int, int]]] = {}
        rounds = [self.rounds.groups(r) for r in range(self.first, self.last + 1)]
        for k, (group, row) in enumerate(zip(groups, labels, strict=True)):
            for n, label in enumerate(row):
                sources = tuple(r[k].arguments[n] for r in rounds)
                if label is None and len(set(sources)) > 1:
                    readers.setdefault((sources, group.table.sizes[n]), []).append((k, n))
        found = {}
        for (sources, size), uses in readers.items():
            home = np.full(size, -1, np.int32)
            shared = np.zeros(size, bool)
            for k, n in uses:
                for tile, patterns in zip(groups[k].tiles.tolist(), groups[k].table.patterns, strict=True):
                    for low, high in patterns[n].pieces(size):
                        here = home[low:high]
                        shared[low:high] |= (here >= 0) & (here != tile)
                        here[here < 0] = tile
            read = home >= 0
            home[shared] = -1
            spread(home, self.builder.placed.arch.tiles, 0)
            now = self.builder.new_variable(self.builder.variables[sources[0][0]].dtype, home)
            pieces = list(runs_of(np.where(read, home, -1)))
            whole = self._array(TAKE, now, pieces, self.takes)
            self.before.append(Gather(sources, tuple((low, high) for low, high, _ in pieces), whole))
            found.update(dict.fromkeys(uses, now))
        return found

    def _keep(self, cell: Cell, chain: list[int]) -> None:
        """What is wanted of a cell after the loop, from its carries or an array."""
        rows: list[Location | None] = []
        for r in range(self.first, self.last + 1):
            variable, base = cell.places[r]
            age = self.last - r + 1  # of what the carries hold, once they have moved on
            if (cell.own and age == 1) or not self.builder.read_after(variable, self.end):
                rows.append(None)
                continue
            self.builder.restored(variable)
            rows.append((variable, base))
            if cell.own and age < len(chain):
                self.after.append(self._copy((chain[age], 0), variable))
                rows[-1] = None
        if any(rows):
            pieces = list(runs_of(self.builder.variables[chain[0]].home))
            whole = self._array(PUT, chain[0], pieces, self.puts)
            self.before.append(Undefined(whole))
            self.after.append(Scatter(tuple(rows), tuple((low, high) for low, high, _ in pieces), whole))

    def _array(self, kind: str, now: int, pieces: list[tuple[int, int, int]], compute_set: int) -> int:
        """A variable with the parts `pieces` of `now` by round, and vertices that move one part of it in each round."""
        builder, count = self.builder, self.last - self.first + 1
        dtype = builder.variables[now].dtype
        lengths = np.array([high - low for low, high, _ in pieces], np.int64)
        tiles = np.array([tile for _, _, tile in pieces], np.int32)
        whole = builder.new_variable(dtype, np.repeat(tiles, count * lengths))
        steps = builder.new_variable(DType.I32, tiles)
        starts = count * (lengths.cumsum() - lengths)
        distinct = sorted(set(lengths.tolist()))
        places = {"now": now, "all": whole, "step": steps}
        for what, into, numbers in ((kind, compute_set, distinct), (RESET, self.resets, [1])):
            classes = tuple(bookkeeping(what, dtype, n) for n in numbers)
            names = [f.argument for f in classes[0].edges]
            levels = tuple(
                tuple({"now": ((1, n),), "all": ((1, count * n),), "step": ((1, 1),)}[name] for name in names)
                for n in numbers
            )
            chosen = [numbers.index(n) if what == kind else 0 for n in lengths.tolist()]
            firsts = [
                {"now": low, "all": start, "step": i}
                for i, ((low, _, _), start) in enumerate(zip(pieces, starts.tolist(), strict=True))
            ]
            table = VertexTable(
                classes,
                levels,
                tuple(builder.variables[places[name]].count for name in names),
                sum(f.access != "Input" for f in classes[0].edges),
                tuple(chosen),
                tuple(
                    tuple(Pattern(first[name], of) for name, of in zip(names, levels[c], strict=True))
                    for first, c in zip(firsts, chosen, strict=True)
                ),
                0,
            )
            arguments = tuple((places[name], 0) for name in names)
            sets = np.full(len(pieces), into, np.int64)
            builder.groups.append(Group(what.lower(), table, arguments, sets, tiles.astype(np.int64)))
        self.added.add(compute_set)
        return whole


def _renumbered(steps: Iterable[Step], sets: Mapping[int, int], variables: Mapping[int, int]) -> Iterator[Step]:
    for step in steps:
        match step:
            case Execute(number):
                yield Execute(sets[number])
            case Gather(rows, runs, variable):
                yield Gather(tuple((variables[v], base) for v, base in rows), runs, variables[variable])
            case Scatter(some, runs, variable):
                places = tuple(None if row is None else (variables[row[0]], row[1]) for row in some)
                yield Scatter(places, runs, variables[variable])
            case Undefined(variable):
                yield Undefined(variables[variable])
            case Repeat(rounds, body):
                yield Repeat(rounds, tuple(_renumbered(body, sets, variables)))
