"""Caches that grow by Concat, in memory of a bounded size: a step writes its rows at the end, and the rest is masked.

The model is imported for a cache that a step fills up to the bound. There the Concat becomes an update of a cache of
that size, at the place where its rows end; this and the length behind which is masked are inputs of the program. It is
proven as padding is: against the model imported for shorter caches, whose formulas must be the same in each element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rammer.errors import InputError, ModelError, did_you_mean
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import Array, TensorId
from rammer.padding import Appended, length_name, masked, place_name, require_prefix
from rammer.state import Memory

if TYPE_CHECKING:
    from rammer.frontend.onnx import Declared, Imported

SHORTEST = 2  # rows of a cache that programs are proven against: an extent of 1 is broadcast


@dataclass(frozen=True)
class Grown:
    """The graph of a step, and what a run has to know of it."""

    graph: Graph
    imported: Imported
    steps: Mapping[str, int]  # symbol -> rows that come in a run
    cuts: Mapping[TensorId, Mapping[int, str]]  # output -> dimensions that are longer than the caches are, by symbol

    def fed(self, lengths: Mapping[str, int]) -> dict[str, Array]:
        """The inputs that say how long the caches are."""
        found = {place_name(symbol): np.asarray(at, np.int64) for symbol, at in lengths.items()}
        return found | {length_name(s): np.asarray(at + self.steps[s], np.int64) for s, at in lengths.items()}

    def after(self, lengths: Mapping[str, int]) -> dict[str, int]:
        return {symbol: at + self.steps[symbol] for symbol, at in lengths.items()}

    def cut(self, found: Mapping[TensorId, Any], lengths: Mapping[str, int]) -> dict[TensorId, Any]:
        """Outputs without what lies behind the caches' ends."""
        ends = self.after(lengths)
        return {
            name: array[
                tuple(slice(ends[self.cuts[name][d]] if d in self.cuts[name] else None) for d in range(array.ndim))
            ]
            if name in self.cuts
            else array
            for name, array in found.items()
        }


