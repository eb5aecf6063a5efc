"""Schedule like NNFusion's release: all operators in one rProgram, rTasks dealt to the vEUs in turn."""

from __future__ import annotations

from rammer.ir.plan import ExecutionPlan
from rammer.scheduler.assembly import Assembly
from rammer.scheduler.draft import Draft
from rammer.scheduler.policy import Problem


class RoundRobinPolicy:
    """One rProgram; each rOperator uses its fastest rKernel, with rTask i on vEU i mod N."""

    name = "round_robin"

    def schedule(self, problem: Problem) -> ExecutionPlan:
        draft, assembly = Draft(problem), Assembly(problem.spec)
        for operator_id, op in enumerate(problem.graph.operators):
            draft.kernels[operator_id] = draft.prices.options(op.operation).fastest.kernel
            for task, needs in draft.tasks([operator_id], assembly):
                veu = task.rtask_id % problem.spec.num_veus
                assembly.place(task, veu, draft.rtask_us(operator_id), needs)
        programs = [] if assembly.is_empty else [assembly.build()]
        return draft.finish(self.name, programs, assembly.time_us, [])
