"""Policies for plans of several models, tried against `auto`: a plugin, for `RAMMER_PLUGINS` and `together --policy`.

None of them won: docs/several-models.md says by how much, and why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from rammer.frontend.merge import model_of
from rammer.hookspecs import hookimpl
from rammer.ir.plan import ExecutionPlan
from rammer.scheduler.assembly import Assembly
from rammer.scheduler.draft import Draft
from rammer.scheduler.policies.waves import select_rkernels
from rammer.scheduler.policy import Policy, Problem


class _Models(Draft):
    """A plan in the making: models one after another on all vEUs, or each on one."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.assembly = Assembly(self.spec)
        operators = enumerate(self.graph.operators)
        self._least = {n: min(self.prices.fitting(op.operation), key=lambda o: o.work_us) for n, op in operators}
        found = defaultdict[str, list[int]](list)
        for n, op in enumerate(self.graph.operators):
            found[model_of(op.name)].append(n)
        self.work_us = {model: sum(self._least[n].work_us for n in found[model]) for model in found}
        self.models = {model: found[model] for model in sorted(found, key=lambda model: -self.work_us[model])}

    def on_all(self, models: Iterable[str]) -> None:
        """Append models, each by its own waves."""
        for model in models:
            for wave in self.graph.wavefronts():
                if mine := {n: self.options(n) for n in wave if n in set(self.models[model])}:
                    trial = select_rkernels(self, mine, self.assembly, "interplay")
                    self.kernels.update(trial.kernels)
                    self.record_homes(trial.placed)

    def side_by_side(self, models: Iterable[str]) -> None:
        """Append models, each with its rKernels of least work on the vEU that has least to do."""
        loads_us = [0.0] * self.spec.num_veus
        for model in models:
            veu = loads_us.index(min(loads_us))
            loads_us[veu] += self.work_us[model]
            for n in self.models[model]:
                self.kernels[n] = self._least[n].kernel
                for task, needs in self.tasks([n], self.assembly):
                    self.assembly.place(task, veu, self._least[n].rtask_us, needs)

    def finished(self, policy: str) -> ExecutionPlan:
        return self.finish(policy, [self.assembly.build()], self.assembly.time_us, [])


class ByModels:
    """A policy that places whole models, the largest first."""

    name = ""

    def schedule(self, problem: Problem) -> ExecutionPlan:
        draft = _Models(problem)
        self.place(draft, list(draft.models))
        return draft.finished(self.name)

    def place(self, draft: _Models, models: list[str]) -> None:
        raise NotImplementedError(f"{type(self).__name__} places no models")


class SideBySide(ByModels):
    """Each model on one vEU, so that no vEU waits for another."""

    name = "side_by_side"

    def place(self, draft: _Models, models: list[str]) -> None:
        draft.side_by_side(models)


class OneAfterAnother(ByModels):
    """Each model as it would be planned alone, on all vEUs, without launches between models."""

    name = "one_after_another"

    def place(self, draft: _Models, models: list[str]) -> None:
        draft.on_all(models)


class LargestLast(ByModels):
    """Models side by side, then the largest on all vEUs, which evens out what the others left."""

    name = "largest_last"

    def place(self, draft: _Models, models: list[str]) -> None:
        draft.side_by_side(models[1:])
        draft.on_all(models[:1])


@hookimpl
def rammer_policies() -> Mapping[str, Callable[..., Policy]]:
    return {policy.name: policy for policy in (SideBySide, OneAfterAnother, LargestLast)}
