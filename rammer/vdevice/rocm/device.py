"""AMD GPUs as a vDevice: a vEU is a persistent block of threads on a compute unit. Paper: §4.2.1."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rammer.errors import DeviceError
from rammer.ir.plan import ExecutionPlan
from rammer.ir.tensor import Array
from rammer.vdevice.base import Executable, Image, Progress, VDevice, silent
from rammer.vdevice.rocm.build import HSACO, RESOURCES, check_fits, compile_code_object, resources_file
from rammer.vdevice.rocm.prelude import hip
from rammer.vdevice.rocm.runtime import EMULATE, RocmExecutable, find_gpu, probe
from rammer.vdevice.rocm.spec import EMULATED_VEUS, choose_gpu, make_spec
from rammer.vdevice.simt.emulator.compile import compile_host
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable
from rammer.vdevice.simt.image import checked_streams, make_image, make_program


class RocmVDevice(VDevice):
    """A GPU of this machine, or one to compile for (`arch`) where there is none."""

    def __init__(self, *, arch: str | None = None, device: str | int | None = None) -> None:
        wanted = choose_gpu(arch) if arch else None
        self._number = _number(device)
        here = probe()
        if not here.ok and (arch is None or device is not None):
            raise DeviceError(f"no AMD GPU can be used: {here.reason}", hint=f"{here.hint}; arch= compiles for one")
        found = find_gpu(self._number) if here.ok else None
        self._missing, self._hint = ("", "") if found else (here.reason, here.hint)
        if found and wanted and wanted.arch != found.arch:
            self._missing, self._hint = f"the GPU here is {found.name} ({found.arch})", EMULATE
        self.gpu = wanted if wanted and self._missing else found or choose_gpu(arch)
        self.spec = make_spec(self.gpu)

    def build(self, plan: ExecutionPlan, *, progress: Progress = silent) -> Image:
        """Machine code, tables and packed constants. Raises ToolchainError, DeviceError."""
        program = make_program(plan, hip(plan.spec.wave))
        progress("compile", 0, 1)
        code = compile_code_object(program.text, plan.spec.arch)
        progress("compile", 1, 1)
        check_fits(plan, program, self.gpu, code.resources)
        return make_image(plan, program, {HSACO: code.data, RESOURCES: resources_file(code.resources)})

    def load(self, image: Image) -> Executable:
        """The image ready to run; without a GPU for it, one that says so when it is run."""
        if self._missing:
            checked_streams(image)
            return CompiledOnly(f"the program is for {self.gpu.arch}: {self._missing}", self._hint)
        return RocmExecutable(image, self._number, self.gpu)

    def program_us(self, plan: ExecutionPlan) -> float | None:
        """Measured microseconds of a plan, all inputs zero; None without a GPU."""
        if self._missing:
            return None
        executable = RocmExecutable(self.build(plan), self._number, self.gpu)
        try:
            types = plan.graph.types
            executable.run({t: np.zeros(types[t].shape, types[t].dtype.numpy) for t in plan.graph.inputs})
            return min(executable.times_us())
        finally:
            executable.close()


class CompiledOnly:
    """A program that was compiled where it cannot run."""

    def __init__(self, reason: str, hint: str) -> None:
        self._reason, self._hint = reason, hint

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Raises DeviceError."""
        raise DeviceError(self._reason, hint=f"save it and load it on a machine with such a GPU; {self._hint}")

    def close(self) -> None:
        """Nothing is held."""


class RocmEmulator(VDevice):
    """The text for a GPU, run on the host: a test device. Results and synchronisation are real, times are not."""

    def __init__(self, *, arch: str | None = None, num_veus: int = EMULATED_VEUS, deterministic: bool = True) -> None:
        self.spec = make_spec(choose_gpu(arch), num_veus)
        self.deterministic = deterministic

    def build(self, plan: ExecutionPlan, *, progress: Progress = silent) -> Image:
        """Text, tables and packed constants. Raises ToolchainError, DeviceError."""
        program = make_program(plan, hip(plan.spec.wave))
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


def _number(device: str | int | None) -> int:
    text = str(0 if device is None else device).removeprefix("rocm:")
    if not text.isdecimal():
        raise DeviceError(
            f"no ROCm device {device!r}", hint='device= is the GPU\'s number (0, "rocm:1"), or "emulator"'
        )
    return int(text)
