"""Run a model with loops and branches that only values decide: cut it into programs, and run these in turn.

Known as: host-side control flow, graph breaks. Each part between two cuts is a session of its own, and so is each body.
Cuts are found when a signature is imported: control flow that is known then stays part of a program. Values that a loop
carries are state of its body's session.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from onnx import GraphProto, NodeProto, TypeProto, helper

from rammer.errors import InputError, ModelError, closed
from rammer.frontend.onnx import NotConstant, Source, Undecided
from rammer.frontend.onnx.handlers.control import scan_ways
from rammer.frontend.onnx.parts import SubgraphPart, label_of
from rammer.frontend.onnx.ports import type_of
from rammer.ir.tensor import Array
from rammer.runtime.state import StreamState
from rammer.session.inputs import Request
from rammer.session.loops import BodyLoops, Bounds, kind

if TYPE_CHECKING:
    from rammer.session import Session

Values: TypeAlias = "dict[str, Any]"  # by name: arrays, lists of arrays, None
BOUNDED = 8  # most sessions of a body with bounds, of other shapes or bounds
# (model, pairs of state, whether all values that decide shapes are part of a signature, bounds of state) -> session
Opener: TypeAlias = "Callable[[Source, Mapping[str, str], bool, Mapping[str, int]], Session]"


class Stages:
    """A model in parts. Safe to use from several threads.

    `opener` makes the session of a part; the part's state is pairs of an output and an input. A loop takes at most
    `max_steps` steps.
    """

    def __init__(self, source: Source, opener: Opener, max_steps: int) -> None:
        self._model = _Model(source, opener, max_steps)
        self._whole = _Segment(self._model, self._model.cutter.whole())

    def run(self, values: Mapping[str, Any], outputs: Sequence[str]) -> Values:
        """Return these outputs, given values of all inputs."""
        known = dict(values)
        self._each(lambda step: known.update(step.run(known)))
        return {name: known[name] for name in outputs}

    def precompile(self, examples: Mapping[str, Any], request: Request) -> int:
        """Compile the parts that depend on inputs alone, given examples of these. Return the number of new programs."""
        compiled: list[int] = []
        self._each(lambda step: compiled.append(step.precompile(examples, request)))
        return sum(compiled)

    def _each(self, do: Callable[[_Step], None]) -> None:
        """Call `do` with each step in turn; cut a step that needs it, and continue with its parts."""
        todo: list[_Step] = [self._whole]
        while todo:
            step = todo.pop()
            if step.steps is None:
                try:
                    do(step)
                    continue
                except NotConstant as error:
                    if not error.cuts:
                        raise
                    step.cut(error)
            todo += reversed(step.steps or ())

    def close(self) -> None:
        """Close all sessions; new ones raise InputError."""
        self._model.is_closed = True
        for _, session in self.sessions():
            session.close()

    def sessions(self) -> list[tuple[str, Session]]:
        """Return the sessions of all parts, each with its part's label."""
        return [(piece.label, session) for piece in self._whole.pieces() for session in piece.opened()]


class _Model:
    """The model that is cut, the function that opens sessions of its parts, and the limits of loops."""

    def __init__(self, source: Source, opener: Opener, max_steps: int) -> None:
        self.cutter = source.cutter()
        self.opset = source.opset
        self.max_steps, self.max_bytes = max_steps, source.limits.tensor_bytes
        self._source, self._opener = source, opener
        self.is_closed = False

    def open(
        self,
        part: SubgraphPart,
        types: Mapping[str, TypeProto],
        pairs: Mapping[str, str],
        fixes: bool,
        bounds: Mapping[str, int],
    ) -> Session:
        if self.is_closed:
            raise closed("session", "open another one")
        return self._opener(self._source.part(self.cutter.graph(part, types)), pairs, fixes, bounds)


