"""Prove that padding a dimension changes no result, and pad it. Known as: bucketing.

Two graphs are imported from one model, for the exact extents and for larger ones, and compared operator by operator. If
each element of the smaller result is the same formula of the same elements in both, the padding cannot matter.
`embedding.py` says which elements are the same: they may be strided in a dimension that joins two others. A sum over a
padded dimension is another formula, and so is an index that counts from such a dimension's end. Masking the operands of
a sum, softmax or product makes it the same again: behind the true extent, which becomes an input of the graph, they
then have the neutral value.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from rammer.errors import InputError, ModelError
from rammer.frontend.builder import GraphBuilder
from rammer.ir.graph import Graph
from rammer.ir.operator import Operation, ROperator
from rammer.ir.tensor import Array, DType, Shape, TensorId
from rammer.runtime.call import on_gpu
from rammer.session.embedding import Different, Embedding, is_prefix, prefix, results
from rammer.session.specialize import specialized

if TYPE_CHECKING:
    from rammer.frontend.onnx import Imported
    from rammer.session.inputs import Inputs


REMEMBERED = 4096  # maximal number of proofs in a table
T = TypeVar("T")
_NEUTRAL = {"max": -inf, "min": inf, "prod": 1, "log_sum_exp": -inf}  # neutral values of reductions; 0 for others


@dataclass(frozen=True, slots=True)
class Mask:
    """The neutral value that an operand gets behind the true extent of a symbol, along one axis."""

    operator: int
    operand: int
    axis: int
    symbol: str
    value: float


@dataclass(frozen=True, slots=True)
class ShiftedTable:
    """A constant that holds rows of a table, from the row at which a cache's new rows begin."""

    operator: int
    operand: int
    axis: int
    symbol: str
    table: Array = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class MaskedSteps:
    """The steps of a recurrent node that change no state behind the true extent of a symbol."""

    label: str
    symbol: str


Adjustment: TypeAlias = (
    Mask | ShiftedTable | MaskedSteps
)  # makes a padded graph's first elements those of the exact one


@dataclass(frozen=True, slots=True)
class AllRows:
    """The graph of all rows that a cache may have, and which of them an exact and a padded graph compute.

    What the model computes from a row's position (positions, causal masks) is one constant here; the two graphs have
    slices of it.
    """

    graph: Graph
    symbol: str
    places: tuple[int, int]
    rows: tuple[int, int]

    def moved(self, operator: int, operand: int, exact: Array, padded: Array) -> ShiftedTable | None:
        """Return both constants as rows of one table of this graph; None if they are not."""
        table = self.graph.constants.get(self.graph.operators[operator].inputs[operand])
        if table is None or table.ndim != padded.ndim or table.dtype != padded.dtype:
            return None
        for axis in range(table.ndim):
            if all(self._are_rows(table, axis, n, part) for n, part in enumerate((exact, padded))):
                shape = tuple(e if d == axis else padded.shape[d] for d, e in enumerate(table.shape))
                return ShiftedTable(operator, operand, axis, self.symbol, cut(table, shape))
        return None

    def _are_rows(self, table: Array, axis: int, which: int, part: Array) -> bool:
        """Check whether a constant begins like the table's rows of graph `which` (0: exact, 1: padded)."""
        begin, count = self.places[which], self.rows[which]
        rows = table[(slice(None),) * axis + (slice(begin, begin + count),)]
        return part.shape[axis] == count and _begins(part, rows)


@dataclass(frozen=True, slots=True)
class Appended:
    """A Concat that appends new rows to a cache. It becomes an update, in place, of a cache as long as the result."""

    cache: TensorId
    new: TensorId
    output: TensorId
    axis: int
    symbol: str


class Proofs:
    """A table of what was proven, by kind and signatures, of a bounded size."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Any] = {}

    def once(self, key: Callable[[], Hashable], make: Callable[[], T]) -> T:
        """Return a proof from the table, or make it.

        Making it may find inputs that decide shapes, so `key` is called again.
        """
        found: T | None = self._found.get(key())
        if found is None:
            found = make()
            if len(self._found) >= REMEMBERED:
                self._found.clear()
            self._found[key()] = found
        return found


def place_name(symbol: str) -> str:
    """Return the name of the input for the position in a cache at which new rows go."""
    return f"place in {symbol}"


def length_name(symbol: str) -> str:
    """Return the name of the input for a symbol's true extent."""
    return f"length of {symbol}"


