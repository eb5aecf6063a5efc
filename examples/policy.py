"""A scheduling policy: the longest rTasks of a wave first, each to the vEU that is free the earliest."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace

import numpy as np
import onnx.parser

import rammer
from rammer import ExecutionPlan, RKernel, RProgramBuilder, TaskUid, hookimpl
from rammer.scheduler.policy import Policy, Problem

MODEL = """
<ir_version: 10, opset_import: ["" : 20]>
branches (float[29, 75] x) => (float[29, 75] y) {
  a = Tanh(x)
  b = Softmax(x)
  y = Sum(a, b)
}
"""


class LongestFirst:
    """One rProgram per wave: its rTasks do not wait for each other."""

    name = "longest_first"

    def schedule(self, problem: Problem) -> ExecutionPlan:
        num_veus, rtask_us = problem.spec.num_veus, problem.profiler.rtask_us

        def alone_us(kernel: RKernel) -> float:
            return rtask_us(kernel) * -(-kernel.num_rtasks // num_veus)

        operators = problem.graph.operators
        kernels = tuple(min(problem.candidates[op.operation], key=alone_us) for op in operators)
        programs = []
        for wave in problem.graph.wavefronts():
            builder, free_us = RProgramBuilder(num_veus), [0.0] * num_veus
            for n in sorted(wave, key=lambda n: -rtask_us(kernels[n])):
                for rtask_id in range(kernels[n].num_rtasks):
                    veu = free_us.index(min(free_us))
                    builder.append(TaskUid(n, rtask_id), veu)
                    free_us[veu] += rtask_us(kernels[n])
            programs.append(builder.build())
        return ExecutionPlan(problem.graph, problem.spec, kernels, tuple(programs), self.name)


@hookimpl
def rammer_policies() -> Mapping[str, Callable[[], Policy]]:
    return {"longest_first": LongestFirst}


def main() -> None:
    registry = rammer.PluginRegistry()  # an installed package announces itself: docs/plugin-author.md
    registry.register(SimpleNamespace(rammer_policies=rammer_policies), "examples")
    x = np.random.default_rng(0).standard_normal((29, 75), np.float32)
    model = onnx.parser.parse_model(MODEL)
    with rammer.compile(model, "cpu", policy="longest_first", registry=registry) as program:
        found = program(x)
        print(program.plan)
    shares = np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)
    assert np.allclose(found, np.tanh(x) + shares, atol=1e-5)


if __name__ == "__main__":
    main()
