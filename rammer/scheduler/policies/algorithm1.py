"""Schedule the waves of Algorithm 1 exactly as printed. Paper: §3.3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter

from rammer.ir.kernel import RKernel
from rammer.scheduler.assembly import Assembly, Placed
from rammer.scheduler.draft import Draft
from rammer.scheduler.select import Options


class PrintedDraft(Draft):
    """A draft that schedules as the paper's text does: times within noise are not equal, and weights have no homes."""

    printed = True

    def options(self, operator_id: int) -> Options:
        """Return the rKernels from which a wave chooses: the fastest and the most efficient of all."""
        fitting = self.prices.fitting(self.graph.operators[operator_id].operation)
        fastest, efficient = (min(fitting, key=attrgetter(price)) for price in ("unshared_us", "work_us"))
        return replace(super().options(operator_id), fastest=fastest, efficient=efficient)

    def schedule_wave(self, wave: Mapping[int, RKernel], assembly: Assembly) -> list[Placed]:
        """Append a wave to P: each rTask in order, to the first vEU that can start it earliest. Lines 12 to 19."""
        self.kernels.update(wave)
        for task, needs in self.tasks(wave, assembly):
            earliest = int(assembly.starts_us(needs).argmin())  # SelectvEU; ties go to the first
            assembly.place(task, earliest, self.rtask_us(task.operator_id), needs)
        return []
