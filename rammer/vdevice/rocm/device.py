"""Open AMD GPUs as vDevices: a vEU is a persistent block of threads on a compute unit. Paper: §4.2.1."""

from __future__ import annotations

from rammer.vdevice.base import VDevice
from rammer.vdevice.rocm.build import HSACO, check_code, check_fits, compile_code_object, compiler_version
from rammer.vdevice.rocm.driver import RocmDriver, find_gpu, probe
from rammer.vdevice.rocm.prelude import hip
from rammer.vdevice.rocm.spec import choose_gpu, make_spec
from rammer.vdevice.simt.device import Platform, open_gpu
from rammer.vdevice.simt.runtime.driver import NativeDriver

NATIVE = NativeDriver(
    suffix="hip",
    libraries=("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "amdhip64_7.dll", "amdhip64_6.dll"),
    functions=(
        *("hipInit", "hipDeviceGet", "hipDeviceGetAttribute", "hipDevicePrimaryCtxRetain"),
        *("hipDevicePrimaryCtxRelease", "hipCtxPushCurrent", "hipCtxPopCurrent", "hipStreamCreateWithFlags"),
        *("hipStreamDestroy", "hipStreamSynchronize", "hipMalloc", "hipFree", "hipMemsetD8Async"),
        *("hipMemcpyHtoDAsync", "hipMemcpyDtoHAsync", "hipModuleLoadData", "hipModuleUnload", "hipModuleGetFunction"),
        *("hipModuleOccupancyMaxActiveBlocksPerMultiprocessor", "hipModuleLaunchCooperativeKernel", ""),
    ),
    multiprocessors=63,  # hipDeviceAttributeMultiprocessorCount
    clock_khz=10017,  # hipDeviceAttributeWallClockRate
)
PLATFORM = Platform(
    label="ROCm",
    brand="AMD",
    code_file=HSACO,
    probe=probe,
    find_gpu=find_gpu,
    choose_gpu=choose_gpu,
    make_spec=make_spec,
    dialect=lambda spec: hip(spec.subgroup_size, spec.instructions),
    compiler=compiler_version,
    compile=compile_code_object,
    check_fits=check_fits,
    check_code=check_code,
    driver=RocmDriver,
    native=NATIVE,
)


def open_rocm(*, arch: str | None = None, device: str | int | None = None) -> VDevice:
    """Open a GPU: `arch` compiles for another one, `device` is its number, or "emulator". Raises DeviceError."""
    return open_gpu(PLATFORM, arch=arch, device=device)
