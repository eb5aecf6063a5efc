"""NVIDIA GPUs as a vDevice: a vEU is a persistent thread block. Paper: §4.1."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from rammer.errors import DeviceError
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.tensor import Array
from rammer.vdevice.base import Executable, Image, Progress, VDevice, silent
from rammer.vdevice.cuda.build import CUBIN, RESOURCES, check_fits, compile_cubin
from rammer.vdevice.cuda.profile import measure_kernels
from rammer.vdevice.cuda.runtime import EMULATE, CudaExecutable, find_gpu, probe
from rammer.vdevice.cuda.spec import EMULATED_VEUS, choose_gpu, make_spec
from rammer.vdevice.simt.emulator.compile import compile_host
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable
from rammer.vdevice.simt.image import checked_streams, make_image, make_program
from rammer.vdevice.simt.prelude import CUDA


class CudaVDevice(VDevice):
    """A GPU of this machine, or one to compile for (`arch`) where there is none."""

    def __init__(self, *, arch: str | None = None, device: str | int | None = None) -> None:
        wanted = choose_gpu(arch) if arch else None
        self._number = _number(device)
        here = probe()
        if not here.ok and (arch is None or device is not None):
            raise DeviceError(f"no NVIDIA GPU can be used: {here.reason}", hint=f"{here.hint}; arch= compiles for one")
        found = find_gpu(self._number) if here.ok else None
        self._missing = "" if found else here.reason
        if found and wanted and wanted.arch != found.arch:
            self._missing = f"the GPU here is {found.name} ({found.arch})"
        self.gpu = wanted if wanted and self._missing else found or choose_gpu(arch)
        self.spec = make_spec(self.gpu)

    def rkernels_us(
        self, kernels: Sequence[RKernel], *, budget_s: float = 10.0, progress: Progress = silent
    ) -> Mapping[RKernel, float]:
        """Measured microseconds of one rTask on one vEU; nothing without a GPU."""
        if self._missing:
            return {}
        return measure_kernels(kernels, self._number, self.gpu, self.spec.num_veus, budget_s, progress)

    def build(self, plan: ExecutionPlan, *, progress: Progress = silent) -> Image:
        """Machine code, tables and packed constants. Raises ToolchainError, DeviceError."""
        program = make_program(plan, CUDA)
        progress("compile", 0, 1)
        cubin = compile_cubin(program.text, plan.spec.arch)
        progress("compile", 1, 1)
        check_fits(plan, program, self.gpu, cubin.resources)
        resources = json.dumps(asdict(cubin.resources), sort_keys=True).encode()
        return make_image(plan, program, {CUBIN: cubin.data, RESOURCES: resources})

    def load(self, image: Image) -> Executable:
        """The image ready to run; without a GPU for it, one that says so when it is run."""
        if self._missing:
            checked_streams(image)
            return CompiledOnly(f"the program is for {self.gpu.arch}: {self._missing}")
        return CudaExecutable(image, self._number, self.gpu)

    def program_us(self, plan: ExecutionPlan) -> float | None:
        """Measured microseconds of a plan, all inputs zero; None without a GPU."""
        if self._missing:
            return None
        executable = CudaExecutable(self.build(plan), self._number, self.gpu)
        try:
            types = plan.graph.types
            executable.run({t: np.zeros(types[t].shape, types[t].dtype.numpy) for t in plan.graph.inputs})
            return min(executable.times_us())
        finally:
            executable.close()


class CompiledOnly:
    """A program that was compiled where it cannot run."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Raises DeviceError."""
        raise DeviceError(self._reason, hint=f"save it and load it on a machine with such a GPU; {EMULATE}")

    def close(self) -> None:
        """Nothing is held."""


class CudaEmulator(VDevice):
    """The text for a GPU, run on the host: a test device. Results and synchronisation are real, times are not."""

    def __init__(self, *, arch: str | None = None, num_veus: int = EMULATED_VEUS, deterministic: bool = True) -> None:
        self.spec = make_spec(choose_gpu(arch), num_veus)
        self.deterministic = deterministic

    def build(self, plan: ExecutionPlan, *, progress: Progress = silent) -> Image:
        """Text, tables and packed constants. Raises ToolchainError, DeviceError."""
        program = make_program(plan, CUDA)
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
    text = str(0 if device is None else device).removeprefix("cuda:")
    if not text.isdecimal():
        raise DeviceError(
            f"no CUDA device {device!r}", hint='device= is the GPU\'s number (0, "cuda:1"), or "emulator"'
        )
    return int(text)
