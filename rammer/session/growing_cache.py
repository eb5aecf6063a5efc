"""Turn caches that grow by Concat into caches of bounded size: a step writes its rows in place, and masks the rest.

Known as: a static KV cache. The model is imported for a cache that one step fills up to the bound. The Concat becomes
an update of a cache of that size, at the position where its rows end. This position, and the length behind which
operands are masked, are inputs of the program. The proof is that of padding: models imported for shorter caches must
have the same formula in each element.

What a model computes from a row's position (position embeddings, rotations, causal masks) is a constant of an imported
graph. It is searched in the model imported for all rows at once: if it is a slice of a constant there, a step gathers
its rows from that one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rammer.errors import InputError, ModelError, did_you_mean
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import Array, NamedArrays, TensorId
from rammer.runtime.state import StreamState
from rammer.session.buckets import Adjustment, AllRows, Appended, Mask, length_name, masked, place_name, require_prefix

if TYPE_CHECKING:
    from rammer.frontend.onnx import Declared, Imported

Extents: TypeAlias = Mapping[str, int]  # by symbol
Load: TypeAlias = "Callable[[Extents], Imported]"

MOVES = ("transpose", "reshape", "expand")  # operators that move all elements
SHORTEST = 2  # rows of the shortest cache in proofs: an extent of 1 would be broadcast


@dataclass(frozen=True)
class Fit:
    """The use of a program by runs of its own or smaller extents: masks, true extents, new rows, cuts of outputs."""

    needs: tuple[Adjustment, ...]
    extents: Extents  # true extents of symbols with buckets
    steps: Extents  # new rows of a run, by the symbol of the cache
    cuts: Mapping[TensorId, Mapping[int, str]]  # output -> padded dimension -> symbol

    def fed(self, lengths: Extents) -> dict[str, Array]:
        """Return the program's extra inputs: true extents, and the positions of new rows."""
        found = {place_name(symbol): at for symbol, at in lengths.items()}
        found |= {length_name(symbol): at for symbol, at in self._ends(lengths).items()}
        return {name: np.asarray(at, np.int64) for name, at in found.items()}

    def after(self, lengths: Extents) -> dict[str, int]:
        return {symbol: at + self.steps[symbol] for symbol, at in lengths.items()}

    def cut(self, found: Mapping[TensorId, Any], lengths: Extents) -> dict[TensorId, Any]:
        """Return the outputs without their padding: cut at the ends of caches and of given inputs."""
        ends = self._ends(lengths)
        return {
            name: array[
                tuple(slice(ends[self.cuts[name][d]] if d in self.cuts[name] else None) for d in range(array.ndim))
            ]
            if name in self.cuts
            else array
            for name, array in found.items()
        }

    def _ends(self, lengths: Extents) -> dict[str, int]:
        return {**self.extents, **self.after(lengths)}


@dataclass(frozen=True)
class StepGraph:
    """The graph of one step, and the facts that its runs need."""

    graph: Graph
    imported: Imported
    steps: Extents  # rows that are written in a run, by the symbol of the cache
    fit: Fit  # for the extents of the proof
    rows: Graph | None  # graph of all rows, if constants are rows of its tables