class Growing:
    """The caches of a model with `bounds`: symbol -> rows that a cache may have.

    Raises InputError for a symbol that is no dimension of state, or that other inputs have, too.
    """

    def __init__(self, bounds: Mapping[str, int], inputs: Mapping[str, Declared], pairs: Mapping[str, str]) -> None:
        self.bounds, self._outputs = dict(bounds), {taker: output for output, taker in pairs.items()}
        self.axes: dict[str, tuple[int, str]] = {}  # cache -> the dimension that grows, and its symbol
        for name, port in inputs.items():
            for axis, extent in enumerate(port.shape or ()):
                if extent in self.bounds and isinstance(extent, str):
                    if name not in self._outputs or name in self.axes:
                        what = "has it twice" if name in self.axes else "is no state"
                        raise InputError(f"bounds= names {extent!r}, a dimension of {name!r}, which {what}")
                    self.axes[name] = axis, extent
        known = {symbol for _, symbol in self.axes.values()}
        for symbol, most in self.bounds.items():
            if symbol not in known:
                raise InputError(
                    f"bounds= names {symbol!r}, which is no dimension of state",
                    hint=did_you_mean(symbol, known) or 'state={"present": "past"} makes an input state',
                )
            if most < SHORTEST + 2:
                raise InputError(f"bounds= gives {symbol!r} {most} places", hint=f"{SHORTEST + 2} at least")

    def lengths(self, memory: Memory, given: Mapping[str, Array]) -> dict[str, int]:
        """How long a stream's caches are. Those that are given, or that it was reset to, get their full room."""
        lengths = dict(memory.lengths)
        for name, (axis, symbol) in self.axes.items():
            value = given[name] if name in given else None if symbol in memory.lengths else memory.value(name)
            if value is None:
                continue
            length, most = value.shape[axis], self.bounds[symbol]
            if lengths.setdefault(symbol, length) != length and name not in given:
                raise InputError(f"{name!r} has {length} places along {symbol!r}, another cache {lengths[symbol]}")
            if length > most:
                raise InputError(f"{name!r} has {length} places along {symbol!r}", hint=f"bounds= grants {most}")
            lengths[symbol] = length
            shape = (*value.shape[:axis], most, *value.shape[axis + 1 :])
            whole = np.zeros(shape, value.dtype)
            whole[(slice(None),) * axis + (slice(length),)] = value
            memory.advance({name: whole})
        memory.lengths = lengths
        return lengths | {symbol: 0 for symbol in self.bounds if symbol not in lengths}

    def require_room(self, lengths: Mapping[str, int], steps: Mapping[str, int]) -> None:
        """Raise InputError where a run would fill a cache beyond its bound."""
        for symbol, most in self.bounds.items():
            if lengths[symbol] + steps[symbol] > most:
                raise InputError(
                    f"caches have {lengths[symbol]} of {most} places along {symbol!r}, and {steps[symbol]} more come",
                    hint="reset() begins anew; a larger bounds= takes more",
                )

    def grown(self, load: Callable[[Mapping[str, int]], Imported]) -> Grown:
        """The graph of a step for any lengths up to the bounds; `load` imports the model for extents of the symbols.

        Raises ModelError naming the operator that does something else for a longer cache.
        """
        first = load(dict.fromkeys(self.bounds, SHORTEST)).graph
        steps = {symbol: self._step(first, symbol) for symbol in self.bounds}
        for symbol, most in self.bounds.items():
            if most - steps[symbol] <= SHORTEST:
                raise InputError(f"bounds= gives {symbol!r} {most} places, and a run adds {steps[symbol]}")
        full = {symbol: most - steps[symbol] for symbol, most in self.bounds.items()}
        whole, outputs = load(full), {self._outputs[name] for name in self.axes}
        found = []
        for past in (dict.fromkeys(self.bounds, SHORTEST), {s: at - 1 for s, at in full.items()}):
            small = load(past).graph
            filled = {s: (past[s] + steps[s], most) for s, most in self.bounds.items()}
            found.append(require_prefix(small, whole.graph, filled, appended=outputs))
        if found[0] != found[1]:
            raise ModelError("what has to be masked depends on how long a cache is", hint="leave out bounds=")
        cuts: dict[TensorId, dict[int, str]] = {}
        for name in whole.graph.outputs:
            shapes = small.types[name].shape, whole.graph.types[name].shape
            longer = {d: pair for d, pair in enumerate(zip(*shapes, strict=True)) if pair[0] != pair[1]}
            meant = {d: [s for s, known in filled.items() if known == pair] for d, pair in longer.items()}
            if wrong := [d for d, symbols in meant.items() if len(symbols) != 1]:
                raise ModelError(f"output {name!r}: dimension {wrong[0]} does not grow as one cache does")
            cuts |= {name: {d: symbols[0] for d, symbols in meant.items()}} if meant else {}
        appended = [
            Appended(name, self._concat(whole.graph, name).inputs[1], self._outputs[name], axis, symbol)
            for name, (axis, symbol) in self.axes.items()
        ]
        return Grown(masked(whole.graph, found[0], appended), whole, steps, cuts)

    def _concat(self, graph: Graph, name: str) -> ROperator:
        """The operator that appends to a cache. Raises ModelError."""
        output, (axis, _) = self._outputs[name], self.axes[name]
        op = graph.operators[graph.producers[output]]
        rank = graph.types[name].rank
        appends = op.kind == "concat" and len(op.inputs) == 2 and op.operation.attr("axis") % rank == axis
        if not appends or op.inputs[0] != name:
            raise ModelError(
                f"{output!r} is not {name!r} with new rows behind it",
                node=op.name,
                op=op.kind,
                hint="leave out bounds=",
            )
        if others := [n for n in graph.consumers[name] if graph.operators[n] is not op]:
            other = graph.operators[others[0]]
            raise ModelError(f"it reads {name!r} as it was before", node=other.name, op=other.kind)
        return op

    def _step(self, graph: Graph, symbol: str) -> int:
        steps = {
            graph.types[self._concat(graph, name).inputs[1]].shape[axis]
            for name, (axis, own) in self.axes.items()
            if own == symbol
        }
        if len(steps) > 1:
            raise ModelError(f"caches grow by different numbers of rows along {symbol!r}: {sorted(steps)}")
        return steps.pop()
