"""Run a compiled program: what `rammer.compile` returns and `rammer.load` loads."""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rammer import config, files
from rammer.errors import ArtifactError, DeviceError, InputError, closed, message
from rammer.ir.tensor import Array, NamedArrays
from rammer.runtime import artifact
from rammer.runtime.call import as_array, check_names, on_gpu
from rammer.runtime.report import Report
from rammer.runtime.state import Stateful, StreamState
from rammer.runtime.usage import Usage, usage_of
from rammer.vdevice import forks
from rammer.vdevice.base import (
    BindsPorts,
    ChecksInputs,
    DeviceArrays,
    DeviceBuffer,
    Executable,
    Image,
    KeepsState,
    Port,
    Progress,
    SharesRooms,
    SlotTimes,
    TimedExecutable,
    VDevice,
    random_inputs,
    silent,
)

if TYPE_CHECKING:
    from rammer.ir.plan import ExecutionPlan
    from rammer.scheduler.timeline import Timeline
    from rammer_viz import Explanation

MIN_PROFILED = 4  # runs, however slow


class Program(Stateful):
    """A network ready to run on one vDevice. Safe to call from several threads; runs take turns.

    `run({name: array})` returns `{name: array}`; a call with arrays in order returns the array, or a tuple of several.
    If an input is in GPU memory (DLPack, `__cuda_array_interface__`), the outputs stay there, as CuPy arrays (on AMD
    GPUs `RocmArray`s). Only inputs on the host are copied. Outputs without elements are NumPy arrays.

    With `state`, outputs of a run that are inputs of the next one stay where they were written. A call does not give
    such inputs, and returns such outputs only by name: `run(["y", "h_out"], {…})`. `stream()` begins another state.
    `image` is the compiled result: files by name, ports, and the plan if this process compiled it.
    """

    def __init__(
        self,
        image: Image,
        vdevice: VDevice,
        report: Report,
        *,
        sources: Sequence[str] = (),
        executable: Executable | None = None,
    ) -> None:
        self.image = image
        self._vdevice = vdevice
        self._executable: Executable = executable or vdevice.load(image)
        self._report = report
        self._sources = sources  # files of the model
        self._name = identifier(sources[0] if sources else "model")
        self._owns_device = True
        self._lock, self._forks = threading.Lock(), forks.count
        self._ports = {p.name: p for p in self.inputs}
        self._exact = [(p.name, p.dtype.numpy, p.shape) for p in self.inputs]
        self._memory = StreamState(image.state)
        self._is_plain = not image.state and image.signature is None  # the vDevice's ports are the program's
        self._takes_turns = isinstance(self._executable, BindsPorts)
        self._keeps_state = isinstance(self._executable, KeepsState)
        shared = isinstance(self._executable, SharesRooms)
        self._keeper = cast("SharesRooms", self._executable).keeper if shared else self._executable
        checks = self._is_plain and isinstance(self._executable, ChecksInputs)
        self._try_run = cast("ChecksInputs", self._executable).try_run if checks else None
        self._called = (  # looked up in every call
            tuple(name for name in self._ports if name not in image.state.values()),
            tuple(p.name for p in self.outputs if p.name not in image.state),
        )
        self._closed = False

    @property
    def target(self) -> str:
        """Name of the vDevice."""
        return self.image.target

    @property
    def inputs(self) -> tuple[Port, ...]:
        return self.image.ports[0]

    @property
    def outputs(self) -> tuple[Port, ...]:
        return self.image.ports[1]

    @property
    def state_pairs(self) -> Mapping[str, str]:
        """Outputs that are inputs of the next run: output -> input."""
        return self.image.state

    @property
    def plan(self) -> ExecutionPlan:
        """Execution plan. Raises ArtifactError for a loaded program, which keeps an outline only."""
        if self.image.plan is None:
            raise ArtifactError(
                "a loaded program keeps an outline of its plan alone",
                hint="outline() can be drawn; compile for the plan",
            )
        return self.image.plan

    def outline(self) -> tuple[ExecutionPlan, Timeline]:
        """Return the plan for drawing (rammer_viz), and its estimated timeline.

        The plan of a loaded program has only names of its graph and rKernels. Raises ArtifactError if it was saved
        without.
        """
        if self.image.plan is not None:
            from rammer.scheduler.timeline import simulate

            return self.image.plan, simulate(self.image.plan)
        from rammer.runtime.outline import OUTLINE, unpack  # needed for drawing only

        return unpack(self.image.file(OUTLINE), self._report)

    @property
    def is_loaded(self) -> bool:
        """True if the program was loaded from a file, and so has only an outline of its plan."""
        return self.image.plan is None

    @property
    def executable(self) -> Executable:
        """The backend's handle, for measuring tools."""
        return self._executable

    def report(self) -> Report:
        """Return the compilation's report: sizes, estimates, and what `profile` has measured."""
        return self._report

    def _names(self) -> tuple[Sequence[str], Sequence[str]]:
        return self._called

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> Bound:
        """Bind the program to fixed arrays. Each call then reads inputs and writes outputs in place.

        A bound call checks and allocates nothing. One array may be an input and an output (a state that is carried on).

        Args:
            inputs: An array for each input, by name.
            outputs: A NumPy array for each output; by default new ones.

        Returns:
            A function without arguments, with `inputs` and `outputs` as attributes.

        Raises:
            InputError: As `run` does.
        """
        check_names(inputs, self._ports)
        known = {port.name: port for port in self.outputs}
        if outputs is None:
            outputs = {name: np.zeros(port.shape, port.dtype.numpy) for name, port in known.items()}
        check_names(outputs, known, what="output")
        read, written = (
            {name: _in_place(name, value, ports[name]) for name, value in given.items()}
            for given, ports in ((inputs, self._ports), (outputs, known))
        )
        if fixed := [name for name, array in written.items() if not array.flags.writeable]:
            raise InputError(f"output {fixed[0]!r} cannot be written", hint="np.empty(port.shape, port.dtype.numpy)")
        return Bound(self, read, written)

    def _bound(self, inputs: NamedArrays, outputs: NamedArrays) -> Callable[[], None]:
        """Return the function that a bound call runs."""
        if isinstance(self._executable, BindsPorts):
            return self._executable.bind(inputs, {p.name: outputs[p.name] for p in self.outputs})

        def call() -> None:
            for name, found in self._run(inputs).items():
                outputs[name][...] = found

        return call

    def evaluate(self, memory: StreamState, inputs: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
        """Run once on the stream that owns `memory`, and return these outputs. The caller holds `memory.run_lock`."""
        if self._is_plain and self._fits(inputs):  # fast path, without conversions: a run may take microseconds
            if self._takes_turns:
                self._require_open()
                found = self._executable.run(inputs)
            else:
                found = self._execute(inputs)
            return found if outputs is self._called[1] else {n: found[n] for n in outputs}
        pairs = self.image.state
        check_names(inputs, self._ports, pairs.values())
        if pairs and self._keeps_state:
            return self._run_in_rooms(cast("KeepsState", self._executable), memory, inputs, outputs)
        before = {n: memory.value(n) for n in pairs.values() if n not in inputs}
        for name in [n for n, value in before.items() if value is None]:
            before[name] = np.zeros(self._ports[name].shape, self._ports[name].dtype.numpy)
        found = self._run({**before, **inputs})
        memory.advance({taker: found[output] for output, taker in pairs.items()})
        return {n: deepcopy(found[n]) if n in pairs else found[n] for n in outputs}

    def _run_in_rooms(
        self, executable: KeepsState, memory: StreamState, inputs: Mapping[str, Any], outputs: Sequence[str]
    ) -> dict[str, Any]:
        """Run with state in device buffers: read it in place, and write the next one to another buffer or in place."""
        pairs = {o: n for o, n in self.image.state.items() if self._ports[n].type.size}
        changed = {o: n for o, n in pairs.items() if o in self.image.in_place}
        kinds = {n: self._ports[n].type for n in pairs.values()}
        reads = {n: memory.room(n, self._keeper) for n in kinds if n not in inputs}
        fresh = [n for n in kinds if reads.get(n) is None]
        values = {n: self._given(n, inputs.get(n, memory.value(n)), executable) for n in fresh}
        arrays = {n: self._given(n, v, executable) for n, v in inputs.items() if n not in kinds}
        with self._turn():
            self._require_open()
            for name, value in values.items():
                reads[name] = executable.room(kinds[name])
                if value is not None:  # copied: the caller keeps its array
                    executable.fill(reads[name], value)
            writes = {}
            for output, name in pairs.items():
                if output not in changed:
                    spare = memory.spare(name, self._keeper)
                    writes[output] = executable.room(kinds[name]) if spare is None else spare
            wanted = [name for name in outputs if name not in changed]
            sized = {n: a for n, a in arrays.items() if self._ports[n].type.size}
            found = executable.run_bound(sized, {**reads, **writes}, wanted)
            found |= {o: deepcopy(reads[changed[o]]) for o in outputs if o in changed}
        memory.advance({n: reads[n] if o in changed else writes[o] for o, n in pairs.items()}, self._keeper)
        found |= {p.name: np.zeros(p.shape, p.dtype.numpy) for p in self.outputs if not p.type.size}
        return {name: found[name] for name in outputs}

    def _given(self, name: str, value: Any, executable: KeepsState) -> Any:
        """Convert an input that is not in one of this program's buffers. Raises InputError."""
        if value is None or (on_gpu(value) and isinstance(executable, DeviceArrays)):
            return value
        if on_gpu(value):
            raise self._not_on_gpu(name)
        return _as_array(name, deepcopy(value) if isinstance(value, DeviceBuffer) else value, self._ports[name])

    def _not_on_gpu(self, name: str) -> InputError:
        return InputError(f"input {name!r} lies on a GPU, the program runs on the host", hint="copy it to the host")

    def _require_open(self) -> None:
        if self._closed:
            raise closed()

    def _run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run once and return all outputs."""
        resident = [name for name, value in inputs.items() if on_gpu(value)]
        if not resident:
            return self._execute(self._checked(inputs))
        with self._turn():
            self._require_open()
            if not isinstance(self._executable, DeviceArrays):
                raise self._not_on_gpu(resident[0])
            host = {n: _as_array(n, v, self._ports[n]) for n, v in inputs.items() if n not in resident}
            given = {n: v for n, v in {**inputs, **host}.items() if self._ports[n].type.size}
            return self._all_outputs(self._executable.run_device(given))

    def continues(self, memory: StreamState, inputs: Mapping[str, Any]) -> bool:
        """Check whether this program has run last on a stream, and takes the inputs as they are."""
        state = self.image.state.values()
        return all(memory.room(name, self._keeper) is not None for name in state) and self._fits(inputs, state)

    def _fits(self, inputs: Mapping[str, Any], state: Collection[str] = ()) -> bool:
        """Check whether all inputs but the state are NumPy arrays of exactly the vDevice's types and shapes."""
        if len(inputs) + len(state) != len(self._exact):
            return False
        for name, dtype, shape in self._exact:
            array = inputs.get(name)
            if array is None and name in state:
                continue
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
                return False
        return True

    def _execute(self, arrays: NamedArrays) -> dict[str, Any]:
        with self._turn():
            self._require_open()
            return self._all_outputs(self._executable.run(arrays))

    def _all_outputs(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return outputs in the model's order, with those without elements, which the vDevice does not have."""
        if self.image.signature is None:
            return found
        empty = {p.name: np.zeros(p.type.shape, p.type.dtype.numpy) for p in self.outputs if not p.type.size}
        return {p.name: empty[p.name] if p.name in empty else found[p.name] for p in self.outputs}

    def profile(self, inputs: Mapping[str, Any], *, seconds: float = 0.5) -> Usage:
        """Run for some seconds and measure where the time goes. `report` then includes the result.

        Args:
            inputs: Arrays by name, as for `run`.
            seconds: Time to measure; four runs at least.

        Raises:
            DeviceError: The vDevice does not time its rTasks.
        """
        usage = usage_of(self._timed(inputs, seconds), self._report.num_operators)
        self._report = replace(self._report, usage=usage)
        return usage

    def measured_timeline(self, inputs: Mapping[str, Any] | None = None, *, seconds: float = 0.5) -> Timeline:
        """Run for some seconds, and return the times of all slots in the fastest run: to draw beside `outline`.

        `inputs` are seeded random numbers by default. Raises DeviceError if the vDevice does not time its rTasks.
        """
        from rammer.scheduler.timeline import recorded  # needed for drawing only

        runs = self._timed(random_inputs(self.inputs, 0) if inputs is None else inputs, seconds)
        fastest = min(runs, key=lambda run: run.total_us)
        return recorded(fastest.programs, fastest.operators)

    def explain(self) -> Explanation:
        """Explain the plan: what bounds it, its critical path, and the operators that would pay most.

        It can be printed, and is a table in notebooks. `rammer explain` also compares other policies. A loaded program
        keeps no candidates.
        """
        from rammer_viz import explain

        plan, timeline = self.outline()
        return explain(timeline, plan)

    def _timed(self, inputs: Mapping[str, Any], seconds: float) -> list[SlotTimes]:
        executable = self._executable
        if not isinstance(executable, TimedExecutable):
            raise DeviceError(f"vDevice {self.target!r} does not time its rTasks", hint="profile on the cpu")
        check_names(inputs, self._ports, self._memory.inputs)
        zeros = {n: np.zeros(self._ports[n].shape, self._ports[n].dtype.numpy) for n in self._memory.inputs}
        arrays = self._checked({**zeros, **inputs})
        runs: list[SlotTimes] = []
        stop = time.monotonic() + seconds
        with self._turn():
            while len(runs) < MIN_PROFILED or time.monotonic() < stop:
                runs.append(executable.run_timed(arrays)[1])
        return runs

    def _checked(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Return arrays for the vDevice, with types and shapes checked, but not names."""
        arrays = {name: _as_array(name, inputs[name], port) for name, port in self._ports.items()}
        return {name: array for name, array in arrays.items() if array.size}

    def _turn(self) -> threading.Lock:
        """Return this process's lock.

        After a fork it is a new one: the parent's may be held by a thread that the child lacks.
        """
        if self._forks != forks.count:
            self._lock, self._forks = threading.Lock(), forks.count
        return self._lock

    def save(self, path: str | os.PathLike[str], *, progress: Progress = silent) -> None:
        """Write the program to one file that `rammer.load` loads without compiling.

        The first call may compile the plan's rKernels again, without those that were only measured, so that equal
        programs are equal files.

        Args:
            path: The file; it appears as a whole or not at all.
            progress: Called with what is done, how much of it, and of how many.

        Raises:
            ArtifactError: The vDevice keeps no files; or the path cannot be written, or is the model's own.
        """
        files.check_new(path, sources=self._sources, raises=ArtifactError)
        sealed = self._vdevice.seal(self.image, progress=progress)
        if (plan := self.image.plan) is not None:  # it was compiled here
            from rammer.runtime.outline import OUTLINE, pack
            from rammer.vdevice.proof.verify import verify_image

            if config.integer("RAMMER_VERIFY"):
                verify_image(sealed, plan, self._vdevice)
            if sealed.files:
                sealed = replace(sealed, files={**sealed.files, OUTLINE: pack(plan)})
        artifact.save(sealed, path, self._report.to_save(), sources=self._sources)

    def export(
        self, folder: str | os.PathLike[str], *, name: str | None = None, others: Sequence[Program] = ()
    ) -> None:
        """Write a project that runs the model without Python: C sources, weights, a header and a self-check.

        docs/export-format.md specifies all files.

        Args:
            folder: A new or an empty folder.
            name: The model's name in C; by default that of its file.
            others: Programs of the same model for other CPUs and GPUs: `rammer_open` chooses the best that runs.

        Raises:
            ArtifactError: The folder cannot be written; or the program was loaded, and keeps no sources.
            DeviceError: The target has no such projects.
        """
        if self.is_loaded:
            raise ArtifactError("a loaded program keeps no sources", hint="export the model it was compiled from")
        from rammer.vdevice.export.project import write_project  # running needs none of it

        name = name or self._name
        write_project(self._models(name, others), Path(folder), name)

    def _models(self, name: str, others: Sequence[Program]) -> dict[str, list[tuple[VDevice, Image]]]:
        """Return the programs of each model to export by name, the best first."""
        return {name: [(p._vdevice, p.image) for p in best_first([self, *others])]}

    def __reduce__(self) -> tuple[Callable[[bytes], Program], tuple[bytes]]:
        """Pickle the content that `save` writes, machine code included."""
        from rammer.runtime.load import unpickled

        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "program")
            self.save(path)
            with open(path, "rb") as file:
                return unpickled, (file.read(),)

    def close(self) -> None:
        """Free the device's threads and memory. Later runs raise InputError."""
        with self._turn():
            if not self._closed:
                self._closed = True
                self._executable.close()
                if self._owns_device:
                    self._vdevice.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        """Show ports, the timeline and the report in notebooks."""
        import rammer_viz as viz
        from rammer.ir.text import html_table

        named = (("input", self.inputs), ("output", self.outputs))
        ports = html_table(((what, p.name, p.type) for what, some in named for p in some), ("", "name", "type"))
        picture = ""
        with suppress(ArtifactError):  # a program that was saved without an outline
            plan, timeline = self.outline()
            picture = viz.svg(timeline, plan)
        return ports + picture + self._report._repr_html_()

    def __repr__(self) -> str:
        def ports(items: Sequence[Port]) -> str:
            return ", ".join(map(str, items))

        state = "".join(f", {output} → {taker}" for output, taker in self.image.state.items())
        return message(f"<Program for {self.target}: ({ports(self.inputs)}) -> ({ports(self.outputs)}){state}>")


class Bound:
    """A program with fixed arrays: `bound()` runs it once, reads `inputs` and fills `outputs`."""

    __slots__ = ("_call", "inputs", "outputs", "program")

    def __init__(self, program: Program, inputs: NamedArrays, outputs: NamedArrays) -> None:
        self.program, self.inputs, self.outputs = program, inputs, outputs
        self._call = program._bound(inputs, outputs)

    def __call__(self) -> None:
        self._call()

    def __repr__(self) -> str:
        return f"<Bound call of {self.program!r}>"


def best_first(programs: Sequence[Program]) -> list[Program]:
    """Order programs of one model for several CPUs or GPUs by what these can do: each runs the first that it can."""
    return sorted(programs, key=lambda p: (p.plan.spec.peak_gflops, len(p.plan.spec.instructions)), reverse=True)


def identifier(path: str) -> str:
    """Return a name for C like a file's."""
    name = re.sub(r"\W+", "_", Path(path).stem, flags=re.ASCII).strip("_")[:64]
    return name if name[:1].isalpha() else f"model_{name}".rstrip("_")


def _in_place(name: str, value: Any, port: Port) -> Array:
    """Return an array over the value's own memory. Raises InputError if it would need a conversion."""
    if not isinstance(value, np.ndarray) and not hasattr(value, "__dlpack__"):
        raise InputError(f"{name!r}: a {type(value).__name__} has no memory to be bound", hint="np.asarray(…)")
    array = as_array(name, value, port.dtype)
    port.check(array.dtype.name, array.shape)
    if array.dtype != port.dtype.numpy:
        raise InputError(f"{name!r}: {array.dtype!r} is of another machine's byte order", hint="astype(…)")
    return array


def _as_array(name: str, value: Any, port: Port) -> Array:
    """Return the value as a contiguous array of the port's exact type."""
    array = as_array(name, value, port.dtype)
    port.check(array.dtype.name, array.shape)
    return np.asarray(array, port.dtype.numpy, order="C")  # its bytes may be in another machine's order
