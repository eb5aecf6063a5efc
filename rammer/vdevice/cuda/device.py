"""NVIDIA GPUs as a vDevice: a vEU is a persistent thread block. Paper: §4.1."""

from __future__ import annotations

from rammer.errors import DeviceError
from rammer.ir.plan import ExecutionPlan
from rammer.vdevice.base import Executable, Image, Progress, VDevice, silent
from rammer.vdevice.cuda.spec import EMULATED_VEUS, choose_gpu, make_spec
from rammer.vdevice.simt.emulator.compile import compile_host
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable
from rammer.vdevice.simt.image import make_image, make_program
from rammer.vdevice.simt.prelude import CUDA


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