def require_prefix(
    exact: Graph,
    padded: Graph,
    filled: Mapping[str, tuple[int, int]] | None = None,
    appended: Collection[TensorId] = (),
    rows: AllRows | None = None,
) -> tuple[Adjustment, ...]:
    """Return what the padded graph needs so that its first elements are those of the exact one; usually nothing.

    `filled` has the true and the padded extent of symbols. Operators with `appended` outputs are assumed to be the
    same: they become updates. A constant may be other `rows` of one table. Raises ModelError naming the first operator
    whose results would depend on the padding.
    """
    masks: list[Adjustment] = []
    same: dict[TensorId, TensorId] = dict(zip(exact.inputs, padded.inputs, strict=True))
    inside: dict[TensorId, Embedding] = {}  # tensors that are not a prefix
    for n, (small, large) in enumerate(zip(exact.operators, padded.operators, strict=False)):
        more = small.kind == "concat" and len(small.inputs) < len(large.inputs)  # parts behind the others
        if small.kind != large.kind or not (more or len(small.inputs) == len(large.inputs)):
            raise _refusal(small, "it becomes another operator")
        for operand, (a, b) in enumerate(zip(small.inputs, large.inputs, strict=not more)):
            if a in exact.constants and b in padded.constants:
                values = exact.constants[a], padded.constants[b]
                if not _begins(*values):
                    moved = rows.moved(n, operand, *values) if rows else None
                    if moved is None:
                        raise _refusal(small, f"its constant {a!r} becomes another one")
                    masks.append(moved)
            elif same.get(a) != b:
                raise _refusal(small, f"its input {a!r} becomes another one")
        if set(small.outputs) & set(appended):
            same |= zip(small.outputs, large.outputs, strict=True)
            continue
        kinds = zip(small.operation.inputs, large.operation.inputs, strict=not more)
        operands = [inside.get(t) or prefix(a.shape, b.shape) for t, (a, b) in zip(small.inputs, kinds, strict=True)]
        needed = _masks(n, small.operation, large.operation, filled or {}) if all(map(is_prefix, operands)) else ()
        try:
            found = results(small.operation, large.operation, operands, masked=bool(needed))
        except Different as error:
            raise _refusal(small, str(error)) from None
        inside |= {t: e for t, e in zip(small.outputs, found, strict=True) if not is_prefix(e)}
        masks += needed
        same |= zip(small.outputs, large.outputs, strict=True)
    if len(exact.operators) != len(padded.operators):
        longer = max(exact, padded, key=lambda g: len(g.operators))
        raise _refusal(longer.operators[min(len(exact.operators), len(padded.operators))], "it comes or goes")
    for output in exact.outputs:
        if same.get(output) != output:
            raise ModelError(f"output {output!r} cannot be padded: another operator computes it")
        if output in inside:
            op = exact.operators[exact.producers[output]]
            raise _refusal(op, "a dimension of its result is joined of padded ones")
    return tuple(masks)


def compared(
    load: Callable[[tuple[Adjustment, ...]], tuple[Imported, Imported]],
    true: Mapping[str, int],
    extents: Mapping[str, int],
) -> tuple[Graph, tuple[Adjustment, ...]]:
    """Return the exact graph, and what the padded one has to mask. Raises ModelError.

    `load` imports both, with masked steps. `true` and `extents` are the exact and the padded extents of symbols.
    """
    small, large = load(())
    filled = {symbol: (true[symbol], extents[symbol]) for symbol in true}
    steps = step_masks(small.steps, large.steps, filled)
    if not steps:
        return small.graph, require_prefix(small.graph, large.graph, filled)
    lengths = {length_name(s): np.asarray(true[s], np.int64) for s in {mask.symbol for mask in steps}}
    exact, padded = (imported.graph for imported in load(steps))
    return small.graph, (*steps, *require_specialized(exact, padded, lengths, filled))


def require_specialized(
    exact: Graph, padded: Graph, lengths: Mapping[TensorId, Array], filled: Mapping[str, tuple[int, int]]
) -> tuple[Mask, ...]:
    """Return what the padded graph needs if its inputs `lengths`, and those of the exact graph, have these values.

    Of steps that are masked, exactly those of the exact graph are left then.
    """
    graph, numbers = specialized(padded, lengths)
    needs = require_prefix(specialized(exact, lengths)[0], graph, filled)
    return tuple(replace(need, operator=numbers[need.operator]) for need in needs if isinstance(need, Mask))


