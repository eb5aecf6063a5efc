"""Run a model on inputs of any shape: compile a Program for each new signature, and cache it.

Known as: shape specialization, a JIT with a program cache. A signature is the shapes of the inputs, and the values of
those inputs that decide shapes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from rammer.compiler import CompileOptions, compile
from rammer.compiler.options import DEVICE_OPTIONS, DeviceKeywords, Target
from rammer.errors import InputError, ModelError, counted, message
from rammer.ir.tensor import Array, NamedArrays, TensorType
from rammer.plugins import PluginRegistry
from rammer.runtime.call import as_array, check_names, on_gpu
from rammer.runtime.state import Stateful, StreamState, checked_pairs
from rammer.session.buckets import Buckets, MaskedSteps, Proofs, cut, fill, length_name, masked
from rammer.session.cache import CachedProgram, ProgramCache
from rammer.session.growing_cache import BoundedCaches, Fit, StepGraph
from rammer.session.inputs import Inputs, Request, SessionPort, content, host_value, is_flag, is_small, shape_text
from rammer.session.onnxruntime import InferenceSession, ModelMetadata, Provider, chosen_target, threads_of
from rammer.session.outputs import cut_counted, gathered, tensors_of
from rammer.session.padding import Padding
from rammer.session.report import SessionReport
from rammer.session.seen import SeenSignatures
from rammer.session.specialize import folded
from rammer.vdevice.base import Progress, silent

if TYPE_CHECKING:
    import onnx

    from rammer.frontend.onnx import Imported, NotConstant, Source
    from rammer.frontend.onnx.values import ValuedNode
    from rammer.session.control_flow import Stages

STRIDE = 0x9E3779B9  # between the first numbers of two loops: multiples of it spread evenly over 32 bits
CHOICES = 4  # most values of an integer that decides branches; with more of them the model is cut


@dataclass(frozen=True)
class _Made:
    """The source of a compiled program: the imported graph, or the values that its import has computed already."""

    imported: Imported
    grown: StepGraph | None = None
    values: NamedArrays = field(default_factory=dict)  # values of outputs, if the import computed all of them


class Session(Stateful, InferenceSession):
    """An ONNX model for inputs of any admissible shape. Safe to call from several threads.

    Its methods are those of ONNX Runtime's InferenceSession. It compiles a Program per signature: the shapes of all
    inputs, and the values of those that decide shapes. A missing optional value is None.

    Args:
        model: A path to an ONNX or TensorFlow model, its bytes, or a ModelProto.
        target: The vDevice: "cpu" by default, or that of RAMMER_VDEVICE.
        providers: ONNX Runtime's, instead of `target`.
        provider_options: ONNX Runtime's: the number of a device.
        sess_options: ONNX Runtime's; its number of threads counts.
        max_programs: How many programs are kept, those used last, each with its weights.
        max_steps: The most steps of a loop that values decide; its body is a program of its own.
        dims: Extents of dimensions that the model names.
        buckets: {"batch": [1, 8, 64]} pads a dimension with zeros to one of these extents, and cuts the outputs. A
            run raises ModelError with the node's name unless it is proven that this changes no result.
        state: {"h_out": "h_in"} makes outputs inputs of the next run, as in a Program; `stream()` begins another state.
        bounds: {"past": 256} gives caches that grow along this dimension by Concat memory for that many rows: one
            program for all lengths. A model for which this is not exact is refused.
        registry: The plugins to use; by default all that are installed.
        how: Options as one value; those that are given as keywords count before these.
        keywords: Options of `rammer.compile` that choose a policy and a device, or restrict rKernels.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | onnx.ModelProto | Source,
        target: Target | None = None,
        *,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        sess_options: Any = None,
        max_programs: int = 8,
        max_steps: int = 100_000,
        dims: Mapping[str, int] | None = None,
        buckets: Mapping[str, Sequence[int]] | None = None,
        state: Mapping[str, str] | bool | None = None,
        bounds: Mapping[str, int] | None = None,
        registry: PluginRegistry | None = None,
        how: CompileOptions | None = None,
        **keywords: Unpack[DeviceKeywords],
    ) -> None:
        # onnx takes 0.2 s to import, and running programs does not need it
        from rammer.frontend.onnx import Source

        if max_programs < 1:
            raise InputError(f"max_programs is {max_programs}", hint="at least one program is kept")
        self._registry = registry or PluginRegistry()
        target, number = chosen_target(target, providers, provider_options, self._registry)
        how = CompileOptions.of({"target": target, **keywords}, "Session()", how, DEVICE_OPTIONS)
        device = number if how.device is None else how.device
        if sess_options is not None and device is None and how.threads is None and how.vdevice == "cpu":
            device = threads_of(sess_options)
        self._how = how.but(target=how.vdevice, device=device)
        # Raise for a missing or unavailable vDevice now, not in the first run.
        _, vdevice = self._how.open(self._registry)
        vdevice.close()
        self._source = model if isinstance(model, Source) else Source(model)
        self._inputs = Inputs({port.name: port for port in self._source.inputs}, dict(dims or {}))
        self._outputs = {port.name: port for port in self._source.outputs}
        self._named_outputs = [port.name for port in self._source.outputs]  # one may be named twice
        self._deciding: frozenset[str] = frozenset()  # inputs whose values decide shapes
        self._choices: dict[str, set[Hashable]] = {}  # values of integers that decide branches
        self._proofs = Proofs()
        self._cache = ProgramCache(max_programs, self._key, self._compile)
        inputs, outputs = (
            # symbolic dimensions may have other names in a state's next value
            {n: (p.type, p.shape and [e if isinstance(e, int) else None for e in p.shape]) for n, p in ports.items()}
            for ports in (self._inputs.ports, self._outputs)
        )
        pairs = checked_pairs(state, inputs, outputs)
        if texts := [name for name in pairs.values() if self._inputs.ports[name].is_text]:
            raise InputError(f"state= keeps {texts[0]!r}, which has strings", hint="give it in each call")
        self._growing = BoundedCaches(bounds or {}, self._inputs.ports, pairs, bool(buckets))
        for name, port in self._inputs.ports.items() if bounds else ():
            if name in pairs.values() and (both := set(port.shape or ()) & set(buckets or ())):
                raise InputError(f"buckets= names {both.pop()!r}, a dimension of {name!r}, which is state with bounds=")
        self._memory = StreamState(pairs, self._growing.axes)
        self._max_programs, self._max_steps = max_programs, max_steps
        self._stages: Stages | None = None  # set when the model is cut
        self._cutting = threading.Lock()
        self._fixes = self._source.num_nodes == 1  # whether large values may be part of a signature, too
        self._whole = "bounds=" if bounds else "buckets=" if buckets else ""  # the option that forbids cutting
        self._load = partial(self._source.load, dims=self._inputs.dims, is_bounded=not self._whole)
        self._buckets = Buckets(buckets or {}, self._inputs)
        self._padding = Padding(self._buckets, self._proofs, self._key, self._import)
        self._called = (  # looked up in every call
            tuple(name for name in self._inputs.ports if name not in pairs.values()),
            tuple(name for name in self._named_outputs if name not in pairs),
        )
        self._last: CachedProgram[_Made] | None = None  # the program that has run last, if it keeps all state
        self._valued: ValuedNode | None = None  # set once an import has checked such a model
        self._admitted: tuple[object, ...] | None = None  # types and shapes of the last inputs of a cut model
        self._seen = SeenSignatures[_Made](self._cache.count)
        self._try_run = None if pairs or self._whole else self._seen.run
        self._draws = count()  # runs that draw random numbers

    # ONNX Runtime's interface

    @property
    def target(self) -> str:
        """Name of the vDevice."""
        return self._how.vdevice

    def get_modelmeta(self) -> ModelMetadata:
        """Return the model's metadata: producer, names, version."""
        return ModelMetadata(**self._source.metadata)

    def get_inputs(self) -> list[SessionPort]:
        """Return the inputs, in order."""
        return [self._inputs.shown(port) for port in self._inputs.ports.values()]

    def get_outputs(self) -> list[SessionPort]:
        """Return the outputs, in order."""
        return [self._inputs.shown(port) for port in self._outputs.values()]

    def report(self) -> SessionReport:
        """Return hits, misses, seconds of compilation, and the programs in the cache."""
        c, kept = self._cache.counts(), self._cache.kept()
        programs = tuple((k.signature, k.runs, k.compile_s) for k in kept)
        padding = self._buckets.padding()
        own = SessionReport(c.hits, c.misses, c.compiled_ahead, c.evictions, c.compile_s, padding, programs)
        for label, part in self._stages.sessions() if self._stages else ():
            own = own.with_part(label, part.report())
        return own

    # running

    def _names(self) -> tuple[Sequence[str], Sequence[str]]:
        return self._called

    def evaluate(self, memory: StreamState, inputs: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
        """Run once on the stream that owns `memory`, and return these outputs. The caller holds `memory.run_lock`."""
        if self._stages is None:
            try:
                return self.evaluate_uncut(memory, inputs, outputs)
            except ModelError as error:
                self._cut(error)
        return self._evaluate_cut(memory, inputs, outputs)

    def part(self, inputs: Mapping[str, Any], outputs: Sequence[str], *, uncut: bool = False) -> dict[str, Any]:
        """Run once as a part without state of another session's model, and return these outputs, maybe others too."""
        run = self.evaluate_uncut if uncut else self.evaluate
        return (self._try_run and self._try_run(inputs)) or run(StreamState({}), inputs, outputs)

    def evaluate_uncut(self, memory: StreamState, inputs: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
        """Run once with one program, and return these outputs, maybe others too.

        Raises Undecided for a loop or a branch that one program cannot contain.
        """
        last = None if self._deciding else self._last
        if last and last.program and last.program.continues(memory, inputs) and self._cache.reacquire(last):
            try:
                return last.program.evaluate(memory, inputs, outputs)
            finally:
                self._cache.release(last)
        check_names(inputs, self._inputs.ports, (*self._inputs.optional, *memory.inputs))
        if self._growing.axes:
            return self._evaluate_growing(memory, inputs, outputs)
        kept = {name: value for name in memory.inputs if (value := memory.value(name)) is not None}
        request = self._request(memory, {**kept, **inputs})
        if self._valued is None:
            return self._run(request, memory, inputs, outputs)
        return self._valued.run({name: host_value(name, array) for name, array in request.arrays.items()})

    def _request(self, memory: StreamState, given: Mapping[str, Any]) -> Request:
        """Return the request of a call, with zeros for state that it does not give."""
        shapes, arrays = self._inputs.flat(given)
        extents = self._inputs.extents(shapes)
        for name in memory.inputs:
            if name not in given:
                arrays[name] = self._inputs.zeros(self._inputs.ports[name], extents)
                shapes[name] = arrays[name].shape
        return Request(shapes, arrays)

    def _cut(self, error: ModelError) -> None:
        """Run the model in parts from now on. Raises the error if cutting does not help."""
        from rammer.frontend.onnx import NotConstant
        from rammer.session.control_flow import Stages

        if not isinstance(error, NotConstant) or not error.cuts:
            raise error
        if self._whole:
            what = f"{error.what}, and so it runs apart from what is around it"
            raise ModelError(what, hint=f"leave out {self._whole}, for which a model has to be one program") from error
        with self._cutting:
            self._stages = self._stages or Stages(self._source, self._opened, self._max_steps)

    def _opened(self, source: Source, pairs: Mapping[str, str], fixes: bool, bounds: Mapping[str, int]) -> Session:
        """Open a session for a part of the model, with the options of this one."""
        most, steps = self._max_programs, self._max_steps
        options: dict[str, Any] = {"max_programs": most, "max_steps": steps, "state": pairs, "bounds": bounds}
        part = Session(source, **options, how=self._how, registry=self._registry)
        part._fixes = part._fixes or fixes
        return part

    def _evaluate_cut(self, memory: StreamState, inputs: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
        assert self._stages is not None
        types = tuple([(name, type(v), getattr(v, "dtype", 0), getattr(v, "shape", 0)) for name, v in inputs.items()])
        values = inputs
        if memory.pairs or types != self._admitted:
            values = self._checked(memory, inputs)
            same = values.keys() == inputs.keys() and all(values[name] is value for name, value in inputs.items())
            self._admitted = types if same else None
        found = self._stages.run(values, tuple(dict.fromkeys((*outputs, *memory.pairs))))
        memory.advance({taker: deepcopy(found[output]) for output, taker in memory.pairs.items()})
        return {name: found[name] for name in outputs}

    def _checked(self, memory: StreamState, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return values of all inputs for a model that is cut. Raises InputError."""
        check_names(inputs, self._inputs.ports, (*self._inputs.optional, *memory.inputs))
        kept = {name: deepcopy(value) for name in memory.inputs if (value := memory.value(name)) is not None}
        request = self._request(memory, {**kept, **inputs})
        if resident := [name for name, array in request.arrays.items() if on_gpu(array)]:
            raise InputError(f"input {resident[0]!r} lies on a GPU, and the model is cut", hint="give a NumPy array")
        values = {name: self._inputs.value(name, request) for name in self._inputs.ports}
        return values | {
            name: np.asarray(v, object)
            for name, v in inputs.items()
            if self._inputs.ports[name].is_text and v is not None
        }

    def held(self, inputs: Mapping[str, Any], changing: Collection[str]) -> CachedProgram[_Made] | None:
        """Return the program of a loop's body, which stays open until it is released.

        None if state does not stay inside one program, or if inputs that are `changing` decide which program runs; also
        if there are strings.
        """
        if self._stages is None and not any(port.is_text for port in self._inputs.ports.values()):
            try:
                request = self._request(self._memory, inputs)
                shapes = self._inputs.with_extents(request.shapes, self._growing.bounds)
                kept, _ = self._cache.acquire(Request(shapes, request.arrays))
            except ModelError as error:
                self._cut(error)
            else:
                inside = kept.program and kept.program.state_pairs == self._memory.pairs
                if inside and not kept.counts and self._deciding.isdisjoint(changing):
                    return kept
                self._cache.release(kept, -1)
        return None

    def output_types(self, inputs: Mapping[str, Any]) -> dict[str, TensorType]:
        """Return the types of the outputs that are tensors, for these inputs."""
        imported = self._import(Request(*self._inputs.flat(inputs)))
        types, places = imported.graph.types, imported.outputs
        return {name: types[tensor] for name, place in places.items() for tensor in tensors_of(place)[:1]}

    def _evaluate_growing(
        self, memory: StreamState, inputs: Mapping[str, Any], outputs: Sequence[str]
    ) -> dict[str, Any]:
        """Run once with caches that have `bounds`: their memory is longer than their contents."""
        caches = {n: as_array(n, inputs[n], self._inputs.ports[n].dtype) for n in self._growing.axes if n in inputs}
        lengths = self._growing.lengths(memory, caches)
        given = {n: value for n, value in inputs.items() if n not in caches}
        kept = {n: v for n in memory.inputs if n not in self._growing.axes and (v := memory.value(n)) is not None}
        shapes, arrays = self._inputs.flat({**kept, **given})
        extents = self._inputs.extents(shapes)
        for name in memory.inputs:
            if name not in shapes:
                port = self._inputs.ports[name]
                full = self._inputs.zeros(port, extents | self._growing.bounds)
                shapes[name] = full.shape
                if name not in self._growing.axes:
                    arrays[name] = full
        shapes = {name: shapes[name] for name in self._inputs.ports if name in shapes}
        shapes = self._inputs.with_extents(shapes, self._growing.follower_bounds)
        arrays = {n: fill(n, a, shape) if (shape := shapes.get(n)) else a for n, a in arrays.items()}
        exact = Request(shapes, arrays)
        request = Request(*self._buckets.padded(shapes, arrays))
        program, _ = self._cache.acquire(request)
        if request.shapes != shapes and not self._growing.has_room(lengths, _grown(program).steps):
            self._cache.release(program)
            request = exact
            program, _ = self._cache.acquire(request)
        try:
            assert program.program is not None
            fit = self._fit(exact, request, _grown(program))
            self._growing.require_room(lengths, fit.steps)
            self._growing.require_followed(extents, fit.after(lengths))
            fed = request.arrays | fit.fed(lengths)
            inside = program.program.state_pairs
            names = {p.name for p in program.program.inputs} - (set(inside.values()) - given.keys())
            try:
                imported = _grown(program).imported
                tensors = [tensor for name in outputs for tensor in tensors_of(imported.outputs[name])]
                found = program.program.evaluate(memory, {name: self._fed(name, fed) for name in names}, tensors)
            except BaseException:
                self._growing.tidy(memory, lengths)
                raise
        finally:
            self._cache.release(program)
        memory.lengths = fit.after(lengths)
        return self._gathered(imported, fit.cut(found, lengths), given, outputs)

    def _fed(self, name: str, arrays: Mapping[str, Any]) -> Any:
        """Return the value of a program's input. Each run that draws random numbers has a number of its own."""
        return arrays[name] if name in arrays else self.draw()  # RANDOM_RUN

    def draw(self) -> Array:
        """Return the number of a run that draws random numbers; the next ones are for its further steps."""
        return np.asarray(next(self._draws) * STRIDE % (1 << 32), np.int64)

    def _fit(self, exact: Request, request: Request, grown: StepGraph) -> Fit:
        """Return how a run of the exact request uses a program of equal or larger extents.

        Raises ModelError if it cannot.
        """

        def made() -> Fit:
            extents = self._inputs.symbols(request.shapes, self._growing.axes)
            return self._growing.fit(self._loads(request), grown, extents, self._buckets.extents(exact.shapes))

        return self._proofs.once(lambda: ("fit", self._key(exact), self._key(request)), made)

    def _loads(self, request: Request) -> Callable[[Mapping[str, int]], Imported]:
        """Return a function that imports the model for a request with some extents replaced."""

        def load(extents: Mapping[str, int]) -> Imported:
            shapes = self._inputs.with_extents(request.shapes, extents)
            arrays = dict(request.arrays)
            for name in arrays.keys() & shapes.keys():
                if not on_gpu(arrays[name]):
                    arrays[name] = fill(name, cut(arrays[name], shapes[name]), shapes[name])
            return self._import(Request(shapes, arrays))

        return load

    def _run(
        self, exact: Request, memory: StreamState, given: Mapping[str, Any], outputs: Sequence[str]
    ) -> dict[str, Any]:
        """Return outputs by name, from the program of this signature or from one of padded extents."""
        request, true_shapes = self._padding.fitted(exact)
        kept, _ = self._cache.acquire(request)
        try:
            program, places, counts = kept.program, kept.info.imported.outputs, kept.counts
            # state inside the program; state that is padded, a list, or changes its shape is kept outside
            inside = program.state_pairs if program and not true_shapes else {}
            outside = {output: taker for output, taker in memory.pairs.items() if output not in inside}
            found = {name: value.copy() for name, value in kept.info.values.items()}
            if program:
                names = {p.name for p in program.inputs} - (set(inside.values()) - given.keys())
                asked = dict.fromkeys((*outputs, *outside, *counts))
                tensors = [*(t for name in asked for t in tensors_of(places[name])), *(c for _, c in counts.values())]
                fed = {name: self._fed(name, request.arrays) for name in names}
                found = program.evaluate(memory if inside else StreamState(program.state_pairs), fed, tensors)
                found = cut_counted(found, counts) if counts else found
            plain = all(places[name] == name for name in self._called[1])  # not a list, strings or maps
            if self._try_run is not None and plain:
                self._seen.remember(kept, given, kept.info.values, self._called[1])
                self._valued = self._valued or (self._source.valued() if kept.info.values else None)
        finally:
            self._cache.release(kept)
        self._last = kept if inside and not outside and plain and not self._whole and not counts else None
        found |= {name: cut(found[name], shape) for name, shape in true_shapes.items() if name in found}
        memory.advance({taker: deepcopy(gathered(places[output], found)) for output, taker in outside.items()})
        return self._gathered(kept.info.imported, found, given, outputs)

    def _gathered(
        self, imported: Imported, found: Mapping[str, Any], given: Mapping[str, Any], outputs: Sequence[str]
    ) -> dict[str, Any]:
        def words() -> Mapping[int, str]:
            return self._inputs.words(given, imported.words)

        return {name: gathered(imported.outputs[name], found, words) for name in outputs}

    # programs

    def _key(self, request: Request) -> Hashable:
        values = tuple((n, content(n, request.arrays[n])) for n in sorted(self._deciding & request.arrays.keys()))
        return tuple(sorted(request.shapes.items())), values, request.masks

    def _compile(self, request: Request) -> CachedProgram[_Made]:
        start = time.perf_counter()
        grown = None
        if self._growing.axes:
            extents = self._inputs.symbols(request.shapes, self._growing.axes)
            probe = self._buckets.extents(self._buckets.probe(request.shapes))
            grown = self._growing.grown(self._loads(request), extents, probe)
            imported, graph = grown.imported, grown.graph
        else:
            imported = self._import(request)
            graph = masked(imported.graph, request.masks) if request.masks else imported.graph
        types = {name: kind for name, kind in graph.types.items() if name not in imported.counts}
        pairs = {o: i for o, i in self._memory.pairs.items() if i in graph.inputs and types[i] == types.get(o)}
        values = folded(graph) if self._fixes else None
        program = None
        if graph.outputs and values is None:
            program = compile(graph, state=pairs, how=self._how, registry=self._registry)
        text = ", ".join(f"{n}: {shape_text(s)}" for n, s in request.shapes.items())
        made = _Made(imported, grown, values or {})
        return CachedProgram(program, made, text, time.perf_counter() - start, imported.counts)

    def _import(self, request: Request) -> Imported:
        """Import the graph for a signature, with the inputs that decide shapes as constants."""
        from rammer.frontend.onnx import NotConstant

        lengths = {m.label: length_name(m.symbol) for m in request.masks if isinstance(m, MaskedSteps)}
        deciding = {name for name in self._deciding & request.arrays.keys() if self._may_fix(name, request)}
        while True:
            constants = {name: host_value(name, request.arrays[name]) for name in deciding}
            try:
                imported = self._load(shapes=request.shapes, constants=constants, step_lengths=lengths)
                break
            except NotConstant as error:
                found = set(error.inputs) & request.arrays.keys()
                error.cuts = self._cuts(error, found, request)
                if error.cuts or not found - deciding:
                    raise
                deciding |= found
        self._deciding = self._deciding | deciding  # a new set: other threads read the old one
        return imported

    def _cuts(self, error: NotConstant, names: Collection[str], request: Request) -> bool:
        """Check whether to cut the model, instead of compiling it for these values of inputs."""
        from rammer.frontend.onnx import Undecided

        values = {name: request.arrays[name] for name in names}
        small = all(map(is_small, values.values()))
        if not isinstance(error, Undecided):
            return not (self._fixes or self._whole or (small and not error.counted))
        if error.op == "If" and small:
            self._choices |= {n: set() for n, v in values.items() if not is_flag(v) and n not in self._choices}
        chosen = all(is_flag(value) or name in self._choices for name, value in values.items())
        return not (values and chosen and all(self._may_fix(name, request) for name in values))

    def _may_fix(self, name: str, request: Request) -> bool:
        """Check whether an input's value may be a constant: of integers that decide branches only a small set."""
        known = self._choices.get(name)
        if known is None:
            return True
        value = content(name, request.arrays[name])
        if len(known) < CHOICES:
            known.add(value)
        return value in known

    # ahead of time

    def warm(
        self, signatures: Sequence[Mapping[str, Any]], *, background: bool = False, progress: Progress = silent
    ) -> Future[int]:
        """Compile programs ahead of their first run; the future's result is how many were compiled.

        A signature has extents of symbolic dimensions by name, shapes of inputs (tuples), and arrays of those whose
        values decide shapes: {"batch": 8, "x": (8, 3), "axes": np.array([1])}. With `background=True` the future
        carries errors, and another thread calls `progress` with ("programs", done, total); `close` ends it after the
        current program. If only values decide a model's loops, parts that depend on inputs alone are compiled now, the
        others when they run.
        """
        requests = [self._inputs.asked(signature, self._growing.bounds) for signature in signatures]
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()

        def work() -> None:
            compiled = 0
            try:
                for number, request in enumerate(requests):
                    progress("programs", number, len(requests))
                    compiled += self._ahead(request)
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

    def _ahead(self, request: Request) -> int:
        """Compile what a signature is known to need. Return the number of new programs."""
        if self._stages is None:
            try:
                return self.ahead_uncut(request)
            except ModelError as error:
                self._cut(error)
        assert self._stages is not None
        return self._stages.precompile({name: self._inputs.example(name) for name in request.shapes}, request)

    def ahead_uncut(self, request: Request) -> int:
        """Compile one program for a signature. Return the number of new programs.

        Raises Undecided for a loop or a branch that one program cannot contain.
        """
        kept, is_new = self._cache.acquire(self._padding.fitted(request)[0], ahead=True)
        self._cache.release(kept)
        return int(is_new)

    def close(self) -> None:
        """Close every program once its runs end. Later runs raise InputError."""
        self._cache.close()
        self._seen.forget()
        self._valued = self._last = None
        if self._stages:
            self._stages.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        def ports(items: Sequence[SessionPort]) -> str:
            return ", ".join(f"{p.name}: {p.type}{'' if p.shape is None else p.shape}" for p in items)

        signature = f"({ports(self.get_inputs())}) -> ({ports(self.get_outputs())})"
        return message(f"<Session: {signature}, {counted(len(self._cache.kept()), 'program')}>")


def _grown(kept: CachedProgram[_Made]) -> StepGraph:
    assert kept.info.grown is not None
    return kept.info.grown
