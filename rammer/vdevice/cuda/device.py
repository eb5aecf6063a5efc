"""NVIDIA GPUs as a vDevice: a vEU is a persistent thread block. Paper: §4.1."""

from __future__ import annotations

from collections.abc import Mapping

from rammer.ir.device import VDeviceSpec
from rammer.vdevice.base import Availability, Registers
from rammer.vdevice.cuda.build import (
    CUBIN,
    OPTIONS,
    Cubin,
    Resources,
    check_fits,
    compile_cubin,
    nvrtc_version,
    read_registers,
)
from rammer.vdevice.cuda.driver import CudaDriver, check_driver, find_gpu, load_cupy, probe
from rammer.vdevice.cuda.spec import choose_gpu, make_spec
from rammer.vdevice.simt.device import EMULATED_VEUS, GpuVDevice, SimtEmulator
from rammer.vdevice.simt.gpu import Gpu
from rammer.vdevice.simt.prelude import CUDA, Dialect


class CudaVDevice(GpuVDevice):
    """A GPU of this machine, or one to compile for (`arch`) where there is none."""

    label, brand = "CUDA", "NVIDIA"
    code_file, resources = CUBIN, Resources

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

    def compiler(self) -> str:
        return f"{nvrtc_version()} {' '.join(OPTIONS)}"

    def machine_code(self, text: str) -> Cubin:
        return compile_cubin(text, self.gpu.arch)

    def registers(self, text: str) -> Mapping[str, Registers]:
        return read_registers(self.machine_code(text))

    def check_fits(self, num_veus: int, threads: int, shared_bytes: int, needs: Resources) -> None:
        check_fits(num_veus, threads, shared_bytes, self.gpu, needs)

    def check_code(self, code: bytes, needs: Resources) -> None:
        check_driver(load_cupy(), needs.compiler)

    def driver(self) -> CudaDriver:
        return CudaDriver(self.number)


def cuda_emulator(
    *, arch: str | None = None, num_veus: int = EMULATED_VEUS, deterministic: bool = True
) -> SimtEmulator:
    """The text for an NVIDIA GPU on the host."""
    return SimtEmulator(make_spec(choose_gpu(arch), num_veus), lambda spec: CUDA, deterministic=deterministic)
