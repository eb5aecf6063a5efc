"""A compiled program: what `rammer.compile` returns and `rammer.load_program` loads."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rammer import artifact
from rammer.errors import ArtifactError, InputError, did_you_mean
from rammer.ir.plan import ExecutionPlan
from rammer.ir.tensor import Array
from rammer.report import Report
from rammer.vdevice.base import Executable, Image, Port, Progress, VDevice, silent


class Program:
    """A network ready to run on one vDevice. Safe to call from several threads; runs take turns.

    `run({name: array})` gives `{name: array}`; calling it with arrays in order gives the array, or a tuple of several.
    """

    def __init__(self, image: Image, vdevice: VDevice, report: Report) -> None:
        self._image = image
        self._vdevice = vdevice
        self._executable: Executable = vdevice.load(image)
        self._report = report
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._ports = {p.name: p for p in image.inputs}
        self._closed = False

    @property
    def target(self) -> str:
        """The name of the vDevice."""
        return self._image.target

    @property
    def inputs(self) -> tuple[Port, ...]:
        return self._image.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        return self._image.outputs

    @property
    def plan(self) -> ExecutionPlan:
        """The execution plan. Raises ArtifactError for a loaded program: it was compiled elsewhere."""
        if self._image.plan is None:
            raise ArtifactError("a loaded program keeps no plan", hint="report() has its summary; compile for the plan")
        return self._image.plan

    @property
    def executable(self) -> Executable:
        """The backend's handle: for measuring tools."""
        return self._executable

    def report(self) -> Report:
        """What was compiled, and what the scheduler believed about it."""
        return self._report

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Outputs by name. Raises InputError for a wrong name, dtype, rank or shape, before anything runs."""
        arrays = self._checked(inputs)
        with self._turn():
            if self._closed:
                raise InputError("the program is closed", hint="compile or load it again")
            return self._executable.run(arrays)

    def __call__(self, *arrays: Any) -> Any:
        if len(arrays) != len(self.inputs):
            names = ", ".join(p.name for p in self.inputs)
            raise InputError(f"{len(arrays)} arrays given, the program takes {len(self.inputs)}: {names}")
        outputs = self.run({p.name: a for p, a in zip(self.inputs, arrays, strict=True)})
        values = tuple(outputs[p.name] for p in self.outputs)
        return values[0] if len(values) == 1 else values

    def _checked(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        if unknown := [n for n in inputs if n not in self._ports]:
            raise InputError(
                f"no input named {unknown[0]!r}; inputs are {', '.join(self._ports) or '(none)'}",
                hint=did_you_mean(str(unknown[0]), self._ports),
            )
        if missing := [n for n in self._ports if n not in inputs]:
            raise InputError(f"missing inputs: {', '.join(missing)}")
        return {name: _as_array(name, inputs[name], port) for name, port in self._ports.items()}

    def _turn(self) -> threading.Lock:
        """The lock of this process: a child forked while another thread ran has nobody to release the parent's."""
        if self._pid != os.getpid():
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock

    def save(self, path: str | os.PathLike[str], *, progress: Progress = silent) -> None:
        """Write the program to one file that `rammer.load_program` loads without compiling.

        The first time this may compile the plan's rKernels once more, apart from those that were only tried: then
        equal programs are equal files. Raises ArtifactError.
        """
        artifact.save(self._vdevice.seal(self._image, progress=progress), path, self._report.to_save())

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


def _as_array(name: str, value: Any, port: Port) -> Array:
    """The value as a contiguous NumPy array of the port's exact type; NumPy and DLPack memory is not copied."""
    if not isinstance(value, np.ndarray | np.generic) and hasattr(value, "__dlpack__"):
        try:
            value = np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(f"input {name!r}: cannot be read through DLPack: {error}") from error
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"input {name!r}: not an array: {error}") from error
    wanted = port.type
    if array.dtype != wanted.dtype.numpy:
        raise InputError(
            f"input {name!r}: dtype {array.dtype}, the program takes {wanted.dtype.value}",
            hint=f"convert it with .astype({wanted.dtype.value!r})",
        )
    if array.ndim != wanted.rank:
        raise InputError(f"input {name!r}: rank {array.ndim}, the program takes rank {wanted.rank}: {wanted}")
    for axis, (got, extent) in enumerate(zip(array.shape, wanted.shape, strict=True)):
        if got != extent:
            raise InputError(
                f"input {name!r}: dimension {axis} is {got}, the program takes {extent} (shape {wanted.shape})",
                hint="shapes are fixed when the model is compiled; compile with shapes={name: …} for another one",
            )
    return np.ascontiguousarray(array)