class _Piece:
    """A part as a session, opened when the types of its inputs are first seen."""

    def __init__(
        self, model: _Model, part: SubgraphPart, label: str, pairs: Mapping[str, str] | None = None, fixes: bool = False
    ) -> None:
        self.part, self.label, self.pairs, self._fixes = part, label, pairs or {}, fixes
        self._model = model
        self._opened: dict[tuple[Hashable, ...], tuple[Session, dict[str, str]]] = {}
        self._bounded: dict[Hashable, Session] = {}
        self._lock = threading.Lock()

    def session(self, values: Mapping[str, Any]) -> tuple[Session, dict[str, str]]:
        """Return the session for such values, and its state: output -> input. Lists and None are not state."""
        key = tuple(kind(values[name]) for name in self.part.inputs)
        with self._lock:
            if key not in self._opened:
                types = {name: type_of(values[name]) for name in self.part.inputs}
                pairs = {o: n for o, n in self.pairs.items() if isinstance(values[n], np.ndarray)}
                self._opened[key] = self._model.open(self.part, types, pairs, self._fixes, {}), pairs
            return self._opened[key]

    def bounded(self, values: Mapping[str, Any], bounds: Bounds) -> Session | None:
        """Return the session for such values, of which some have a bound in one dimension. None for lists as state."""
        if not all(isinstance(values[name], np.ndarray) for name in self.pairs.values()):
            return None
        if not bounds:
            return self.session(values)[0]
        types = {name: type_of(values[name]) for name in self.part.inputs}
        found: dict[str, int] = {}
        for name in self.pairs.values():
            axis, symbol, most, _ = bounds.get(name, (-1, "", 0, 0))
            shape = [symbol if d == axis else extent for d, extent in enumerate(values[name].shape)]
            types[name] = helper.make_tensor_type_proto(types[name].tensor_type.elem_type, shape)
            found |= {symbol: most} if name in bounds else {}
        key = tuple(types[name].SerializeToString() for name in self.part.inputs), *found.items()
        with self._lock:
            if key not in self._bounded:
                if len(self._bounded) >= BOUNDED:
                    self._bounded.pop(next(iter(self._bounded))).close()
                self._bounded[key] = self._model.open(self.part, types, self.pairs, self._fixes, found)
            return self._bounded[key]

    def opened(self) -> list[Session]:
        with self._lock:
            return [*(session for session, _ in self._opened.values()), *self._bounded.values()]


class _Step(ABC):
    """A part that runs as a whole, until it is cut into `steps`."""

    steps: tuple[_Step, ...] | None = None

    @abstractmethod
    def run(self, values: Mapping[str, Any]) -> Values:
        """Return the values of its outputs. Raises Undecided where it has to be cut."""

    @abstractmethod
    def pieces(self) -> Iterator[_Piece]:
        """Yield the parts that it runs."""

    def precompile(self, examples: Mapping[str, Any], request: Request) -> int:
        """Compile what a request is known to need. Return the number of new programs."""
        return 0

    def cut(self, error: NotConstant) -> None:
        """Cut the step at the node that the error names. Raises the error if that is impossible."""
        raise error


