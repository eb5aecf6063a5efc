"""Prove an image for a device without shared memory: vertices on tiles, in compute sets.

Such a program has its own variables. The proof interprets it symbolically: each element of memory holds the name of the
element of the plan's tensors that lies there. A vertex is an rTask of the operator whose operands it finds. Known as:
symbolic execution, translation validation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from rammer.ir.analysis.dependency import Elements, read_elements, written_elements
from rammer.ir.analysis.intervals import NOTHING, Intervals, expand, merged, missing, union
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.remembered import memoized
from rammer.ir.tensor import Array, DType, Numbers, TensorId, TensorType
from rammer.vdevice.proof.decoded import broken
from rammer.vdevice.proof.packed import difference, value_of

FIRST = 1 << 36  # an element's name is: number of its owner * FIRST + index
NOBODY = -1  # the name of unwritten elements

Place: TypeAlias = tuple[int, int]  # variable, first element
Levels: TypeAlias = tuple[tuple[int, int], ...]  # (stride, count), outermost first


@dataclass(frozen=True)
class VertexClass:
    """A class of vertices: its name, the levels of its fields (outputs first), and the scratch that it uses."""

    name: str
    levels: tuple[Levels, ...]
    scratch: tuple[tuple[int, int], ...]  # variable, elements


@dataclass(frozen=True, eq=False)
class VertexKernel:
    """The vertices of an rKernel: by rTask the class (-1: no vertex), and the first element of each argument."""

    classes: Numbers
    starts: Numbers  # [rTasks, arguments]


@dataclass(frozen=True, eq=False)
class VertexGroup:
    """Vertices of one operator: the places of their arguments, and by rTask the compute set and the tile."""

    kernel: int
    arguments: tuple[Place, ...]
    sets: Numbers
    tiles: Numbers


@dataclass(frozen=True)
class DecodedFlow:
    """A program of compute sets.

    `names`: the required class name of each rTask of an rKernel ("": no vertex). `narrowed`: types of tensors that the
    device stores in another type.
    """

    tiles: int
    counts: Sequence[int]  # elements of each variable
    constants: Mapping[int, Array]  # by variable
    classes: Sequence[VertexClass]
    kernels: Sequence[VertexKernel]
    groups: Sequence[VertexGroup]
    steps: Sequence[int]  # compute sets in execution order; in each, all vertices read before any writes
    inputs: Sequence[tuple[int, int, int]]  # variable, first element, elements
    outputs: Sequence[tuple[int, int, int]]
    scratch: Mapping[int, Numbers]  # by variable of scratch: where each tile's begins, and the end
    names: Mapping[RKernel, Sequence[str]]
    narrowed: Mapping[DType, DType]


def verify_flow(flow: DecodedFlow, plan: ExecutionPlan) -> None:
    """Check all rules. Raises VerificationError."""
    _check_scratch(flow)
    _Walk(flow, plan).run()


def _check_scratch(flow: DecodedFlow) -> None:
    used: dict[tuple[int, int, int], int] = defaultdict(int)  # (variable, set, tile) -> elements
    for group in flow.groups:
        classes = flow.kernels[group.kernel].classes
        if not any(flow.classes[c].scratch for c in set(classes.tolist()) if c >= 0):
            continue
        for c, step, tile in zip(classes.tolist(), group.sets.tolist(), group.tiles.tolist(), strict=True):
            for variable, size in flow.classes[c].scratch if c >= 0 else ():
                used[variable, step, tile] += size
    for (variable, _, tile), size in used.items():
        starts = flow.scratch[variable]
        if starts[tile] + size > starts[tile + 1] or (np.diff(starts) < 0).any() or starts[-1] > flow.counts[variable]:
            raise broken(
                "R309",
                f"vertices of tile {tile} take {size} elements of scratch, and have {starts[tile + 1] - starts[tile]}",
            )


class _Walk:
    """One symbolic run of the program, on names of elements."""

    def __init__(self, flow: DecodedFlow, plan: ExecutionPlan) -> None:
        self.flow, self.plan, self.graph = flow, plan, plan.graph
        self.memory = [np.full(count, NOBODY, np.int64) for count in flow.counts]
        self.whole: dict[int, int | None] = {}  # by variable: the name of the first element, if all follow it in order
        self.owner = {
            root: n for n, root in enumerate(dict.fromkeys(self.graph.storage(t).root for t in self.graph.types), 1)
        }
        self.in_set: dict[int, list[tuple[int, Numbers]]] = defaultdict(list)  # by compute set: groups, and rTasks
        for g, group in enumerate(flow.groups):
            count = len(flow.kernels[group.kernel].classes)
            if len(group.sets) != count or len(group.tiles) != count:
                raise broken("R301", f"group {g} has {len(group.sets)} rTasks, and not {count}")
            for number in np.unique(group.sets).tolist():
                self.in_set[number].append((g, np.flatnonzero(group.sets == number)))
        self.left: dict[int, int] = {}  # remaining rTasks of operators that have begun
        self.done: set[int] = set()
        self.of_group: dict[int, int] = {}  # the operator that a group is computing
        self._unions: dict[tuple[RKernel, int, bytes], Intervals] = {}
        self._looked_at: set[tuple[int, int, RKernel]] = set()  # rTasks whose fields were checked
        self._covered: set[tuple[Levels, bytes]] = set()  # fields, and elements (relative to the first) that they hold
        self._values: dict[TensorId, Array] = {}

    @cached_property
    def veus(self) -> dict[int, Numbers]:
        """The vEU of each rTask, by operator."""
        found = {n: np.full(k.num_rtasks, -1, np.int64) for n, k in enumerate(self.plan.kernels)}
        for program in self.plan.programs:
            for position, uid in program.tasks():
                found[uid.operator_id][uid.rtask_id] = position.veu
        return found

    @cached_property
    def waiting(self) -> dict[tuple[str, ...], list[int]]:
        """Operators by the class names of their rKernels' vertices."""
        found: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for n, kernel in enumerate(self.plan.kernels):
            found[tuple(self.flow.names[kernel])].append(n)
        return found

    def is_constant(self, tensor: TensorId) -> bool:
        return self.graph.storage(tensor).root in self.graph.constants

    def name(self, tensor: TensorId) -> int:
        """Return the name of a tensor's first element."""
        root, offset = self.graph.storage(tensor)
        return self.owner[root] * FIRST + offset

    def called(self, n: int) -> str:
        return f"{self.graph.operators[n].kind} {self.graph.operators[n].name!r}"

    def run(self) -> None:
        graph = self.graph
        for tensors, ports in ((graph.inputs, self.flow.inputs), (graph.outputs, self.flow.outputs)):
            if [graph.types[t].size for t in tensors] != [count for _, _, count in ports]:
                raise broken("R308", "the image has other inputs or outputs than the graph")
        for tensor, (variable, base, count) in zip(graph.inputs, self.flow.inputs, strict=True):
            self.write(variable, base + np.arange(count), self.name(tensor) + np.arange(count))
        for number in self.flow.steps:
            self.execute(number)
        if lost := sorted(set(range(len(graph.operators))) - self.done):
            raise broken("R302", f"the image computes not all of {self.called(lost[0])}")
        for tensor, (variable, base, count) in zip(graph.outputs, self.flow.outputs, strict=True):
            if self.is_constant(tensor):
                if wrong := self.stored(tensor, graph.types[tensor], variable, base):
                    raise broken("R307", f"output {tensor!r}: {wrong}")
            elif not self.holds(variable, base, np.array([[0, count]]), self.name(tensor)):
                raise broken("R308", f"output {tensor!r} is not where the image reads it")

    def write(self, variable: int, at: Numbers, names: Numbers) -> None:
        self.memory[variable][at] = names
        self.whole.pop(variable, None)

    def holds(self, variable: int, base: int, elements: Intervals, name: int) -> bool:
        """Return whether elements, counted from `base`, have consecutive names that begin with `name`."""
        memory = self.memory[variable]
        if variable not in self.whole:
            same = len(memory) > 0 and bool((memory - memory[0] == np.arange(len(memory))).all())
            self.whole[variable] = int(memory[0]) if same else None
        if not len(elements):
            return True
        if base + elements[0, 0] < 0 or base + elements[-1, 1] > len(memory):
            return False
        if (first := self.whole[variable]) is not None:
            return first + base == name
        at = expand(elements)
        return bool((memory[base + at] == name + at).all())

    def execute(self, number: int) -> None:
        """Execute a compute set: all reads, then all writes."""
        writes: list[tuple[int, Numbers, Numbers]] = []
        for g, rtasks in self.in_set[number]:
            writes += self.computed(g, self.flow.groups[g], rtasks)
        for variable, at, names in writes:
            self.write(variable, at, names)

    def computed(self, g: int, group: VertexGroup, rtasks: Numbers) -> list[tuple[int, Numbers, Numbers]]:
        """Check the operands of an operator's rTasks, and return what they write: (variable, elements, names)."""
        n = self.of_group.get(g, -1)
        if n < 0 or n not in self.left:
            n = self.of_group[g] = self.operator_of(g, group, rtasks)
            self.left[n] = self.plan.kernels[n].num_rtasks
        op, kernel, outputs = self.graph.operators[n], self.plan.kernels[n], len(self.graph.operators[n].outputs)
        wrong = np.flatnonzero(group.tiles[rtasks] != self.veus[n][rtasks] % self.flow.tiles)
        if len(wrong):
            r = int(rtasks[wrong[0]])
            raise broken("R302", f"rTask {n}.{r} of {self.called(n)} on tile {group.tiles[r]}, not {self.veus[n][r]}")
        for position, tensor in enumerate(op.inputs):
            argument = outputs + position
            variable, base = group.arguments[argument]
            elements = self.elements(kernel, argument, rtasks)
            if self.is_constant(tensor):
                self.check_constant(n, argument, variable, base)
            elif not self.holds(variable, base, elements, self.name(tensor)):
                at = base + expand(elements)
                at = at[(at >= 0) & (at < self.flow.counts[variable])]
                early = bool((self.memory[variable][at] == NOBODY).any())
                raise broken(
                    "R304" if early else "R306",
                    f"operand {argument} ({tensor!r}) of {self.called(n)} is "
                    + ("read before it is written" if early else f"not in variable {variable} from {base} on"),
                )
        self.check_fields(group, n, rtasks)
        self.left[n] -= len(rtasks)
        if not self.left[n]:
            del self.left[n]
            self.done.add(n)
        found = []
        for position, tensor in enumerate(op.outputs):
            variable, base = group.arguments[position]
            at = expand(self.elements(kernel, position, rtasks))
            if len(at) and (base + at[0] < 0 or base + at[-1] >= self.flow.counts[variable]):
                raise broken("R306", f"{self.called(n)} writes {tensor!r} beyond variable {variable}")
            if variable in self.flow.constants:
                raise broken("R306", f"{self.called(n)} writes {tensor!r} into a constant")
            found.append((variable, base + at, self.name(tensor) + at))
        return found

    def operator_of(self, g: int, group: VertexGroup, rtasks: Numbers) -> int:
        """Return the operator whose rTasks these vertices are: it has their rKernel and their operands."""
        kernel = self.flow.kernels[group.kernel]
        names = tuple(self.flow.classes[c].name if c >= 0 else "" for c in kernel.classes.tolist())
        best, reason = "R303", f"vertices {next((x for x in names if x), '')!r} are of no rKernel that is to run"
        for n in self.waiting.get(names, ()):
            if not (found := self.mismatch(n, group, rtasks)):
                self.waiting[names].remove(n)
                return n
            best, reason = max((best, reason), (found, f"vertices of {self.called(n)} do not find its operands"))
        raise broken(best, reason)

    def mismatch(self, n: int, group: VertexGroup, rtasks: Numbers) -> str:
        """Return the rule that these vertices' operands break as an operator's, by their first elements, or ""."""
        op, kernel = self.graph.operators[n], self.plan.kernels[n]
        outputs, constants = len(op.outputs), []
        if len(group.arguments) != outputs + len(op.inputs):
            return "R303"
        for argument, tensor in enumerate(op.inputs, outputs):
            variable, base = group.arguments[argument]
            if self.is_constant(tensor):
                constants.append((argument, variable, base))
                continue
            elements = self.elements(kernel, argument, rtasks)
            if len(elements):
                at = base + int(elements[0, 0])
                if not 0 <= at < self.flow.counts[variable]:
                    return "R306"
                if self.memory[variable][at] != self.name(tensor) + elements[0, 0]:
                    return "R304" if self.memory[variable][at] == NOBODY else "R306"
        return "R307" if any(self.constant(n, *found) for found in constants) else ""

    def elements(self, kernel: RKernel, argument: int, rtasks: Numbers) -> Intervals:
        """Return the elements of an argument that some rTasks touch, by the plan."""
        key = (kernel, argument, rtasks.tobytes())
        if key not in self._unions:
            touched = _touched(kernel, argument)
            chosen = dict.fromkeys(touched.chosen[r] for r in rtasks.tolist())
            self._unions[key] = union([touched.sets[c] for c in chosen])
        return self._unions[key]

    def check_constant(self, n: int, argument: int, variable: int, base: int) -> None:
        if wrong := self.constant(n, argument, variable, base):
            op = self.graph.operators[n]
            tensor = op.inputs[argument - len(op.outputs)]
            raise broken("R307", f"operand {argument} ({tensor!r}) of {self.called(n)}, in {variable}: {wrong}")

    def constant(self, n: int, argument: int, variable: int, base: int) -> str:
        """Return the difference between a constant input and a variable's content, as text; "" if they agree."""
        op, kernel = self.graph.operators[n], self.plan.kernels[n]
        position = argument - len(op.outputs)
        return self.stored(op.inputs[position], kernel.input_types()[position], variable, base)

    @memoized
    def stored(self, tensor: TensorId, kind: TensorType, variable: int, base: int) -> str:
        """Return the difference between a constant and a variable's content, read in a type; "" if they agree."""
        if tensor not in self._values:
            self._values[tensor] = value_of(self.graph, tensor)
        held = replace(kind, dtype=self.flow.narrowed.get(kind.dtype, kind.dtype))
        there = self.flow.constants.get(variable, np.zeros(0, np.uint8)).reshape(-1).view(np.uint8)
        there = there[base * held.element_bytes :]
        wrong = "" if len(there) >= held.nbytes and base >= 0 else f"{len(there)} bytes are too few"
        return wrong or difference(held, there, self._values[tensor].astype(held.dtype.numpy))

    def check_fields(self, group: VertexGroup, n: int, rtasks: Numbers) -> None:
        """Check R306: the fields of vertices hold all elements that their rTasks touch."""
        kernel, table = self.plan.kernels[n], self.flow.kernels[group.kernel]
        fresh = [r for r in rtasks.tolist() if (group.kernel, r, kernel) not in self._looked_at]
        self._looked_at.update((group.kernel, r, kernel) for r in fresh)
        classes = table.classes.tolist()
        for argument in range(len(group.arguments)) if fresh else ():
            touched, starts = _touched(kernel, argument), table.starts[:, argument].tolist()
            known = set[tuple[int, int, int]]()
            for r in fresh:
                c, key = classes[r], (classes[r], touched.chosen[r], starts[r])
                wanted = touched.sets[key[1]]
                if key in known or not len(wanted) or (c < 0 and argument >= len(kernel.operation.outputs)):
                    continue
                known.add(key)
                levels = self.flow.classes[c].levels[argument] if c >= 0 else ((1, 0),)
                moved = wanted - starts[r]
                if (levels, moved.tobytes()) in self._covered:
                    continue
                if len(missing(moved, _pieces(levels))):
                    raise broken("R306", f"rTask {n}.{r} of {self.called(n)} lacks parts of operand {argument}")
                self._covered.add((levels, moved.tobytes()))


def _touched(kernel: RKernel, argument: int) -> Elements:
    outputs = len(kernel.operation.outputs)
    return written_elements(kernel, argument) if argument < outputs else read_elements(kernel, argument - outputs)


def _pieces(levels: Levels) -> Intervals:
    """Return the sums of digit * stride, for all digits below their counts."""
    starts = np.zeros(1, np.int64)
    for distance, count in levels[:-1]:
        starts = (starts[:, None] + np.arange(count) * distance).reshape(-1)
    starts.sort()
    return merged(starts, starts + levels[-1][1]) if levels[-1][1] else NOTHING
