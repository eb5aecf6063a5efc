"""AMD GPUs as a vDevice: a vEU is a persistent block of threads on a compute unit. Paper: §4.2.1."""

from __future__ import annotations

from collections.abc import Mapping

from rammer.errors import ArtifactError
from rammer.ir.device import VDeviceSpec
from rammer.vdevice.base import Availability, Registers
from rammer.vdevice.rocm.build import (
    HSACO,
    CodeObject,
    Resources,
    check_fits,
    compile_code_object,
    compiler_version,
    read_registers,
)
from rammer.vdevice.rocm.driver import RocmDriver, find_gpu, probe
from rammer.vdevice.rocm.elf import arch_of
from rammer.vdevice.rocm.prelude import hip
from rammer.vdevice.rocm.spec import choose_gpu, make_spec
from rammer.vdevice.simt.device import EMULATED_VEUS, GpuVDevice, SimtEmulator
from rammer.vdevice.simt.gpu import Gpu
from rammer.vdevice.simt.prelude import Dialect


class RocmVDevice(GpuVDevice):
    """A GPU of this machine, or one to compile for (`arch`) where there is none."""

    label, brand = "ROCm", "AMD"
    code_file, resources = HSACO, Resources

    def available(self) -> Availability:
        return probe()

    def find(self, number: int) -> Gpu:
        return find_gpu(number)

    def choose(self, name: str | None) -> Gpu:
        return choose_gpu(name)

    def describe(self, gpu: Gpu) -> VDeviceSpec:
        return make_spec(gpu)

    def dialect(self) -> Dialect:
        return hip(self.spec.wave)

    def compiler(self) -> str:
        return compiler_version()

    def machine_code(self, text: str) -> CodeObject:
        return compile_code_object(text, self.gpu.arch)

    def registers(self, text: str) -> Mapping[str, Registers]:
        return read_registers(text, self.gpu.arch)

    def check_fits(self, num_veus: int, threads: int, shared_bytes: int, needs: Resources) -> None:
        check_fits(num_veus, threads, shared_bytes, self.gpu, needs)

    def check_code(self, code: bytes, needs: Resources) -> None:
        if arch_of(code) != self.gpu.arch:
            raise ArtifactError(
                f"the program's code object is for {arch_of(code)}, {self.gpu.name} is {self.gpu.arch}",
                hint="compile the model again",
            )

    def driver(self) -> RocmDriver:
        return RocmDriver(self.number)


def rocm_emulator(
    *, arch: str | None = None, num_veus: int = EMULATED_VEUS, deterministic: bool = True
) -> SimtEmulator:
    """The text for an AMD GPU on the host."""
    spec = make_spec(choose_gpu(arch), num_veus)
    return SimtEmulator(spec, lambda s: hip(s.wave), deterministic=deterministic)
