"""AMD GPUs as a vDevice: a vEU is a persistent block of threads on a compute unit. Paper: §4.2.1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.vdevice.base import Availability, Image, Progress, Registers, silent
from rammer.vdevice.rocm.build import HSACO, RESOURCES, check_fits, compile_code_object, read_registers, resources_file
from rammer.vdevice.rocm.prelude import hip
from rammer.vdevice.rocm.runtime import RocmExecutable, find_gpu, probe
from rammer.vdevice.rocm.spec import Gpu, choose_gpu, make_spec
from rammer.vdevice.simt.device import EMULATED_VEUS, GpuVDevice, SimtEmulator
from rammer.vdevice.simt.image import SimtProgram
from rammer.vdevice.simt.prelude import Dialect
from rammer.vdevice.simt.registers import read_registers as simt_registers


class RocmVDevice(GpuVDevice):
    """A GPU of this machine, or one to compile for (`arch`) where there is none."""

    label, brand = "ROCm", "AMD"
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
        return hip(self.spec.wave, self.spec.instructions)

    def compile(self, plan: ExecutionPlan, program: SimtProgram) -> dict[str, bytes]:
        code = compile_code_object(program.text, plan.spec.arch)
        check_fits(plan, program, self.gpu, code.resources)
        return {HSACO: code.data, RESOURCES: resources_file(code.resources)}

    def rkernels_registers(
        self, kernels: Sequence[RKernel], *, budget_s: float = 10.0, progress: Progress = silent
    ) -> Mapping[RKernel, Registers]:
        """What the code object says about each rKernel alone; needs no GPU. Raises ToolchainError."""

        def compile(text: str) -> Mapping[str, Registers]:
            return read_registers(text, self.spec.arch)

        return simt_registers(kernels, self.dialect(), budget_s, progress, compile)

    def open(self, image: Image) -> RocmExecutable:
        return RocmExecutable(image, self.number, self.gpu)


def rocm_emulator(
    *, arch: str | None = None, num_veus: int = EMULATED_VEUS, deterministic: bool = True
) -> SimtEmulator:
    """The text for an AMD GPU on the host."""
    spec = make_spec(choose_gpu(arch), num_veus)
    return SimtEmulator(spec, lambda s: hip(s.wave, s.instructions), deterministic=deterministic)
