"""A GPU as a vDevice, and the emulator beside it: what backends for GPUs share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from rammer.errors import DeviceError
from rammer.ir.device import VDeviceSpec
from rammer.ir.plan import ExecutionPlan
from rammer.ir.tensor import Array
from rammer.vdevice.base import Availability, CompiledOnly, Executable, Image, Progress, VDevice, silent
from rammer.vdevice.simt.emulator.compile import compile_host
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable
from rammer.vdevice.simt.image import SimtProgram, checked_streams, make_image, make_program
from rammer.vdevice.simt.prelude import Dialect

EMULATED_VEUS = 8
FORMS = ("table", "branches")
EMULATE = 'device="emulator" runs the program on the host'


class GpuModel(Protocol):
    """A GPU as data."""

    @property
    def name(self) -> str: ...

    @property
    def arch(self) -> str: ...


class GpuExecutable(Executable, Protocol):
    """A program on a GPU, which has a clock."""

    def times_us(self, inputs: Mapping[str, Array], repeats: int = 20) -> list[float]:
        """Microseconds of single runs, each on these inputs; copying them is not in the time."""


class GpuVDevice(VDevice):
    """A GPU of this machine, or one to compile for (`arch`) where there is none."""

    forms = FORMS
    label: ClassVar[str]  # of the platform; the target's name in lower case
    brand: ClassVar[str]  # of the GPUs
    gpu: Any  # the backend's description of it

    def __init__(self, *, arch: str | None = None, device: str | int | None = None) -> None:
        wanted = self.choose(arch) if arch else None
        self.number = device_number(device, self.label)
        here = self.available()
        if not here.ok and (arch is None or device is not None):
            raise DeviceError(
                f"no {self.brand} GPU can be used: {here.reason}", hint=f"{here.hint}; arch= compiles for one"
            )
        found = self.find(self.number) if here.ok else None
        self.missing, self._hint = ("", "") if found else (here.reason, here.hint)  # why nothing can run
        if found and wanted and wanted.arch != found.arch:
            self.missing, self._hint = f"the GPU here is {found.name} ({found.arch})", EMULATE
        self.gpu = wanted if wanted and self.missing else found or self.choose(arch)
        self.spec = self.describe(self.gpu)

    @abstractmethod
    def available(self) -> Availability:
        """Whether a GPU and all that it takes to use it are here."""

    @abstractmethod
    def find(self, number: int) -> GpuModel:
        """The GPU of this machine with this number. Raises DeviceError."""

    @abstractmethod
    def choose(self, name: str | None) -> GpuModel:
        """A known GPU by model or arch. Raises DeviceError."""

    @abstractmethod
    def describe(self, gpu: Any) -> VDeviceSpec:
        """The spec that kernels and policies see."""

    @abstractmethod
    def dialect(self) -> Dialect:
        """The C++ that this GPU is programmed in."""

    @abstractmethod
    def compile(self, plan: ExecutionPlan, program: SimtProgram) -> dict[str, bytes]:
        """Files with machine code, once all vEUs are known to fit. Raises ToolchainError, DeviceError."""

    @abstractmethod
    def open(self, image: Image) -> GpuExecutable:
        """The image loaded on the GPU. Raises ArtifactError, DeviceError."""

    def build(self, plan: ExecutionPlan, *, progress: Progress = silent) -> Image:
        """Machine code, tables and packed constants. Raises ToolchainError, DeviceError."""
        program = make_program(plan, self.dialect(), branches=self.form == "branches")
        progress("compile", 0, 1)
        files = self.compile(plan, program)
        progress("compile", 1, 1)
        return make_image(plan, program, files)

    def load(self, image: Image) -> Executable:
        """The image ready to run; without a GPU for it, one that says so when it is run."""
        if self.missing:
            checked_streams(image)
            hint = f"save it and load it on a machine with such a GPU; {self._hint}"
            return CompiledOnly(f"the program is for {self.gpu.arch}: {self.missing}", hint)
        return self.open(image)

    def plans_us(self, plans: Sequence[ExecutionPlan]) -> Sequence[float] | None:
        """Measured microseconds of plans, all inputs zero; None without a GPU."""
        return None if self.missing else [self._plan_us(plan) for plan in plans]

    def _plan_us(self, plan: ExecutionPlan) -> float:
        executable = self.open(self.build(plan))
        try:
            types = plan.graph.types
            inputs = {t: np.zeros(types[t].shape, types[t].dtype.numpy) for t in plan.graph.inputs}
            return min(executable.times_us(inputs))
        finally:
            executable.close()


class SimtEmulator(VDevice):
    """The text for a GPU, run on the host: a test device. Results and synchronisation are real, times are not."""

    forms = FORMS

    def __init__(
        self, spec: VDeviceSpec, dialect: Callable[[VDeviceSpec], Dialect], *, deterministic: bool = True
    ) -> None:
        self.spec = spec
        self.deterministic = deterministic
        self._dialect = dialect

    def build(self, plan: ExecutionPlan, *, progress: Progress = silent) -> Image:
        """Text, tables and packed constants. Raises ToolchainError, DeviceError."""
        program = make_program(plan, self._dialect(plan.spec), branches=self.form == "branches")
        progress("compile", 0, 1)
        compile_host(program.text)
        progress("compile", 1, 1)
        return make_image(plan, program, {})

    def load(self, image: Image) -> Executable:
        """The image ready to run on the host; also one that was compiled for a GPU."""
        return EmulatorExecutable(image, deterministic=self.deterministic)


def emulated_veus(device: str) -> int:
    """vEUs asked for by "emulator" or "emulator:16". Raises DeviceError."""
    text = device.removeprefix("emulator").removeprefix(":")
    if not text:
        return EMULATED_VEUS
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise DeviceError(f"no emulator {device!r}", hint='device= may be "emulator", or "emulator:16" for 16 vEUs')
    return int(text)


def device_number(device: str | int | None, label: str) -> int:
    """The GPU's number in `device=` (1, "1", "cuda:1"); by default 0. Raises DeviceError."""
    prefix = f"{label.lower()}:"
    text = str(0 if device is None else device).removeprefix(prefix)
    if not text.isdecimal():
        raise DeviceError(
            f"no {label} device {device!r}", hint=f'device= is the GPU\'s number (0, "{prefix}1"), or "emulator"'
        )
    return int(text)