class _Segment(_Step):
    """A part between two cuts."""

    def __init__(self, model: _Model, part: SubgraphPart, label: str = "part", fixes: bool = False) -> None:
        self._model, self._piece = model, _Piece(model, part, label, fixes=fixes)
        self._lock = threading.Lock()

    def run(self, values: Mapping[str, Any]) -> Values:
        part = self._piece.part
        given = {name: values[name] for name in part.inputs}
        return self._piece.session(given)[0].part(given, part.outputs, uncut=True)

    def precompile(self, examples: Mapping[str, Any], request: Request) -> int:
        names = self._piece.part.inputs
        if not all(name in examples for name in names):
            return 0
        shapes = {name: request.shapes[name] for name in names}
        return self._piece.session(examples)[0].ahead_uncut(Request(shapes, request.arrays))

    def cut(self, error: NotConstant) -> None:
        with self._lock:
            if self.steps is None:  # another thread may have cut it
                steps = self._controlled(error) if isinstance(error, Undecided) else self._valued(error)
                self.steps = tuple(step for step in steps if not isinstance(step, _Segment) or step.outputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        return self._piece.part.outputs

    def _controlled(self, error: Undecided) -> tuple[_Step, ...]:
        """Return the steps before a node with bodies, the node, and the steps after it."""
        before, node, after = self._model.cutter.split(self._piece.part, error.at)
        kind = _KINDS.get(node.op_type)
        if kind is None or node.domain not in ("", "ai.onnx") or (kind is _Scan and self._model.opset < 9):
            raise error
        return _Segment(self._model, before), kind(self._model, node), _Segment(self._model, after)

    def _valued(self, error: NotConstant) -> tuple[_Step, ...]:
        """Cut where a node needs values: return the part that computes them, then the node with the rest.

        If the values are inputs of this part, return the node alone, between what comes before and after it.
        """
        cutter, whole = self._model.cutter, self._piece.part
        before, node, after = cutter.split(whole, error.at, operands=False)
        if cutter.feeds(before, node):
            return _Segment(self._model, before), _Segment(self._model, cutter.without(whole, before))
        alone = cutter.without(whole, before, after)
        fixing = _Segment(self._model, alone, label_of(node), fixes=True)
        return _Segment(self._model, before), fixing, _Segment(self._model, after)

    def pieces(self) -> Iterator[_Piece]:
        if self.steps is None:
            yield self._piece
        for step in self.steps or ():
            yield from step.pieces()


class _Control(_Step):
    """A node with bodies: If, Loop or Scan."""

    def __init__(self, model: _Model, node: NodeProto) -> None:
        self.model, self.node, self.label = model, node, label_of(node)
        self.inputs, self.outputs = tuple(node.input), tuple(node.output)
        self.attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self._pieces: list[_Piece] = []

    def pieces(self) -> Iterator[_Piece]:
        yield from self._pieces

    def piece(self, part: SubgraphPart, name: str, pairs: Mapping[str, str] | None = None) -> _Piece:
        """Add a body as a part that this node runs."""
        self._pieces.append(_Piece(self.model, part, f"{self.label} {name}", pairs))
        return self._pieces[-1]

    def body(self, name: str, num_inputs: int, num_outputs: int) -> SubgraphPart:
        """Return a body. Raises ModelError for another number of inputs or outputs."""
        graph: GraphProto = self.attributes[name]
        for what, want, got in (("inputs", num_inputs, len(graph.input)), ("results", num_outputs, len(graph.output))):
            if want != got:
                raise self.fail(f"the {name} has {got} {what} instead of {want}")
        return self.model.cutter.body(graph)

    def number(self, given: Any, what: str) -> int:
        """Return an operand of one element. Raises ModelError for any other value."""
        if given is None or isinstance(given, list):
            raise self.fail(f"{what} is {'missing' if given is None else 'a list'}")
        value = given if type(given) is np.ndarray else np.asarray(given)
        if value.size != 1:
            raise self.fail(f"{what} has {value.size} elements instead of one")
        return int(value.item())

    def loops(self, piece: _Piece, collected: Sequence[str], again: str | None, counter: str | None) -> BodyLoops:
        """Return the loops over a body whose steps need no Python between them."""
        most = self.model.max_steps, self.model.max_bytes
        return BodyLoops(piece.pairs, piece.bounded, most, self.fail, (collected, again, counter))

    def fail(self, what: str, hint: str = "") -> ModelError:
        """Return an error that names the node."""
        return ModelError(what, node=self.label, op=self.node.op_type, hint=hint)

    def results(self, found: Sequence[Any]) -> Values:
        return {name: value for name, value in zip(self.outputs, found, strict=True) if name}


class _If(_Control):
    def __init__(self, model: _Model, node: NodeProto) -> None:
        super().__init__(model, node)
        count, names = len(node.output), ("else_branch", "then_branch")
        self._branches = [self.piece(self.body(name, 0, count), name) for name in names]

    def run(self, values: Mapping[str, Any]) -> Values:
        piece = self._branches[bool(self.number(values.get(next(iter(self.inputs), "")), "the condition"))]
        given = {name: values[name] for name in piece.part.inputs}
        found = piece.session(given)[0].part(given, piece.part.outputs)
        return self.results([found[name] for name in piece.part.outputs])


class _LoopNode(_Control):
    def __init__(self, model: _Model, node: NodeProto) -> None:
        super().__init__(model, node)
        part = self.body("body", len(node.input), 1 + len(node.output))
        end = 1 + len(node.input) - 2
        self._again, self._collected = part.outputs[0], part.outputs[end:]
        self._operands = dict(zip(part.inputs, node.input, strict=False))
        pairs = zip(part.outputs[1:end], part.inputs[2:], strict=False)
        self._piece = self.piece(part, "body", dict(pairs))
        counter = self.attributes["body"].input[0].type.tensor_type.shape
        self._counter_shape = (1,) * min(len(counter.dim), 1)
        self._start = self._at(0)
        self._loops = self.loops(self._piece, self._collected, self._again, part.inputs[0])

    def run(self, values: Mapping[str, Any]) -> Values:
        first = {name: values[operand] if operand else None for name, operand in self._operands.items()}
        most, flag, *_ = first.values()
        limit = None if most is None else self.number(most, "the trip count")
        if limit is not None and limit < 0:
            raise self.fail(f"the trip count is {limit}")
        alive = flag is None or bool(self.number(flag, "the condition"))
        given = first | self._start | _captured(self._piece.part, values)
        if alive and limit != 0:
            found = self._loops.run(given, self.model.max_steps + 1 if limit is None else limit, {})
            if found is not None:
                return self.results(found)
        steps = _Steps(self, self._piece, given, self._collected, (self._again,))
        for step in count():
            if not alive or (limit is not None and step >= limit):
                break
            alive = bool(np.all(steps.take(self._at(step))[self._again]))
        joined = [np.stack(rows) for rows in steps.collected()] if step else steps.nothing()
        return self.results([*steps.carried(), *joined])

    def _at(self, step: int) -> Values:
        number, flag = self._piece.part.inputs[:2]
        return {number: np.full(self._counter_shape, step, np.int64), flag: np.asarray(True)}


class _Scan(_Control):
    def __init__(self, model: _Model, node: NodeProto) -> None:
        super().__init__(model, node)
        self._num_scanned = self.attributes["num_scan_inputs"]
        self._num_states = len(node.input) - self._num_scanned
        part = self.body("body", len(node.input), len(node.output))
        pairs = zip(part.outputs[: self._num_states], part.inputs, strict=False)
        self._piece = self.piece(part, "body", dict(pairs))
        self._loops = self.loops(self._piece, part.outputs[self._num_states :], None, None)

    def run(self, values: Mapping[str, Any]) -> Values:
        part, operands = self._piece.part, list[Any](values[name] if name else None for name in self.inputs)
        scanned = [
            np.moveaxis(array, self._axis(axis, array.ndim), 0)[:: -1 if back else 1]
            for array, (axis, back) in zip(operands[self._num_states :], self._ways("input"), strict=True)
        ]
        lengths = {len(array) for array in scanned}
        if len(lengths) != 1 or 0 in lengths:
            raise self.fail(f"scanned inputs have {sorted(lengths)} elements")
        (length,) = lengths

        def at(step: int) -> Values:
            names = part.inputs[self._num_states : part.num_formal]
            return {name: np.ascontiguousarray(array[step]) for name, array in zip(names, scanned, strict=True)}

        states = dict(zip(part.inputs, operands[: self._num_states], strict=False))
        given = at(0) | states | _captured(part, values)
        collected, names = part.outputs[self._num_states :], part.inputs[self._num_states : part.num_formal]
        found = self._loops.run(given, length, dict(zip(names, scanned, strict=True)))
        if found is None:
            steps = _Steps(self, self._piece, given, collected)
            for step in range(length):
                steps.take(at(step))
            found = [*steps.carried(), *(np.stack(rows) for rows in steps.collected())]
        joined = [
            np.ascontiguousarray(np.moveaxis(rows[::-1] if back else rows, 0, self._axis(axis, rows.ndim)))
            for rows, (axis, back) in zip(found[self._num_states :], self._ways("output"), strict=True)
        ]
        return self.results([*found[: self._num_states], *joined])

    def _ways(self, side: str) -> list[tuple[int, int]]:
        """Return the axis and direction of every scanned input, or collected output."""
        number = self._num_scanned if side == "input" else len(self.node.output) - self._num_states
        return scan_ways(self.attributes, side, number, self.fail)

    def _axis(self, axis: int, rank: int) -> int:
        if not -rank <= axis < rank:
            raise self.fail(f"axis {axis} does not exist in a tensor of rank {rank}")
        return axis % rank


class _Steps:
    """The steps of a loop in one run. State stays where the body's session has written it."""

    def __init__(
        self,
        control: _Control,
        piece: _Piece,
        given: Mapping[str, Any],
        collected: Sequence[str],
        asked: Sequence[str] = (),
    ) -> None:
        self._control, self._piece, self._given = control, piece, dict(given)
        self._rows: dict[str, list[Array]] = {name: [] for name in collected}
        self._asked = asked
        self._taken = self._bytes = 0
        self._open(given)

    def _open(self, state: Mapping[str, Any]) -> None:
        self._session, pairs = self._piece.session(self._given)
        self._memory = StreamState(pairs)
        self._memory.advance({name: state[name] for name in pairs.values()})
        self._handed = {output: name for output, name in self._piece.pairs.items() if output not in pairs}
        self._wanted = tuple(dict.fromkeys((*self._asked, *self._rows, *self._handed)))

    def take(self, changed: Mapping[str, Any]) -> Values:
        """Take a step with these changed inputs, and return its outputs."""
        model = self._control.model
        if self._taken >= model.max_steps:
            raise self._control.fail(
                f"has taken {self._taken:,} steps, and would go on", hint="Session(…, max_steps=…) lets it take more"
            )
        try:
            self._given.update(changed)
            inputs = {name: value for name, value in self._given.items() if name not in self._memory.inputs}
            found = self._session.evaluate(self._memory, inputs, self._wanted)
        except InputError as error:
            raise self._control.fail(f"step {self._taken}: {error.what}") from error
        self._taken += 1
        for name, rows in self._rows.items():
            rows.append(found[name])
            self._bytes += found[name].nbytes
            if rows[0].shape != rows[-1].shape:
                raise self._control.fail(f"{name!r} collects rows of shapes {rows[0].shape} and {rows[-1].shape}")
        if self._bytes > model.max_bytes:
            raise self._control.fail(f"collects more than {model.max_bytes} bytes", hint="take fewer steps")
        if self._handed:  # an empty list or missing value may have a type now
            self._given |= {name: found[output] for output, name in self._handed.items()}
            if self._piece.session(self._given)[0] is not self._session:
                self._open(self._given | self._memory.copies())
        return found

    def carried(self) -> list[Any]:
        """Return the values that the last step carried on."""
        last = self._memory.copies()
        return [last[name] if name in last else deepcopy(self._given[name]) for name in self._piece.pairs.values()]

    def collected(self) -> list[list[Array]]:
        """Return the rows that the steps have added to each output."""
        return list(self._rows.values())

    def nothing(self) -> list[Array]:
        """Return the collected outputs of a loop without steps: arrays of 0 rows."""
        types = self._session.output_types(self._given) if self._rows else {}
        return [np.zeros((0, *types[name].shape), types[name].dtype.numpy) for name in self._rows]


def _captured(part: SubgraphPart, values: Mapping[str, Any]) -> Values:
    """Return the outer values that a body uses."""
    return {name: values[name] for name in part.inputs[part.num_formal :]}


_KINDS: dict[str, type[_If] | type[_LoopNode] | type[_Scan]] = {"If": _If, "Loop": _LoopNode, "Scan": _Scan}
