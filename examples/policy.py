"""A scheduling policy in one script: each operator stays on one vEU, so only vEUs that exchange results wait."""

from collections.abc import Callable, Mapping

import numpy as np
import onnx.parser
from numpy.typing import NDArray

import rammer
from rammer.scheduler.policy import Policy, Problem

MODEL = """
<ir_version: 10, opset_import: ["" : 20]>
branches (float[3, 96] x, float[96, 96] w, float[96] scale) => (float[3, 96] y) {
  a = MatMul(x, w)
  b = Softmax <axis = -1> (a)
  c = MatMul(b, w)
  d = LayerNormalization <axis = -1> (x, scale)
  e = MatMul(d, w)
  f = Gelu(e)
  y = Add(c, f)
}
"""


class Owners:
    """Place each operator on the vEU that is free first, and make its rTasks wait for those of its operands."""

    name = "owners"

    def schedule(self, problem: Problem) -> rammer.ExecutionPlan:
        graph, rtask_us, veus = problem.graph, problem.profiler.rtask_us, problem.spec.num_veus
        kernels = tuple(
            min(problem.candidates[op.operation], key=lambda k: rtask_us(k) * k.num_rtasks) for op in graph.operators
        )
        builder, free_us = rammer.RProgramBuilder(veus), [0.0] * veus
        for number, kernel in enumerate(kernels):  # in topological order
            veu = free_us.index(min(free_us))
            operands = [rammer.TaskUid(n, i) for n in graph.before[number] for i in range(kernels[n].num_rtasks)]
            for rtask in range(kernel.num_rtasks):
                task = rammer.TaskUid(number, rtask)
                builder.wait(task, on=operands)
                builder.append(task, veu)
                free_us[veu] += rtask_us(kernel)
        return rammer.ExecutionPlan(graph, problem.spec, kernels, (builder.build(),), self.name)


class Plugin:
    """What a package would announce as an entry point."""

    @rammer.hookimpl
    def rammer_policies(self) -> Mapping[str, Callable[..., Policy]]:
        return {"owners": Owners}


registry = rammer.PluginRegistry()
registry.register(Plugin(), "owners")
random = np.random.default_rng(0)
x = random.standard_normal((3, 96), np.float32)
constants: dict[str, NDArray[np.float32]] = {
    "w": random.standard_normal((96, 96), np.float32),
    "scale": np.ones(96, np.float32),
}
model = onnx.parser.parse_model(MODEL)
results = {}
for policy in ("owners", "wavefront", "sequential"):
    with rammer.compile(model, constants=constants, device=2, policy=policy, registry=registry) as program:
        results[policy] = program(x)
        report = program.report()
        print(
            f"{policy}: {report.num_operators} operators, {report.num_barriers} barriers, {report.estimated_us:.2f} µs"
        )
assert all(np.allclose(y, results["owners"], atol=1e-5) for y in results.values())
