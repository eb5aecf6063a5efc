"""A compiled program: what `rammer.compile` returns and `rammer.load_program` loads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rammer import artifact, files
from rammer.calling import Runnable, as_array, check_names, on_gpu
from rammer.errors import ArtifactError, DeviceError, InputError
from rammer.ir.plan import ExecutionPlan
from rammer.ir.tensor import Array
from rammer.report import Report
from rammer.usage import Usage, usage_of
from rammer.vdevice import forks
from rammer.vdevice.base import (
    BindableExecutable,
    DeviceArrays,
    Executable,
    Image,
    Port,
    Progress,
    SlotTimes,
    TimedExecutable,
    VDevice,
    silent,
)

MIN_PROFILED = 4  # runs, however slow


class Program(Runnable):
    """A network ready to run on one vDevice. Safe to call from several threads; runs take turns.

    `run({name: array})` gives `{name: array}`; calling it with arrays in order gives the array, or a tuple of several.
    If an input lies in a GPU's memory (DLPack, `__cuda_array_interface__`), the outputs stay there: they are
    CuPy arrays (on AMD GPUs `RocmArray`s), and nothing passes through the host but inputs that lie on it. Outputs
    without elements are NumPy's.
    """

    def __init__(self, image: Image, vdevice: VDevice, report: Report, *, sources: Sequence[str] = ()) -> None:
        self._image = image
        self._vdevice = vdevice
        self._executable: Executable = vdevice.load(image)
        self._report = report
        self._sources = sources  # files of the model
        self._lock, self._forks = threading.Lock(), forks.count
        self._ports = {p.name: p for p in self.inputs}
        self._exact = [(p.name, p.dtype.numpy, p.shape) for p in self.inputs]
        self._closed = False

    @property
    def target(self) -> str:
        """The name of the vDevice."""
        return self._image.target

    @property
    def inputs(self) -> tuple[Port, ...]:
        return self._image.ports[0]

    @property
    def outputs(self) -> tuple[Port, ...]:
        return self._image.ports[1]

    @property
    def plan(self) -> ExecutionPlan:
        """The execution plan. Raises ArtifactError for a loaded program: it was compiled elsewhere."""
        if self._image.plan is None:
            raise ArtifactError("a loaded program keeps no plan", hint="report() has its summary; compile for the plan")
        return self._image.plan

    @property
    def is_loaded(self) -> bool:
        """Whether the program was compiled elsewhere, and so keeps no plan."""
        return self._image.plan is None

    @property
    def executable(self) -> Executable:
        """The backend's handle: for measuring tools."""
        return self._executable

    def report(self) -> Report:
        """What was compiled, what the scheduler believed about it, and what `profile` has measured."""
        return self._report

    def _names(self) -> tuple[Sequence[str], Sequence[str]]:
        return tuple(self._ports), tuple(p.name for p in self.outputs)

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> Bound:
        """A call of the same arrays every time: what they hold is read, and outputs are written, in place.

        Nothing is checked or allocated again. An array may be an input and an output (a state that is handed on).
        `outputs`: NumPy arrays, one for each output; new ones if none are given. Raises InputError as `run` does.
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

    def _bound(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """What a bound call does."""
        if isinstance(self._executable, BindableExecutable):
            return self._executable.bind(inputs, {p.name: outputs[p.name] for p in self.outputs})

        def call() -> None:
            for name, found in self._evaluate(inputs).items():
                outputs[name][...] = found

        return call

    def _evaluate(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        if self._fits(inputs):
            return self._run(inputs)
        check_names(inputs, self._ports)
        resident = [name for name, value in inputs.items() if on_gpu(value)]
        if not resident:
            return self._run(self._checked(inputs))
        with self._turn():
            self._check_open()
            if not isinstance(self._executable, DeviceArrays):
                raise InputError(
                    f"input {resident[0]!r} lies on a GPU, the program runs on the host", hint="copy it to the host"
                )
            host = {n: _as_array(n, v, self._ports[n]) for n, v in inputs.items() if n not in resident}
            given = {n: v for n, v in {**inputs, **host}.items() if self._ports[n].type.size}
            return self._all_outputs(self._executable.run_device(given))

    def _fits(self, inputs: Mapping[str, Any]) -> bool:
        """Whether all inputs are NumPy arrays just as the vDevice takes them."""
        return (
            len(inputs) == len(self._exact)
            and self._image.signature is None
            and all(
                type(array := inputs.get(name)) is np.ndarray and array.dtype == dtype and array.shape == shape
                for name, dtype, shape in self._exact
            )
        )

    def _run(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        with self._turn():
            self._check_open()
            return self._all_outputs(self._executable.run(arrays))

    def _check_open(self) -> None:
        if self._closed:
            raise InputError("the program is closed", hint="compile or load it again")

    def _all_outputs(self, found: dict[str, Any]) -> dict[str, Any]:
        """In the model's order, with those that have no elements, of which the vDevice knows nothing."""
        if self._image.signature is None:
            return found
        empty = {p.name: np.zeros(p.type.shape, p.type.dtype.numpy) for p in self.outputs if not p.type.size}
        return {p.name: empty[p.name] if p.name in empty else found[p.name] for p in self.outputs}

    def profile(self, inputs: Mapping[str, Any], *, seconds: float = 0.5) -> Usage:
        """Run for some time and measure where it goes; `report` then includes it.

        Raises DeviceError where the vDevice does not time its rTasks.
        """
        executable = self._executable
        if not isinstance(executable, TimedExecutable):
            raise DeviceError(f"vDevice {self.target!r} does not time its rTasks", hint="profile on the cpu")
        check_names(inputs, self._ports)
        arrays = self._checked(inputs)
        runs: list[SlotTimes] = []
        stop = time.monotonic() + seconds
        with self._turn():
            while len(runs) < MIN_PROFILED or time.monotonic() < stop:
                runs.append(executable.run_timed(arrays)[1])
        usage = usage_of(runs, self._report.num_operators)
        self._report = replace(self._report, usage=usage)
        return usage

    def _checked(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Arrays for the vDevice, checked but for their names."""
        arrays = {name: _as_array(name, inputs[name], port) for name, port in self._ports.items()}
        return {name: array for name, array in arrays.items() if array.size}

    def _turn(self) -> threading.Lock:
        """The lock of this process: a child forked while another thread ran has nobody to release the parent's."""
        if self._forks != forks.count:
            self._lock, self._forks = threading.Lock(), forks.count
        return self._lock

    def save(self, path: str | os.PathLike[str], *, progress: Progress = silent) -> None:
        """Write the program to one file that `rammer.load_program` loads without compiling.

        The first time this may compile the plan's rKernels once more, apart from those that were only tried: then
        equal programs are equal files. Raises ArtifactError, also for a path that is no plain file or the model's own.
        """
        files.check_new(path, sources=self._sources, raises=ArtifactError)
        sealed = self._vdevice.seal(self._image, progress=progress)
        artifact.save(sealed, path, self._report.to_save(), sources=self._sources)

    def close(self) -> None:
        """Free the device's threads and memory. Later runs raise InputError."""
        with self._turn():
            if not self._closed:
                self._closed = True
                self._executable.close()
                self._vdevice.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        def ports(items: Sequence[Port]) -> str:
            return ", ".join(f"{p.name}: {p.type}" for p in items)

        return f"<Program for {self.target}: ({ports(self.inputs)}) -> ({ports(self.outputs)})>"


class Bound:
    """A program with its arrays: `bound()` runs it once on what `inputs` hold, and fills `outputs`."""

    __slots__ = ("_call", "inputs", "outputs", "program")

    def __init__(self, program: Program, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        self.program, self.inputs, self.outputs = program, inputs, outputs
        self._call = program._bound(inputs, outputs)

    def __call__(self) -> None:
        self._call()

    def __repr__(self) -> str:
        return f"<Bound call of {self.program!r}>"


def _in_place(name: str, value: Any, port: Port) -> Array:
    """The very memory of an array. Raises InputError for what would have to be converted."""
    if not isinstance(value, np.ndarray) and not hasattr(value, "__dlpack__"):
        raise InputError(f"{name!r}: a {type(value).__name__} has no memory to be bound", hint="np.asarray(…)")
    array = as_array(name, value, port.dtype)
    port.check(array.dtype.name, array.shape)
    if array.dtype != port.dtype.numpy:
        raise InputError(f"{name!r}: {array.dtype!r} is of another machine's byte order", hint="astype(…)")
    return array


def _as_array(name: str, value: Any, port: Port) -> Array:
    """The value as a contiguous array of the port's exact type."""
    array = as_array(name, value, port.dtype)
    port.check(array.dtype.name, array.shape)
    return np.asarray(array, port.dtype.numpy, order="C")  # its bytes may be in another machine's order