def masked(graph: Graph, needs: Collection[Adjustment], appended: Collection[Appended] = ()) -> Graph:
    """Apply masks, moved constants and cache updates to a graph.

    True extents of symbols and positions of new rows become inputs, int64 scalars, after the others.
    """
    masks = [need for need in needs if isinstance(need, Mask)]
    moved = [need for need in needs if isinstance(need, ShiftedTable)]
    builder = GraphBuilder(graph.name)
    made = {a.output: a for a in appended}
    wholes = {a.cache: graph.types[a.output] for a in appended}
    for tensor in graph.inputs:
        kind = wholes.get(tensor, graph.types[tensor])
        builder.input(tensor, kind.shape, kind.dtype)
    known = {t: t for t in graph.inputs} | {t: builder.constant(value, t) for t, value in graph.constants.items()}
    known |= {t: t for t in builder.inputs}
    lengths = {
        s: known.get(name := length_name(s)) or builder.input(name, (), DType.I64)
        for s in sorted({m.symbol for m in masks})
    }
    places = {s: builder.input(place_name(s), (), DType.I64) for s in sorted({a.symbol for a in appended})}
    for n, op in enumerate(graph.operators):
        operands = [known[t] for t in op.inputs]
        if op.outputs[0] in made:
            known[op.outputs[0]] = _append(builder, known, made[op.outputs[0]], places, op.name)
            continue
        for rows in (m for m in moved if m.operator == n):
            count = builder.types[operands[rows.operand]].shape[rows.axis]
            at = builder.add("add", builder.constant(np.arange(count)), places[rows.symbol], name=op.name)
            table = builder.constant(rows.table)
            operands[rows.operand] = builder.add("gather", table, at, axis=rows.axis, name=op.name)
        for mask in (m for m in masks if m.operator == n):
            kind = builder.types[operands[mask.operand]]
            place = np.arange(kind.shape[mask.axis]).reshape(-1, *(1,) * (kind.rank - mask.axis - 1))
            inside = builder.add("less", builder.constant(place), lengths[mask.symbol], name=op.name)
            neutral = builder.constant(_value(mask.value, kind.dtype))
            operands[mask.operand] = builder.add("where", inside, operands[mask.operand], neutral, name=op.name)
        found = builder.add(op.kind, *operands, name=op.name, **op.operation.keywords)
        known |= zip(op.outputs, found if isinstance(found, tuple) else (found,), strict=True)
    for tensor in graph.outputs:
        builder.output(known[tensor], tensor)
    return builder.build()


def step_masks(
    exact: Mapping[str, int], padded: Mapping[str, int], filled: Mapping[str, tuple[int, int]]
) -> tuple[MaskedSteps, ...]:
    """Return the recurrent nodes that take steps for padding, given the steps of each node by label.

    A node whose steps are those of no symbol, or of two, is left out.
    """
    found = []
    for label, steps in exact.items():
        symbols = [s for s, pair in filled.items() if pair == (steps, padded.get(label)) and pair[0] < pair[1]]
        if len(symbols) == 1:
            found.append(MaskedSteps(label, symbols[0]))
    return tuple(found)


def _append(
    builder: GraphBuilder, known: Mapping[TensorId, TensorId], rows: Appended, places: Mapping[str, TensorId], name: str
) -> TensorId:
    """Add an update that writes new rows into a cache; return the cache."""
    kind = builder.types[known[rows.new]]
    count = np.arange(kind.shape[rows.axis]).reshape([-1 if d == rows.axis else 1 for d in range(kind.rank)])
    at = builder.add("add", builder.constant(count), places[rows.symbol], name=name)
    moves = tuple(-1 if d == rows.axis else d for d in range(kind.rank))
    given = known[rows.cache], known[rows.new], at
    found: TensorId = builder.add("update", *given, name=name, moves=moves, how="elements")
    return found


def _value(value: float, dtype: DType) -> Array:
    """Return a neutral value in an element type. Integers have no infinity: their limit takes its role."""
    if not dtype.is_float and value in (inf, -inf):
        value = dtype.info.max if value > 0 else dtype.info.min
    return np.asarray(value).astype(dtype.numpy)


