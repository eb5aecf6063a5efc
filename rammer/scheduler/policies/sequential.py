"""Schedule like RammerBase, the two-layer baseline: one operator at a time, over the whole device. Paper: §5.2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RProgram, RTask, TaskUid
from rammer.scheduler.draft import Draft
from rammer.scheduler.judge import PlanSelector
from rammer.scheduler.policies.waves import best_plan
from rammer.scheduler.policy import Problem
from rammer.scheduler.policy_options import described, option


@dataclass
class SequentialPolicy:
    """One rProgram per rOperator, with rTask i on vEU i mod N."""

    name = "sequential"

    kernels: Literal["fastest", "selected"] = option(
        fastest="each operator's rKernel is the fastest when launched alone: the paper's RammerBase",
        selected="each operator's rKernel is the one that `wavefront` selects: the paper's RammerBaseK",
    )

    def schedule(self, problem: Problem) -> ExecutionPlan:
        draft = Draft(problem)
        if self.kernels == "selected":
            selected = best_plan(problem, self.name, PlanSelector(problem)).plan
            draft.kernels.update(enumerate(selected.kernels))
        else:
            options = (draft.prices.options(op.operation) for op in problem.graph.operators)
            draft.kernels.update(enumerate(o.fastest.kernel for o in options))
        programs, total_us, veus = [], 0.0, problem.spec.num_veus
        for operator_id, kernel in draft.kernels.items():
            rtasks = [RTask(TaskUid(operator_id, n)) for n in range(kernel.num_rtasks)]
            if rtasks:
                programs.append(RProgram(tuple(tuple(rtasks[veu::veus]) for veu in range(veus))))
                launch_us = problem.spec.launched_us(min(len(rtasks), veus) > 1)
                total_us += launch_us + draft.rtask_us(operator_id) * -(-len(rtasks) // veus)
        return draft.finish(described(self, self.name), programs, total_us, [])
