"""RammerBase, the two-layer baseline: operators one after another, each over the whole device. Paper: §5.2."""

from __future__ import annotations

from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import TaskUid
from rammer.scheduler.assembly import Assembly
from rammer.scheduler.draft import Draft
from rammer.scheduler.policy import Problem


class SequentialPolicy:
    """One rProgram per rOperator, with the rKernel that is fastest when launched alone; rTask i runs on vEU i mod N."""

    name = "sequential"

    def schedule(self, problem: Problem) -> ExecutionPlan:
        draft = Draft(problem)
        programs, total_us = [], 0.0
        for operator_id, op in enumerate(problem.graph.operators):
            kernel = draft.kernels[operator_id] = draft.market.options(op.operation).fastest.kernel
            assembly = Assembly(problem.spec)
            us = draft.rtask_us(operator_id)
            for rtask_id in range(kernel.num_rtasks):
                assembly.place(TaskUid(operator_id, rtask_id), rtask_id % problem.spec.num_veus, us)
            if not assembly.is_empty:
                programs.append(assembly.build())
                total_us += assembly.time_us
        return draft.finish(self.name, programs, total_us, [])
