"""Present IPUs as a vDevice: a vEU is a tile, a barrier-rTask the end of a compute set. Paper: §4.2.2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rammer.errors import DeviceError, LoweringError, did_you_mean
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.vdevice.base import Image, Progress, VDevice, silent
from rammer.vdevice.ipu.codegen.access import accesses
from rammer.vdevice.ipu.codegen.build import DEVICES, EMULATOR, HARDWARE, MODEL, build_image, has_room
from rammer.vdevice.ipu.codegen.codelets import codelets
from rammer.vdevice.ipu.decode import decode
from rammer.vdevice.ipu.hardware import find_hardware, require_hardware
from rammer.vdevice.ipu.runtime import IpuExecutable
from rammer.vdevice.ipu.sdk import find_sdk, require_sdk
from rammer.vdevice.ipu.spec import EXCHANGE_BYTES_PER_CYCLE, make_spec, parse_arch
from rammer.vdevice.proof.flow import DecodedFlow


class IpuVDevice(VDevice):
    """An IPU, Graphcore's model of one, or rammer's emulator.

    `arch` is a model with a number of tiles (`gc2`, `gc200:64`); `device` is "emulator", "model" or "hardware". Without
    an SDK the default is the emulator; with one it is the hardware, or the model where poptorch finds no IPU.
    """

    def __init__(self, *, arch: str | None = None, device: str | int | None = None) -> None:
        self.arch = parse_arch(arch)
        self.device = str(device) if device is not None else _default_device()
        if self.device not in DEVICES:
            hint = did_you_mean(self.device, DEVICES)
            raise DeviceError(f"no IPU device {self.device!r}; known: {', '.join(DEVICES)}", hint=hint)
        if self.device != EMULATOR:
            require_sdk(self.arch)
        if self.device == HARDWARE:
            require_hardware(self.arch)
        self.spec = make_spec(self.arch)

    def rkernels_us(
        self, kernels: Sequence[RKernel], *, budget_s: float = 10.0, progress: Progress = silent
    ) -> Mapping[RKernel, float]:
        """Estimate microseconds of one rTask: cycles of its vertex, plus those to receive its operands."""
        found = {}
        for kernel in kernels:
            try:
                found[kernel] = self._rtask_us(kernel)
            except LoweringError:
                continue
        return found

    def _rtask_us(self, kernel: RKernel) -> float:
        table, classes = accesses(kernel), codelets(kernel)
        if not classes:
            return self.arch.microseconds(1)
        cycles = max(c.tile_cycles for c in classes) / (self.arch.veus_per_tile)
        outputs = len(kernel.operation.outputs)
        types = [t.dtype.itemsize for t in kernel.operation.inputs]
        moving = [n for n, static in enumerate(kernel.operation.static) if not static]
        rows = dict.fromkeys(table.patterns)
        received = max(sum(row[outputs + n].size * types[n] for n in moving) for row in rows)
        return self.arch.microseconds(cycles + received / EXCHANGE_BYTES_PER_CYCLE)

    def has_room(self, plan: ExecutionPlan) -> bool:
        """Return whether the plan fits every tile's memory. Raises LoweringError."""
        return has_room(plan, self.arch)

    def build(self, plan: ExecutionPlan, *, progress: Progress = silent) -> Image:
        """Emit C++ of a plan and compile it. Raises LoweringError, DeviceError, ToolchainError."""
        return build_image(plan, self.arch, self.device, progress)

    def decode(self, image: Image) -> DecodedFlow | str:
        """Decode an image's tables; its codelets are those of the plan's rKernels. Raises ValueError, KeyError."""
        plan = image.plan
        if plan is None or any(op.operation.expr.into for op in plan.graph.operators):
            return "what changes an input in place is in no decoder"
        return decode(image, {kernel: _names(kernel) for kernel in dict.fromkeys(plan.kernels)})

    def load(self, image: Image) -> IpuExecutable:
        """Return an image ready to run. Raises ArtifactError, DeviceError."""
        return IpuExecutable(image)


def _names(kernel: RKernel) -> list[str]:
    """Return the class name of each rTask's vertex."""
    classes = codelets(kernel)
    return [classes[c].name if c >= 0 else "" for c in accesses(kernel).chosen]


def _default_device() -> str:
    if find_sdk() is None:
        return EMULATOR
    return MODEL if find_hardware().available is False else HARDWARE
