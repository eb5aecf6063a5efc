"""RammerBase, the two-layer baseline: operators one after another, each over the whole device. Paper: §5.2."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import TaskUid
from rammer.scheduler.assembly import Assembly
from rammer.scheduler.draft import Draft
from rammer.scheduler.judge import Judge
from rammer.scheduler.policy import Problem
from rammer.scheduler.policy_options import described
from rammer.scheduler.waves import draw_with_chains


@dataclass
class SequentialPolicy:
    """One rProgram per rOperator; rTask i of it runs on vEU i mod N."""

    name = "sequential"

    kernels: Literal["fastest", "selected"] = field(
        default="fastest",
        metadata={
            "fastest": "each operator's rKernel is the fastest when launched alone: the paper's RammerBase",
            "selected": "each operator's rKernel is the one that `wavefront` selects: the paper's RammerBaseK",
        },
    )

    def schedule(self, problem: Problem) -> ExecutionPlan:
        draft = Draft(problem)
        if self.kernels == "selected":
            selected = draw_with_chains(problem, self.name, Judge(problem, measures=True)).plan
            draft.kernels.update(enumerate(selected.kernels))
        else:
            options = (draft.market.options(op.operation) for op in problem.graph.operators)
            draft.kernels.update(enumerate(o.fastest.kernel for o in options))
        programs, total_us = [], 0.0
        for operator_id, kernel in draft.kernels.items():
            assembly = Assembly(problem.spec)
            us = draft.rtask_us(operator_id)
            for rtask_id in range(kernel.num_rtasks):
                assembly.place(TaskUid(operator_id, rtask_id), rtask_id % problem.spec.num_veus, us)
            if not assembly.is_empty:
                programs.append(assembly.build())
                total_us += assembly.time_us
        return draft.finish(described(self, self.name), programs, total_us, [])
