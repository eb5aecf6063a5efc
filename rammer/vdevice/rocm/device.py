"""Open AMD GPUs as vDevices: a vEU is a persistent block of threads on a compute unit. Paper: §4.2.1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rammer.vdevice.base import VDevice
from rammer.vdevice.rocm.build import HSACO, check_code, check_fits, compile_code_object, compiler_version
from rammer.vdevice.rocm.driver import RocmDriver, find_gpu, probe
from rammer.vdevice.rocm.spec import choose_gpu, make_spec
from rammer.vdevice.simt.device import Platform, open_gpu

if TYPE_CHECKING:
    from rammer.ir.device import VDeviceSpec
    from rammer.vdevice.simt.codegen.prelude import Dialect


def _dialect(spec: VDeviceSpec) -> Dialect:
    from rammer.vdevice.rocm.prelude import hip  # running programs needs none of it

    return hip(spec.subgroup_size, spec.instructions)


PLATFORM = Platform(
    label="ROCm",
    brand="AMD",
    code_file=HSACO,
    probe=probe,
    find_gpu=find_gpu,
    choose_gpu=choose_gpu,
    make_spec=make_spec,
    dialect=_dialect,
    compiler=compiler_version,
    compile=compile_code_object,
    check_fits=check_fits,
    check_code=check_code,
    driver=RocmDriver,
)


def open_rocm(*, arch: str | None = None, device: str | int | None = None) -> VDevice:
    """Open a GPU: `arch` compiles for another one, `device` is its number, or "emulator". Raises DeviceError."""
    return open_gpu(PLATFORM, arch=arch, device=device)
