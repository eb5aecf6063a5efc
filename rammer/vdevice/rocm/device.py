"""Open AMD GPUs as vDevices: a vEU is a persistent block of threads on a compute unit. Paper: §4.2.1."""

from __future__ import annotations

from rammer.vdevice.base import VDevice, later
from rammer.vdevice.rocm.build import HSACO, check_code, check_fits, compile_code_object, compiler_version
from rammer.vdevice.rocm.driver import RocmDriver, find_gpu, probe
from rammer.vdevice.rocm.spec import choose_gpu, make_spec
from rammer.vdevice.simt.device import Platform, open_gpu

PLATFORM = Platform(
    label="ROCm",
    brand="AMD",
    code_file=HSACO,
    text_suffix=".hip",
    probe=probe,
    find_gpu=find_gpu,
    choose_gpu=choose_gpu,
    make_spec=make_spec,
    dialect=later("rammer.vdevice.rocm.prelude", "hip_of"),  # running programs needs none of it
    compiler=compiler_version,
    compile=compile_code_object,
    check_fits=check_fits,
    check_code=check_code,
    driver=RocmDriver,
)


def open_rocm(*, arch: str | None = None, device: str | int | None = None) -> VDevice:
    """Open a GPU: `arch` compiles for another one, `device` is its number, or "emulator". Raises DeviceError."""
    return open_gpu(PLATFORM, arch=arch, device=device)
