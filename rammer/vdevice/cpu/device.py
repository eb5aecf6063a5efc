"""The CPU vDevice: a vEU is a thread, its barrier a step counter. Paper: §4.2.3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.vdevice.base import Image, Progress, VDevice, silent
from rammer.vdevice.cpu.build import build_image, seal_image
from rammer.vdevice.cpu.compile import KernelCompiler
from rammer.vdevice.cpu.profile import known_plans_us, measure_kernels, measure_plans
from rammer.vdevice.cpu.runtime import CpuExecutable
from rammer.vdevice.cpu.spec import ARCHES, choose_arch, choose_num_veus, host, make_spec


class CpuVDevice(VDevice):
    """This machine's CPU, or another one to compile for (`arch`); `device` is the number of vEUs."""

    def __init__(self, *, arch: str | None = None, device: str | int | None = None) -> None:
        self._host = host()
        chosen = choose_arch(arch, self._host)
        self.spec = make_spec(chosen, choose_num_veus(device, self._host), self._host)

    @cached_property
    def _compiler(self) -> KernelCompiler:
        return KernelCompiler(self.spec, self._host)

    @property
    def _is_here(self) -> bool:
        return self._host.runs(ARCHES[self.spec.arch])

    def rkernels_us(
        self, kernels: Sequence[RKernel], *, budget_s: float = 10.0, progress: Progress = silent
    ) -> Mapping[RKernel, float]:
        """Measured microseconds of one rTask on one vEU; nothing for a CPU that is not this one."""
        if not self._is_here:
            return {}
        return measure_kernels(kernels, self._compiler, self._host.name, budget_s, progress)

    def plans_us(self, plans: Sequence[ExecutionPlan]) -> Sequence[float] | None:
        """Measured microseconds of plans, all inputs zero; None for a CPU that is not this one."""
        if not self._is_here:
            return None

        def measure() -> list[float]:
            executables: list[CpuExecutable] = []
            try:
                executables += (self.load(self.build(plan)) for plan in plans)
                return measure_plans(plans, executables)
            finally:
                for executable in executables:
                    executable.close()

        return known_plans_us(plans, self._compiler, self._host.name, measure)

    def prepare(self, kernels: Sequence[RKernel], *, progress: Progress = silent) -> None:
        """Machine code of rKernels into the cache, in few calls of the compiler. Raises ToolchainError, DeviceError."""
        self._compiler.compile(kernels, progress)

    def build(self, plan: ExecutionPlan, *, progress: Progress = silent) -> Image:
        """Machine code, table and packed constants of a plan. Raises ToolchainError, DeviceError."""
        return build_image(plan, self._compiler, progress)

    def seal(self, image: Image, *, progress: Progress = silent) -> Image:
        """With objects of just the plan's rKernels. Raises ToolchainError."""
        return image if image.plan is None else seal_image(image, image.plan, self._compiler, progress)

    def load(self, image: Image) -> CpuExecutable:
        """An image ready to run; compiles nothing. Raises ArtifactError if it is not for this machine."""
        return CpuExecutable(image, self._host)
