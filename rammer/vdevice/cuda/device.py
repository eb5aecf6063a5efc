"""Open NVIDIA GPUs as vDevices: a vEU is a persistent thread block. Paper: §4.1."""

from __future__ import annotations

from rammer.vdevice.base import VDevice
from rammer.vdevice.cuda.build import CUBIN, check_fits, compile_cubin, compiler_version
from rammer.vdevice.cuda.driver import CudaDriver, check_driver, find_gpu, load_cupy, probe
from rammer.vdevice.cuda.spec import choose_gpu, make_spec
from rammer.vdevice.simt.codegen.prelude import CUDA
from rammer.vdevice.simt.device import Platform, open_gpu
from rammer.vdevice.simt.runtime.driver import NativeDriver

NATIVE = NativeDriver(
    suffix="cu",
    libraries=("libcuda.so.1", "nvcuda.dll"),
    functions=(
        *("cuInit", "cuDeviceGet", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"),
        *("cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuStreamCreate", "cuStreamDestroy_v2", "cuStreamSynchronize"),
        *("cuMemAlloc_v2", "cuMemFree_v2", "cuMemsetD8Async", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"),
        *("cuModuleLoadData", "cuModuleUnload", "cuModuleGetFunction", "cuOccupancyMaxActiveBlocksPerMultiprocessor"),
        *("cuLaunchCooperativeKernel", "cuFuncSetAttribute"),
    ),
    multiprocessors=16,  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    shared_bytes=8,  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
)
PLATFORM = Platform(
    label="CUDA",
    brand="NVIDIA",
    code_file=CUBIN,
    probe=probe,
    find_gpu=find_gpu,
    choose_gpu=choose_gpu,
    make_spec=make_spec,
    dialect=lambda spec: CUDA,
    compiler=compiler_version,
    compile=compile_cubin,
    check_fits=check_fits,
    check_code=lambda code, needs, gpu: check_driver(load_cupy(), needs.compiler),
    driver=CudaDriver,
    native=NATIVE,
)


def open_cuda(*, arch: str | None = None, device: str | int | None = None) -> VDevice:
    """Open a GPU: `arch` compiles for another one, `device` is its number, or "emulator". Raises DeviceError."""
    return open_gpu(PLATFORM, arch=arch, device=device)
