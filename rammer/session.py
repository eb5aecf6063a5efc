"""A model that takes inputs of any shape: a Program is compiled for each signature when it is first seen, and kept."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rammer.calling import as_array, check_names, on_gpu
from rammer.compiler import compile, require_compiler
from rammer.errors import InputError, ModelError
from rammer.growing import Growing, Grown
from rammer.ir.graph import Graph
from rammer.ir.tensor import Array, Shape
from rammer.padding import Buckets, Mask, cut, length_name, masked, require_prefix, require_symbols
from rammer.plugins import PluginRegistry
from rammer.program_cache import Kept, ProgramCache
from rammer.state import Memory, Stateful, checked_pairs
from rammer.vdevice.base import Progress, Room, silent

if TYPE_CHECKING:
    import onnx

    from rammer.frontend.onnx import Declared, Imported
    from rammer.frontend.onnx.ports import Place

Shapes: TypeAlias = "dict[str, tuple[Any, ...] | None]"  # of a list, the shapes of its elements; of no value, None
Arrays: TypeAlias = "dict[str, Any]"  # elements of lists by names of their own

HASHED_BYTES = 64  # values of more bytes are known by their digest
REMEMBERED = 4096  # signatures for which padding was proven


@dataclass(frozen=True)
class SessionPort:
    """An input or output: symbolic dimensions are their names, unknown ones None; no shape, if not even the rank is
    known. `type` is the standard's name: "tensor(float)".
    """

    name: str
    shape: list[int | str | None] | None
    type: str


@dataclass(frozen=True)
class SessionReport:
    """What a session has done so far. A miss is a run that had to compile first."""

    hits: int
    misses: int
    compiled_ahead: int
    put_out: int
    compile_s: float
    padding: float  # the part of what programs were given that is no input
    programs: tuple[tuple[str, int, float], ...]  # signature, runs, seconds; the one used last at the end

    def __str__(self) -> str:
        lines = [
            f"{self.hits} hits, {self.misses} misses, {self.compiled_ahead} compiled ahead, {self.put_out} put out; "
            f"{self.compile_s:.1f} s of compilation; {self.padding:.0%} of inputs are padding"
        ]
        lines += [f"  {text}: {runs} runs, {seconds:.1f} s" for text, runs, seconds in self.programs]
        return "\n".join(lines)


@dataclass(frozen=True)
class _Request:
    """What a call gives: shapes by input, arrays by name of a tensor."""

    shapes: Shapes
    arrays: Arrays = field(compare=False)
    masks: tuple[Mask, ...] = ()  # of operands that are padded


@dataclass(frozen=True)
class _Made:
    """What a program was made from."""

    imported: Imported
    grown: Grown | None = None


class Session(Stateful):
    """An ONNX model for inputs of any admissible shape. Safe to call from several threads.

    `run`, `get_inputs` and `get_outputs` are those of ONNX Runtime's InferenceSession. Inputs that decide shapes
    (axes, sizes, conditions) are found when they do; a Program is compiled per shape of the inputs and value of those.
    The last `max_programs` used are kept, each with its weights; compiled kernels are shared through the disk cache.
    `dims` fixes symbolic dimensions; other options are those of `rammer.compile`. Lists of tensors are Python lists,
    optional values without one None. `buckets={"batch": [1, 8, 64]}` fills a dimension up to one of these extents with
    zeros, and cuts outputs, where that is proven to change nothing; else a run raises ModelError with the node's name.
    `state={"h_out": "h_in"}` makes outputs inputs of the next run, as in a Program; `stream()` begins another state.
    `bounds={"past": 256}`: caches that grow along this dimension by Concat get room for so many places, and one program
    serves all lengths; refused as for `buckets` where that is not exact.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | onnx.ModelProto,
        target: str | None = None,
        *,
        max_programs: int = 8,
        dims: Mapping[str, int] | None = None,
        buckets: Mapping[str, Sequence[int]] | None = None,
        state: Mapping[str, str] | bool | None = None,
        bounds: Mapping[str, int] | None = None,
        policy: str | None = None,
        options: Mapping[str, str] | None = None,
        arch: str | None = None,
        device: str | int | None = None,
        precision: str | None = None,
        tune_seconds: float | None = None,
        registry: PluginRegistry | None = None,
    ) -> None:
        require_compiler()
        # onnx takes 0.2 s to import; who only runs programs needs none of it
        from rammer.frontend.onnx import Source

        if max_programs < 1:
            raise InputError(f"max_programs is {max_programs}", hint="at least one program is kept")
        self._source = Source(model)
        self._inputs = {port.name: port for port in self._source.inputs}
        self._outputs = {port.name: port for port in self._source.outputs}
        self._how: dict[str, Any] = {
            "target": target,
            "policy": policy,
            "options": options,
            "arch": arch,
            "device": device,
            "precision": precision,
            "tune_seconds": tune_seconds,
            "registry": registry,
        }
        self._dims = dict(dims or {})
        require_symbols("dims", self._dims, tuple(self._inputs.values()))
        self._optional = tuple(name for name, port in self._inputs.items() if port.is_optional)
        self._deciding: frozenset[str] = frozenset()  # tensors whose values were needed to compile
        self._fits: dict[Hashable, tuple[dict[str, Shape], tuple[Mask, ...]]] = {}
        self._masks: dict[Hashable, tuple[Mask, ...]] = {}  # by padded signature
        self._cache = ProgramCache(max_programs, self._key, self._compile)
        inputs, outputs = (
            {name: (port.type, _fixed(port)) for name, port in ports.items()} for ports in (self._inputs, self._outputs)
        )
        pairs = checked_pairs(state, inputs, outputs)
        self._growing = Growing(bounds or {}, self._inputs, pairs)
        if bounds and buckets:
            raise InputError("bounds= and buckets= are not used together", hint="give one of them")
        self._memory = Memory(pairs, self._growing.axes)
        self._buckets = Buckets(buckets or {}, tuple(self._inputs.values()))

    # what ONNX Runtime's sessions say

    def get_inputs(self) -> list[SessionPort]:
        """The inputs, in order."""
        return [self._port(port) for port in self._inputs.values()]

    def get_outputs(self) -> list[SessionPort]:
        """The outputs, in order."""
        return [self._port(port) for port in self._outputs.values()]

    def _port(self, port: Declared) -> SessionPort:
        shape = None if port.shape is None else [self._dims.get(e, e) if isinstance(e, str) else e for e in port.shape]
        return SessionPort(port.name, shape, port.type)

    def report(self) -> SessionReport:
        """Hits, misses, seconds of compilation, and the programs that are kept."""
        c, kept = self._cache.counts(), self._cache.kept()
        programs = tuple((k.signature, k.runs, k.compile_s) for k in kept)
        padding = self._buckets.padding()
        return SessionReport(c.hits, c.misses, c.compiled_ahead, c.put_out, c.compile_s, padding, programs)

    # running

    def _names(self) -> tuple[Sequence[str], Sequence[str]]:
        pairs = self._memory.pairs
        inputs = tuple(name for name in self._inputs if name not in pairs.values())
        return inputs, tuple(name for name in self._outputs if name not in pairs)

    def evaluate(self, memory: Memory, inputs: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
        """These outputs of a run of the stream that has this memory, and holds its turn."""
        check_names(inputs, self._inputs, (*self._optional, *memory.inputs))
        if self._growing.axes:
            return self._evaluate_growing(memory, inputs, outputs)
        kept = {name: value for name in memory.inputs if (value := memory.value(name)) is not None}
        given = {**kept, **inputs}
        shapes, arrays = self._flat(given)
        extents = self._extents(shapes)
        for name in memory.inputs:
            if name not in given:
                arrays[name] = self._zeros(self._inputs[name], extents)
                shapes[name] = arrays[name].shape
        return self._run(_Request(shapes, arrays), memory, inputs, outputs)

    def _evaluate_growing(self, memory: Memory, inputs: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
        """The same where caches have more room than they take."""
        caches = {n: as_array(n, inputs[n], self._inputs[n].dtype) for n in self._growing.axes if n in inputs}
        lengths = self._growing.lengths(memory, caches)
        given = {n: value for n, value in inputs.items() if n not in caches}
        kept = {
            n: value for n in memory.inputs if n not in self._growing.axes and (value := memory.value(n)) is not None
        }
        shapes, arrays = self._flat({**kept, **given})
        extents = self._extents(shapes)
        for name in memory.inputs:
            if name not in shapes:
                port = self._inputs[name]
                full = self._zeros(port, extents | self._growing.bounds)
                shapes[name] = full.shape
                if name not in self._growing.axes:
                    arrays[name] = full
        shapes = {name: shapes[name] for name in self._inputs if name in shapes}
        request = _Request(shapes, arrays)
        program, _ = self._cache.acquire(request)
        try:
            grown = program.info.grown
            assert grown is not None and program.program is not None
            self._growing.require_room(lengths, grown.steps)
            arrays |= grown.fed(lengths)
            inside = program.program.state_pairs
            names = {p.name for p in program.program.inputs} - (set(inside.values()) - given.keys())
            found = program.program.evaluate(memory, {name: arrays[name] for name in names}, outputs)
        finally:
            self._cache.release(program)
        memory.lengths = grown.after(lengths)
        return grown.cut(found, lengths)

    def _run(self, exact: _Request, memory: Memory, given: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
        """Outputs by name, from the program of this signature or from one of padded extents."""
        request, true_shapes = self._fitted(exact)
        kept, _ = self._cache.acquire(request)
        try:
            program, places = kept.program, kept.info.imported.outputs
            # state that this program keeps in place; what is padded, a list, or changes its shape is kept from outside
            inside = program.state_pairs if program and not true_shapes else {}
            outside = {output: taker for output, taker in memory.pairs.items() if output not in inside}
            found = {}
            if program:
                names = {p.name for p in program.inputs} - (set(inside.values()) - given.keys())
                tensors = [t for name in dict.fromkeys((*outputs, *outside)) for t in _tensors(places[name])]
                fed = {name: request.arrays[name] for name in names}
                found = program.evaluate(memory if inside else Memory(program.state_pairs), fed, tensors)
        finally:
            self._cache.release(kept)
        found |= {name: cut(found[name], shape) for name, shape in true_shapes.items() if name in found}
        memory.advance({taker: deepcopy(_gathered(places[output], found)) for output, taker in outside.items()})
        return {name: _gathered(places[name], found) for name in outputs}

    def _fitted(self, exact: _Request) -> tuple[_Request, dict[str, Shape]]:
        """The request of the program that serves this one, and the true shapes of outputs if that is padded."""
        padded = _Request(*self._buckets.padded(exact.shapes, exact.arrays))
        masks = self._masks_of(padded)
        true_shapes: dict[str, Shape] = {}
        if padded.shapes != exact.shapes:
            true_shapes, masks = self._proven(exact, padded, masks)
        if not masks:
            return padded, true_shapes
        extents = self._buckets.extents(exact.shapes)
        lengths = {length_name(s): np.asarray(extents[s], np.int64) for s in {mask.symbol for mask in masks}}
        return _Request(padded.shapes, padded.arrays | lengths, masks), true_shapes

    def _masks_of(self, padded: _Request) -> tuple[Mask, ...]:
        """What a padded program has to mask, as slightly smaller shapes show; nothing if these are refused."""
        shapes = self._buckets.probe(padded.shapes)
        if shapes == padded.shapes:
            return ()
        key = self._key(padded)
        if (masks := self._masks.get(key)) is None:
            arrays = {n: a if on_gpu(a) or n not in shapes else cut(a, shapes[n]) for n, a in padded.arrays.items()}
            try:
                masks = self._compared(_Request(shapes, arrays), padded)[1]
            except ModelError:
                masks = ()  # each run says by itself why it is refused
            self._remember(self._masks, self._key(padded), masks)
        return masks

    def _proven(
        self, exact: _Request, padded: _Request, masks: tuple[Mask, ...]
    ) -> tuple[dict[str, Shape], tuple[Mask, ...]]:
        """The true shapes of outputs, and masks, these if they do. Raises ModelError for what depends on padding."""
        fit = self._fits.get(self._key(exact))
        if fit is None:
            graph, needed = self._compared(exact, padded)
            shapes = {name: graph.types[name].shape for name in graph.outputs}
            fit = shapes, masks if set(needed) <= set(masks) else needed
            self._remember(self._fits, self._key(exact), fit)
        return fit

    def _compared(self, exact: _Request, padded: _Request) -> tuple[Graph, tuple[Mask, ...]]:
        """The exact graph, and what is to be masked in the padded one. Raises ModelError."""
        graph, extents = self._import(exact).graph, self._buckets.extents(padded.shapes)
        filled = {symbol: (true, extents[symbol]) for symbol, true in self._buckets.extents(exact.shapes).items()}
        return graph, require_prefix(graph, self._import(padded).graph, filled)

    @staticmethod
    def _remember(known: dict[Hashable, Any], key: Hashable, value: Any) -> None:
        """A bounded number of proofs."""
        if len(known) >= REMEMBERED:
            known.clear()
        known[key] = value

    def _zeros(self, port: Declared, extents: Mapping[str, int]) -> Array:
        """What a state starts from."""
        shape = [extents.get(e) if isinstance(e, str) else e for e in port.shape or ()]
        known = [e for e in shape if e is not None]
        if port.is_list or port.shape is None or len(known) < len(shape):
            raise InputError(f"the shape of state {port.name!r} is open", hint="give it once, or reset(…) to a value")
        return np.zeros(known, port.dtype.numpy)

    def _flat(self, inputs: Mapping[str, Any]) -> tuple[Shapes, Arrays]:
        """Shapes by input and arrays by tensor, checked against what the model declares."""
        shapes: Shapes = {}
        arrays: Arrays = {}
        for name, port in self._inputs.items():
            value = inputs.get(name)
            if value is None:
                if port.is_optional:
                    shapes[name] = None
                elif name in inputs:
                    raise InputError(f"input {name!r} is None", hint="only inputs of optional type may be")
                continue
            if not port.is_list:
                arrays[name] = self._array(port, name, value)
                shapes[name] = tuple(arrays[name].shape)
                continue
            if not isinstance(value, list | tuple):
                raise InputError(f"input {name!r} is a {type(value).__name__}", hint="it is a list of tensors")
            # onnx is imported by now
            from rammer.frontend.onnx.ports import element_names

            parts = element_names(name, len(value))
            arrays |= {part: self._array(port, part, v) for part, v in zip(parts, value, strict=True)}
            shapes[name] = tuple(tuple(arrays[part].shape) for part in parts)
        return shapes, arrays

    def _array(self, port: Declared, name: str, value: Any) -> Any:
        if on_gpu(value) or isinstance(value, Room):  # state that a program keeps
            return value
        array = as_array(name, value, port.dtype)
        if array.dtype.newbyteorder("=") != port.dtype.numpy:
            raise InputError(
                f"input {name!r}: dtype {array.dtype.name}, the model takes {port.dtype.value}",
                hint=f"convert it with .astype({port.dtype.value!r})",
            )
        return array

    def _extents(self, shapes: Shapes) -> dict[str, int]:
        """The symbolic dimensions' extents. Raises InputError for shapes that the model does not admit."""
        extents: dict[str, int] = dict(self._dims)
        for name, given in shapes.items():
            port = self._inputs[name]
            if port.shape is None or given is None:
                continue
            for shape in given if port.is_list else (given,):
                said = ", ".join("?" if e is None else str(e) for e in port.shape)
                if len(shape) != len(port.shape):
                    raise InputError(f"input {name!r}: rank {len(shape)}, the model takes [{said}]")
                for axis, (got, extent) in enumerate(zip(shape, port.shape, strict=True)):
                    wanted = extent
                    if isinstance(extent, str):  # elements of a list may differ
                        wanted = self._dims.get(extent) if port.is_list else extents.setdefault(extent, got)
                    if wanted is not None and got != wanted:
                        symbol = f", where {extent!r} is {wanted}" if isinstance(extent, str) else ""
                        raise InputError(f"input {name!r}: dimension {axis} is {got}, the model takes [{said}]{symbol}")
        return extents

    # programs

    def _key(self, request: _Request) -> Hashable:
        values = tuple((n, _content(n, request.arrays[n])) for n in sorted(self._deciding & request.arrays.keys()))
        return tuple(sorted(request.shapes.items())), values, request.masks

    def _compile(self, request: _Request) -> Kept[_Made]:
        start = time.perf_counter()
        grown = None
        if self._growing.axes:
            grown = self._growing.grown(lambda extents: self._import(self._shortened(request, extents)))
            imported, graph = grown.imported, grown.graph
        else:
            imported = self._import(request)
            graph = masked(imported.graph, request.masks) if request.masks else imported.graph
        pairs = {
            o: i for o, i in self._memory.pairs.items() if i in graph.inputs and graph.types[i] == graph.types.get(o)
        }
        program = compile(graph, state=pairs, **self._how) if graph.outputs else None
        text = ", ".join(f"{n}: {_shape_text(s)}" for n, s in request.shapes.items())
        return Kept(program, _Made(imported, grown), text, time.perf_counter() - start)

    def _shortened(self, request: _Request, extents: Mapping[str, int]) -> _Request:
        """The request with caches of these extents."""
        shapes = dict(request.shapes)
        for name, (axis, symbol) in self._growing.axes.items():
            shape = shapes[name]
            assert shape is not None
            shapes[name] = (*shape[:axis], extents[symbol], *shape[axis + 1 :])
        return _Request(shapes, request.arrays)

    def _import(self, request: _Request) -> Imported:
        """The graph for a signature, with the values of those inputs fixed that decide shapes."""
        from rammer.frontend.onnx import NotConstant

        deciding = self._deciding & request.arrays.keys()
        while True:
            constants = {name: _host(name, request.arrays[name]) for name in deciding}
            try:
                imported = self._source.load(shapes=request.shapes, dims=self._dims, constants=constants)
                break
            except NotConstant as error:
                found = set(error.inputs) & request.arrays.keys()
                if not found - deciding:
                    raise
                deciding |= found
        self._deciding = self._deciding | deciding  # a new set: other threads read the old one
        return imported

    # ahead of time

    def warm(
        self,
        signatures: Sequence[Mapping[str, Any]],
        *,
        background: bool = False,
        progress: Progress = silent,
    ) -> Future[int]:
        """Compile ahead: the result is how many programs were compiled.

        A signature has extents of symbolic dimensions by name, shapes of inputs (tuples), and arrays of those whose
        values decide shapes: {"batch": 8, "x": (8, 3), "axes": np.array([1])}. In the background errors are those of
        the future; `progress` is called there with ("programs", done, total). `close` ends it after the current one.
        """
        requests = [self._asked(signature) for signature in signatures]
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()

        def work() -> None:
            compiled = 0
            try:
                for number, request in enumerate(requests):
                    progress("programs", number, len(requests))
                    kept, is_new = self._cache.acquire(self._fitted(request)[0], ahead=True)
                    self._cache.release(kept)
                    compiled += is_new
                progress("programs", len(requests), len(requests))
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(compiled)

        if background:
            threading.Thread(target=work, name="rammer warm", daemon=True).start()
        else:
            work()
            future.result()
        return future

    def _asked(self, signature: Mapping[str, Any]) -> _Request:
        """What a run of a signature would give, as far as it decides what is compiled."""
        symbols = {e for port in self._inputs.values() for e in port.shape or () if isinstance(e, str)}
        check_names({n: v for n, v in signature.items() if n not in symbols}, self._inputs, tuple(self._inputs))
        extents = (
            self._dims
            | self._growing.bounds
            | {n: v for n, v in signature.items() if n in symbols and n not in self._inputs}
        )
        shapes: Shapes = {}
        given: dict[str, Any] = {}
        for name, port in self._inputs.items():
            value = signature.get(name)
            if isinstance(value, np.ndarray | np.generic) or (port.is_list and _holds_arrays(value)):
                given[name] = value
            elif value is not None or (port.is_optional and name in signature):
                shapes[name] = value if value is None else tuple(value)
            elif port.is_optional:
                shapes[name] = None
            elif port.is_list or port.shape is None:
                raise InputError(f"the signature says nothing about input {name!r}", hint=f"give {name!r} its shape")
            else:
                known = [extents.get(e) if isinstance(e, str) else e for e in port.shape]
                if None in known:
                    open_ = port.shape[known.index(None)]
                    hint = f"for example {{{open_!r}: 8}}" if open_ else f"give {name!r} its shape"
                    raise InputError(f"the signature leaves dimension {open_ or '?'!r} of {name!r} open", hint=hint)
                shapes[name] = tuple(known)
        more, arrays = self._flat(given)
        ordered = {name: (shapes | more)[name] for name in self._inputs if name in shapes or name in more}
        self._extents(ordered)
        return _Request(ordered, arrays)

    def close(self) -> None:
        """Close all programs, when their runs are done. Later runs raise InputError."""
        self._cache.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        def ports(items: Sequence[SessionPort]) -> str:
            return ", ".join(f"{p.name}: {p.type}{'' if p.shape is None else p.shape}" for p in items)

        signature = f"({ports(self.get_inputs())}) -> ({ports(self.get_outputs())})"
        return f"<Session: {signature}, {len(self._cache.kept())} programs>"


def _fixed(port: Declared) -> list[int | None] | None:
    """The dimensions that do not change: those that do may have other names in the next value of a state."""
    return port.shape and [e if isinstance(e, int) else None for e in port.shape]  # type: ignore[return-value]


def _gathered(place: Place, found: Mapping[str, Any]) -> Any:
    """An output: an array, a list of arrays, or no value."""
    if place is None:
        return None
    return found[place] if isinstance(place, str) else [found[name] for name in place]


def _tensors(place: Place) -> tuple[str, ...]:
    return () if place is None else (place,) if isinstance(place, str) else place


def _holds_arrays(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(v, np.ndarray) for v in value)


def _host(name: str, value: Any) -> Array:
    if on_gpu(value):
        raise InputError(f"input {name!r} decides shapes, and lies on a GPU", hint="give it as a NumPy array")
    return np.asarray(value)


def _content(name: str, value: Any) -> Hashable:
    """What tells values apart: their bytes, or a digest of them."""
    data = _host(name, value).tobytes()
    return data if len(data) <= HASHED_BYTES else hashlib.sha256(data).digest()


def _shape_text(given: Any) -> str:
    if given is None:
        return "none"
    return (
        f"[{', '.join(map(_shape_text, given))}]"
        if given and isinstance(given[0], tuple)
        else "×".join(map(str, given))
    )
