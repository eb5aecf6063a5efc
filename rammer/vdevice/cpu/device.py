"""Implement the CPU vDevice: a vEU is a thread, a barrier waits on step counters. Paper: §4.2.3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING

from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan, States
from rammer.vdevice.base import Image, Progress, silent
from rammer.vdevice.cpu.codegen.build import build_image, seal_image
from rammer.vdevice.cpu.codegen.compile import KernelCompiler
from rammer.vdevice.cpu.decode import decode
from rammer.vdevice.cpu.runtime.runner import CpuRunner
from rammer.vdevice.cpu.spec import default_rates, make_spec
from rammer.vdevice.cpu.tune.calibrate import Probe, calibrate, keep_calibration, known_calibration
from rammer.vdevice.cpu.tune.check import check_kernels, untested
from rammer.vdevice.cpu.tune.profile import measure_kernels, refused_kernels
from rammer.vdevice.profiles import ProfileStore, profile_store
from rammer.vdevice.proof.decoded import DecodedImage

if TYPE_CHECKING:
    from rammer.vdevice.cpu.export.tables import CpuExport


class CpuVDevice(CpuRunner):
    """This machine's CPU, or another one to compile for (`arch`). `device` is the number of vEUs.

    `arch` "A@B" emulates A in machine code for B, which may be "here". Tests use it on machines that lack A.
    """

    def __init__(self, *, arch: str | None = None, device: str | int | None = None) -> None:
        super().__init__(arch=arch, device=device)
        measured = known_calibration(self._host.name) if self._is_here else None
        self.spec = make_spec(self._arch, self._num_veus, self._host, measured)

    @cached_property
    def _compiler(self) -> KernelCompiler:
        return KernelCompiler(self.spec, self._host)

    def begin(self) -> None:
        """Start compiling the runtime and the measuring code in the background."""
        if self._is_here:
            self._compiler.begin()

    def close(self) -> None:
        """Cancel background work whose results were not requested."""
        if "_compiler" in self.__dict__:
            self._compiler.end()

    def probe(self) -> Probe:
        """Return the microbenchmarks of this machine's cores. Raises ToolchainError."""
        return Probe(self._compiler.library("tune/calibrate.c"), self._host.cpus)

    def calibrate(self, progress: Progress = silent) -> list[tuple[str, float, float]]:
        """Measure this machine's rates and store them for later specs. Returns (name, usual, measured) rows."""
        found = calibrate(self.probe(), self._host.caches, self._host.num_cores, progress)
        keep_calibration(self._host.name, found)
        usual = asdict(default_rates(self._host, self._arch.lanes))
        return [(name, usual[name], value) for name, value in asdict(found).items()]

    def rkernels_us(
        self, kernels: Sequence[RKernel], *, budget_s: float = 10.0, progress: Progress = silent
    ) -> Mapping[RKernel, float]:
        """Return measured microseconds of one rTask on one vEU; nothing if `arch` is another CPU."""
        if not self._is_here:
            return {}
        return measure_kernels(kernels, self._compiler, self._host.name, budget_s, progress)

    def rkernels_states_us(
        self, kernels: Sequence[RKernel], *, budget_s: float = 10.0, progress: Progress = silent
    ) -> Mapping[RKernel, States]:
        """Return measured microseconds by where operands lie; nothing if `arch` is another CPU."""
        if not self._is_here:
            return {}
        warm, shared, cold = (
            measure_kernels(kernels, self._compiler, self._host.name, budget_s, progress, operands=where)
            for where in ("near", "shared", "far")
        )
        return {k: States(warm[k], shared[k], cold[k]) for k in warm.keys() & shared.keys() & cold.keys() if cold[k]}

    def rkernels_wrong(
        self, kernels: Sequence[RKernel], *, every: frozenset[RKernel] = frozenset(), progress: Progress = silent
    ) -> Mapping[RKernel, str]:
        """Return C kernels that crash, hang or err in a child process; nothing if `arch` is another CPU."""
        return check_kernels(kernels, self._compiler, self._host.name, every, progress) if self._is_here else {}

    def rkernels_untried(
        self, kernels: Sequence[RKernel], *, every: frozenset[RKernel] = frozenset()
    ) -> Mapping[RKernel, str]:
        """Return C kernels whose tensors are too large for a trial; nothing if `arch` is another CPU."""
        return untested(kernels, every) if self._is_here else super().rkernels_untried(kernels)

    def rkernels_refused(
        self, kernels: Sequence[RKernel], *, budget_s: float = 10.0, progress: Progress = silent
    ) -> Mapping[RKernel, str]:
        """Return kernels to be measured that the C compiler rejects, or compiles for too long."""
        return refused_kernels(kernels, self._compiler, self._host.name, progress) if self._is_here else {}

    def verdicts(self) -> ProfileStore:
        """Return the store of verdicts on programs."""
        return profile_store(self._host.name, self._compiler.toolchain)

    def prepare(self, kernels: Sequence[RKernel], *, progress: Progress = silent) -> None:
        """Compile rKernels into the cache, several per compiler call. Raises ToolchainError, DeviceError."""
        self._compiler.compile(kernels, progress)

    def build(self, plan: ExecutionPlan, *, progress: Progress = silent) -> Image:
        """Return machine code, table and packed constants of a plan. Raises ToolchainError, DeviceError."""
        return build_image(plan, self._compiler, progress)

    def decode(self, image: Image) -> DecodedImage:
        """Decode an image's table and constants, with the symbols of its rKernels. Raises ValueError, KeyError."""
        kernels = list(dict.fromkeys(image.plan.kernels)) if image.plan else []
        sources = self._compiler.sources(kernels)
        return decode(image, {k: s.symbol for k, s in sources.items()}, {k: s.tickets for k, s in sources.items()})

    def seal(self, image: Image, *, progress: Progress = silent) -> Image:
        """Return the image with objects of exactly the plan's rKernels. Raises ToolchainError."""
        return image if image.plan is None else seal_image(image, image.plan, self._compiler, progress)

    def exported(self, image: Image) -> CpuExport:
        """Return the tables and C of a program for a project. Raises ToolchainError."""
        from rammer.vdevice.cpu.export.tables import CpuExport  # running and compiling needs none of it

        assert image.plan is not None  # it was compiled here
        return CpuExport(self.seal(image), image.plan, self._compiler.units(list(dict.fromkeys(image.plan.kernels))))
