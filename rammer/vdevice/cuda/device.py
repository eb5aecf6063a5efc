"""NVIDIA GPUs as a vDevice: a vEU is a persistent thread block. Paper: §4.1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.vdevice.base import Availability, Image, Progress, Registers, silent
from rammer.vdevice.cuda.build import CUBIN, RESOURCES, check_fits, compile_cubin, read_registers, resources_file
from rammer.vdevice.cuda.driver import find_gpu, probe
from rammer.vdevice.cuda.profile import measure_kernels
from rammer.vdevice.cuda.runtime import CudaExecutable
from rammer.vdevice.cuda.spec import Gpu, choose_gpu, make_spec
from rammer.vdevice.simt.device import EMULATED_VEUS, GpuVDevice, SimtEmulator
from rammer.vdevice.simt.image import SimtProgram
from rammer.vdevice.simt.prelude import CUDA, Dialect
from rammer.vdevice.simt.registers import read_registers as simt_registers


class CudaVDevice(GpuVDevice):
    """A GPU of this machine, or one to compile for (`arch`) where there is none."""

    label, brand = "CUDA", "NVIDIA"
    gpu: Gpu

    def available(self) -> Availability:
        return probe()

    def find(self, number: int) -> Gpu:
        return find_gpu(number)

    def choose(self, name: str | None) -> Gpu:
        return choose_gpu(name)

    def describe(self, gpu: Gpu) -> VDeviceSpec:
        return make_spec(gpu)

    def dialect(self) -> Dialect:
        return CUDA

    def compile(self, plan: ExecutionPlan, program: SimtProgram) -> dict[str, bytes]:
        cubin = compile_cubin(program.text, plan.spec.arch)
        check_fits(plan.spec.num_veus, program.threads, program.shared_bytes, self.gpu, cubin.resources)
        return {CUBIN: cubin.data, RESOURCES: resources_file(cubin.resources)}

    def open(self, image: Image) -> CudaExecutable:
        return CudaExecutable(image, self.number, self.gpu)

    def rkernels_registers(
        self, kernels: Sequence[RKernel], *, budget_s: float = 10.0, progress: Progress = silent
    ) -> Mapping[RKernel, Registers]:
        """What ptxas says about each rKernel alone; needs no GPU. Raises ToolchainError."""

        def compile(text: str) -> Mapping[str, Registers]:
            return read_registers(compile_cubin(text, self.spec.arch))

        return simt_registers(kernels, CUDA, budget_s, progress, compile)

    def rkernels_us(
        self, kernels: Sequence[RKernel], *, budget_s: float = 10.0, progress: Progress = silent
    ) -> Mapping[RKernel, float]:
        """Measured microseconds of one rTask on one vEU; nothing without a GPU."""
        if self.missing:
            return {}
        return measure_kernels(kernels, self.number, self.gpu, self.spec.num_veus, budget_s, progress)


def cuda_emulator(
    *, arch: str | None = None, num_veus: int = EMULATED_VEUS, deterministic: bool = True
) -> SimtEmulator:
    """The text for an NVIDIA GPU on the host."""
    return SimtEmulator(make_spec(choose_gpu(arch), num_veus), lambda spec: CUDA, deterministic=deterministic)