def _masks(number: int, small: Operation, large: Operation, filled: Mapping[str, tuple[int, int]]) -> tuple[Mask, ...]:
    """Return the masks that make an operator's reduction over padded dimensions exact; none if none are known."""
    rank = large.inputs[0].rank if large.inputs else 0
    match large.kind:
        case "softmax" | "log_softmax":
            wanted = [(0, large.keywords.get("axis", -1) % rank, -inf)]
        case "reduce":
            value = _NEUTRAL.get(large.attr("fn"), 0)
            wanted = [(0, axis % rank, value) for axis in large.attr("axes")]
        case "matmul":
            ranks = [kind.rank for kind in large.inputs]
            wanted = [(0, ranks[0] - 1, 0.0), (1, max(ranks[1] - 2, 0), 0.0)]
        case _:
            return ()
    masks = []
    for operand, axis, value in wanted:
        kind = large.inputs[operand]
        extents = small.inputs[operand].shape[axis], kind.shape[axis]
        if extents[0] == extents[1]:
            continue
        meant = [symbol for symbol, known in filled.items() if known == extents]
        if len(meant) != 1 or (kind.dtype.is_float and float(_value(value, kind.dtype)) != value):
            return ()
        masks.append(Mask(number, operand, axis, meant[0], value))
    return tuple(masks)


def cut(array: Array, shape: Shape) -> Array:
    """Return the first elements in every dimension."""
    return array if array.shape == shape else np.ascontiguousarray(array[tuple(slice(e) for e in shape)])


def fill(name: str, array: Any, shape: Shape) -> Array:
    """Pad the array with zeros at the end of every dimension that is larger in `shape`."""
    if tuple(array.shape) == shape:
        return array  # type: ignore[no-any-return]
    if on_gpu(array):
        raise InputError(f"input {name!r} is to be padded, and lies on a GPU", hint="give it as a NumPy array")
    padded = np.zeros(shape, array.dtype)
    padded[tuple(slice(e) for e in array.shape)] = array
    return padded


class Buckets:
    """Extents to which symbolic dimensions are padded. An extent above all buckets stays as it is."""

    def __init__(self, buckets: Mapping[str, Sequence[int]], inputs: Inputs) -> None:
        inputs.require_symbols("buckets", buckets)
        for name, extents in buckets.items():
            if not extents or min(extents) < 1:
                raise InputError(f"buckets= gives {name!r} {list(extents)}", hint="for example [1, 8, 64]")
        self._buckets = {name: sorted(extents) for name, extents in buckets.items()}
        self._inputs = inputs
        self._given = self._fed = 0
        self._lock = threading.Lock()

    def padding(self) -> float:
        """Return the fraction of all input elements so far that is padding."""
        return 1 - self._given / self._fed if self._fed else 0.0

    def padded(self, shapes: dict[str, Any], arrays: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return shapes and arrays of inputs, padded; lists stay as they are."""
        if not self._buckets:
            return shapes, arrays
        extents = self.extents(shapes)
        filled = self._inputs.with_extents(
            shapes, {s: next((e for e in self._buckets[s] if e >= extent), extent) for s, extent in extents.items()}
        )
        changed = {n: fill(n, arrays[n], shape) for n, shape in filled.items() if n in arrays and shape is not None}
        with self._lock:
            self._given += sum(prod(shapes[n]) for n in changed)
            self._fed += sum(prod(filled[n]) for n in changed)
        return filled, arrays | changed

    def extents(self, shapes: Mapping[str, Any]) -> dict[str, int]:
        """Return the extents of symbols that have buckets."""
        return {s: extent for s, extent in self._inputs.symbols(shapes).items() if s in self._buckets}

    def probe(self, padded: Mapping[str, Any]) -> dict[str, Any]:
        """Return slightly smaller shapes that pad to these, to find what must be masked.

        Symbols of equal extent get different ones, so that masks are attributed to the right symbol.
        """
        smaller: dict[str, int] = {}
        seen: Counter[int] = Counter()
        for symbol, extent in self.extents(padded).items():
            seen[extent] += 1
            smaller[symbol] = max(extent - seen[extent], 1) if extent in self._buckets[symbol] else extent
        return self._inputs.with_extents(padded, smaller)


def _refusal(op: ROperator, why: str) -> ModelError:
    return ModelError(
        f"its results would depend on padding: {why}",
        node=op.name,
        op=op.kind,
        hint="leave the dimension out of buckets= or bounds=; each extent is then compiled by itself",
    )


def _begins(small: Array, large: Array) -> bool:
    """Check whether one constant is the first elements of the other."""
    fits = small.ndim == large.ndim and all(a <= b for a, b in zip(small.shape, large.shape, strict=True))
    return fits and small.dtype == large.dtype and cut(large, small.shape).tobytes() == small.tobytes()
