"""Open NVIDIA GPUs as vDevices: a vEU is a persistent thread block. Paper: §4.1."""

from __future__ import annotations

from rammer.vdevice.base import VDevice, later
from rammer.vdevice.cuda.build import CUBIN, check_fits, compile_cubin, compiler_version
from rammer.vdevice.cuda.driver import CudaDriver, check_driver, find_gpu, load_cupy, probe
from rammer.vdevice.cuda.spec import choose_gpu, make_spec
from rammer.vdevice.simt.device import Platform, open_gpu

PLATFORM = Platform(
    label="CUDA",
    brand="NVIDIA",
    code_file=CUBIN,
    text_suffix=".cu",
    probe=probe,
    find_gpu=find_gpu,
    choose_gpu=choose_gpu,
    make_spec=make_spec,
    dialect=later("rammer.vdevice.simt.codegen.prelude", "cuda"),  # running programs needs none of it
    compiler=compiler_version,
    compile=compile_cubin,
    check_fits=check_fits,
    check_code=lambda code, needs, gpu: check_driver(load_cupy(), needs.compiler),
    driver=CudaDriver,
)


def open_cuda(*, arch: str | None = None, device: str | int | None = None) -> VDevice:
    """Open a GPU: `arch` compiles for another one, `device` is its number, or "emulator". Raises DeviceError."""
    return open_gpu(PLATFORM, arch=arch, device=device)