class BoundedCaches:
    """The caches of a model with `bounds`: symbol -> rows that a cache may have.

    `is_filled`: a run may store more rows than it was given (buckets), so a cache may have any values behind its end;
    otherwise these are zeros. Raises InputError for a symbol that is not a dimension of state, or that other inputs
    share.
    """

    def __init__(
        self,
        bounds: Mapping[str, int],
        inputs: Mapping[str, Declared],
        pairs: Mapping[str, str],
        is_filled: bool = False,
    ) -> None:
        self._is_filled = is_filled
        self.bounds, self._outputs = dict(bounds), {taker: output for output, taker in pairs.items()}
        self.axes: dict[str, tuple[int, str]] = {}  # cache -> (dimension that grows, its symbol)
        # symbol of another input, as long as a cache with its new rows -> the cache's symbol
        self.cache_of: dict[str, str] = {}
        self._new_rows: str | int | None = None  # symbol or number of new rows
        others: dict[str, str] = {}
        for name, port in inputs.items():
            for axis, extent in enumerate(port.shape or ()):
                if not isinstance(extent, str):
                    continue
                if name not in self._outputs:
                    others[extent] = name
                elif extent in self.bounds:
                    if name in self.axes:
                        raise InputError(f"bounds= names {extent!r}, a dimension of {name!r}, which has it twice")
                    self.axes[name] = axis, extent
        known = {symbol for _, symbol in self.axes.values()}
        for symbol, most in bounds.items():
            if symbol not in known | others.keys():
                raise InputError(
                    f"bounds= names {symbol!r}, which is no dimension of state",
                    hint=did_you_mean(symbol, known) or 'state={"present": "past"} makes an input state',
                )
            if most < SHORTEST + 2:
                raise InputError(f"bounds= gives {symbol!r} {most} places", hint=f"{SHORTEST + 2} at least")
        for symbol, name in others.items():
            named = self.bounds.get(symbol)
            if named is None and not any(part.strip() in known for part in symbol.split("+")):
                continue
            if symbol in known or len(known) != 1 or named not in (None, *(self.bounds[cache] for cache in known)):
                raise InputError(
                    f"bounds= names {symbol!r}, a dimension of {name!r}, which is no state",
                    hint="one that is a cache and its new rows has the bound of this cache",
                )
            (self.cache_of[symbol],) = known
            self.bounds.pop(symbol, None)
        self.follower_bounds = {symbol: self.bounds[cache] for symbol, cache in self.cache_of.items()}

    def lengths(self, memory: StreamState, given: NamedArrays) -> dict[str, int]:
        """Return the lengths of a stream's caches. Copy caches that are given or reset into arrays of full size."""
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

    def has_room(self, lengths: Extents, steps: Extents) -> bool:
        """Check whether the caches have space for a run that writes `steps` rows."""
        return all(lengths[symbol] + steps[symbol] <= most for symbol, most in self.bounds.items())

    def require_room(self, lengths: Extents, steps: Extents) -> None:
        """Raise InputError if a run would fill a cache beyond its bound."""
        for symbol, most in self.bounds.items():
            if lengths[symbol] + steps[symbol] > most:
                raise InputError(
                    f"caches have {lengths[symbol]} of {most} places along {symbol!r}, and {steps[symbol]} more come",
                    hint="reset() begins anew; a larger bounds= takes more",
                )

    def grown(self, load: Load, extents: Extents, probe: Extents) -> StepGraph:
        """Return the graph of a step for any lengths up to the bounds.

        `load` imports the model, given extents of symbols. `extents` are those of all symbols of other inputs, `probe`
        smaller ones of padded symbols. Raises ModelError naming an operator that computes something else for a longer
        cache.
        """
        if self.cache_of and self._new_rows is None:
            self._new_rows = self._find_new_rows(load, extents)
        load = self._followed(load, extents)
        steps = self._steps(load(dict.fromkeys(self.bounds, SHORTEST)).graph)
        for symbol, most in self.bounds.items():
            if most - steps[symbol] <= SHORTEST:
                raise InputError(f"bounds= gives {symbol!r} {most} places, and a run adds {steps[symbol]}")
        whole = load({symbol: most - steps[symbol] for symbol, most in self.bounds.items()})
        rows = None
        try:
            fit = self._fit(load, whole.graph, extents, probe, steps, None)
        except ModelError:
            rows = self._all_rows(load, whole.graph, extents)
            if rows is None:
                raise
            fit = self._fit(load, whole.graph, extents, probe, steps, rows)
        appended = [
            Appended(name, self._concat(whole.graph, name).inputs[1], self._outputs[name], axis, symbol)
            for name, (axis, symbol) in self.axes.items()
        ]
        return StepGraph(masked(whole.graph, fit.needs, appended), whole, steps, fit, rows)

    def fit(self, load: Load, grown: StepGraph, extents: Extents, true: Extents) -> Fit:
        """Return how runs of `true` extents use the program of `grown`. Raises ModelError if it cannot serve them."""
        if true == grown.fit.extents:
            return grown.fit
        fit = self._fit(self._followed(load, extents), grown.imported.graph, extents, true, grown.steps, grown.rows)
        if not set(fit.needs) <= set(grown.fit.needs):
            raise ModelError("what has to be masked depends on how much is given", hint="leave out buckets=")
        return fit

    def _fit(self, load: Load, whole: Graph, sizes: Extents, true: Extents, steps: Extents, rows: Graph | None) -> Fit:
        """Compare the graph with graphs of shorter caches and of true extents."""
        full = {symbol: most - steps[symbol] for symbol, most in self.bounds.items()}
        lengths = [dict.fromkeys(self.bounds, SHORTEST), {symbol: at - 1 for symbol, at in full.items()}]
        lengths += [{symbol: (at + 1) // 2 for symbol, at in full.items()}] if rows else []
        found = []
        for past in lengths:
            small = load({**true, **past}).graph
            come = self._steps(small)
            filled = {s: (past[s] + come[s], most) for s, most in self.bounds.items()}
            filled |= {s: (true[s], sizes[s]) for s in true if true[s] != sizes[s]}
            table = None
            if rows is not None:
                (symbol,) = self.bounds
                table = AllRows(rows, symbol, (past[symbol], full[symbol]), (come[symbol], steps[symbol]))
            found.append(require_prefix(small, whole, filled, self._outputs_of_caches(), table))
        if any(needs != found[0] for needs in found):
            raise ModelError("what has to be masked depends on how long a cache is", hint="leave out bounds=")
        cuts: dict[TensorId, dict[int, str]] = {}
        for name in whole.outputs:
            shapes = small.types[name].shape, whole.types[name].shape
            longer = {d: pair for d, pair in enumerate(zip(*shapes, strict=True)) if pair[0] != pair[1]}
            meant = {d: [s for s, known in filled.items() if known == pair] for d, pair in longer.items()}
            if wrong := [d for d, symbols in meant.items() if len(symbols) != 1]:
                raise ModelError(f"output {name!r}: dimension {wrong[0]} does not grow as one cache does")
            cuts |= {name: {d: symbols[0] for d, symbols in meant.items()}} if meant else {}
        needs = tuple(need for need in found[0] if self._is_filled or not self._is_zero(whole, need, found[0]))
        return Fit(needs, true, come, cuts)

    def _is_zero(self, graph: Graph, need: Adjustment, needs: Collection[Adjustment]) -> bool:
        """Check whether a product's operand needs no mask: zeros follow it, and the other operand is masked."""
        if not isinstance(need, Mask) or graph.operators[need.operator].kind != "matmul":
            return False
        tensor = graph.operators[need.operator].inputs[need.operand]
        while tensor not in self._outputs_of_caches():
            maker = graph.operators[graph.producers[tensor]] if tensor in graph.producers else None
            if maker is None or maker.kind not in MOVES:
                return False
            tensor = maker.inputs[0]
        return any(isinstance(n, Mask) and (n.operator, n.operand) == (need.operator, 1 - need.operand) for n in needs)

    def tidy(self, memory: StreamState, lengths: Extents) -> None:
        """Store zeros where a failed run may have stored rows."""
        for name, (axis, symbol) in self.axes.items():
            if (value := memory.value(name)) is not None:
                whole = deepcopy(value)
                whole[(slice(None),) * axis + (slice(lengths[symbol], None),)] = 0
                memory.advance({name: whole})

    def _find_new_rows(self, load: Load, extents: Extents) -> str | int:
        """Find what gives the number of new rows: a symbol of other inputs, or a constant. Raises ModelError."""
        ((symbol, most),) = self.bounds.items()
        rows_to_try = min(most - SHORTEST, SHORTEST + 3)
        trials: list[tuple[str | int, int]] = [(other, rows_to_try) for other in extents if other not in self.cache_of]
        for come, rows in [*trials, *((extent, extent) for extent in {1, *extents.values()})]:
            changed = {come: rows} if isinstance(come, str) else {}
            try:
                graph = load({**changed, symbol: SHORTEST, **dict.fromkeys(self.cache_of, SHORTEST + rows)}).graph
                if self._steps(graph)[symbol] == rows:
                    return come
            except ModelError:
                continue
        named = ", ".join(map(repr, self.cache_of))
        raise ModelError(f"{named} is not {symbol!r} and new rows", hint="leave out bounds=")

    def _followed(self, load: Load, extents: Extents) -> Load:
        """Wrap `load` so that dimensions of other inputs that follow a cache grow with it."""
        if not self.cache_of:
            return load

        def loaded(changed: Extents) -> Imported:
            come = {**extents, **changed}[self._new_rows] if isinstance(self._new_rows, str) else self._new_rows or 0
            return load({**changed, **{follower: changed[s] + come for follower, s in self.cache_of.items()}})

        return loaded

    def require_followed(self, given: Extents, after: Extents) -> None:
        """Raise InputError if a dimension that follows a cache is not as long as the cache with its new rows."""
        for symbol, extent in given.items():
            cache = self.cache_of.get(symbol)
            if cache is not None and extent != after[cache]:
                raise InputError(f"{symbol!r} is {extent}, where {cache!r} and the new rows are {after[cache]}")

    def _outputs_of_caches(self) -> set[TensorId]:
        return {self._outputs[name] for name in self.axes}

    def _all_rows(self, load: Load, whole: Graph, extents: Extents) -> Graph | None:
        """Import the graph for all rows at once.

        Returns None unless one symbol has bounds, and another counts the new rows.
        """
        if len(self.bounds) != 1:
            return None
        ((symbol, most),) = self.bounds.items()
        for other in extents.keys() - self.cache_of.keys():
            try:
                nearly = load({symbol: SHORTEST, other: most - SHORTEST}).graph
                if self._steps(nearly)[symbol] != most - SHORTEST:
                    continue
                rows = load({symbol: 0, other: most}).graph
            except ModelError:
                continue  # this symbol has another meaning
            if [op.kind for op in rows.operators] == [op.kind for op in whole.operators]:
                return rows
        return None

    def _concat(self, graph: Graph, name: str) -> ROperator:
        """Return the operator that appends to a cache. Raises ModelError."""
        output, (axis, _) = self._outputs[name], self.axes[name]
        op, rank = graph.operators[graph.producers[output]], graph.types[name].rank
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

    def _steps(self, graph: Graph) -> dict[str, int]:
        """Return the number of new rows of a run, by symbol."""
        found: dict[str, set[int]] = {}
        for name, (axis, symbol) in self.axes.items():
            found.setdefault(symbol, set()).add(graph.types[self._concat(graph, name).inputs[1]].shape[axis])
        for symbol, counts in found.items():
            if len(counts) > 1:
                raise ModelError(f"caches grow by different numbers of rows along {symbol!r}: {sorted(counts)}")
        return {symbol: counts.pop() for symbol, counts in found.items()}
