"""Show two real networks: compile, check against NumPy, and time them under two policies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

import rammer
import rammer_viz as viz
from rammer import files
from rammer.errors import RammerError
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.runtime import measure
from rammer.scheduler.timeline import simulate
from rammer.vdevice.base import Progress
from rammer_viz import tables

POLICIES = ("sequential", "wavefront")
TOLERANCE = 1e-3  # of the largest output


def squeezenet(seed: int = 0) -> onnx.ModelProto:
    """Return SqueezeNet as the onnx package has it, with constant weights replaced by seeded random ones."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    model = onnx.load(folder / "light_squeezenet.onnx")
    random = np.random.default_rng(seed)
    shapes = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    for node in list(model.graph.node):
        if node.op_type == "ConstantOfShape" and node.input[0] in shapes:
            shape = tuple(shapes[node.input[0]].astype(int).ravel())
            fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 100
            weights = (random.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(weights, node.output[0]))
            model.graph.node.remove(node)
    return model


def lstm_stack(layers: int = 4, steps: int = 50, hidden: int = 256, seed: int = 0) -> onnx.ModelProto:
    """Return stacked LSTMs over a sequence [steps, 1, hidden], batch 1: many small operators in a row."""
    random = np.random.default_rng(seed)
    nodes, weights, tensor = [], [], "x"
    for layer in range(layers):
        for name, shape in (("w", (1, 4 * hidden, hidden)), ("r", (1, 4 * hidden, hidden)), ("b", (1, 8 * hidden))):
            values = (random.standard_normal(shape) * hidden**-0.5).astype(np.float32)
            weights.append(numpy_helper.from_array(values, f"{name}{layer}"))
        inputs = [tensor, f"w{layer}", f"r{layer}", f"b{layer}"]
        nodes.append(helper.make_node("LSTM", inputs, [f"y{layer}"], f"lstm{layer}", hidden_size=hidden))
        tensor = f"h{layer}" if layer < layers - 1 else "y"
        weights.append(numpy_helper.from_array(np.array([1]), f"axis{layer}"))
        nodes.append(helper.make_node("Squeeze", [f"y{layer}", f"axis{layer}"], [tensor], f"squeeze{layer}"))
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [steps, 1, hidden]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "lstm_stack", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def run(out: Console, html: Path, seconds: float, progress: Progress) -> None:
    """Compile, check and time both networks, and write the LSTM's wavefront timeline.

    Raises RammerError on a wrong result.
    """
    for title, model in (
        ("SqueezeNet 1.0, 224×224, random weights", squeezenet()),
        ("LSTM, 4 layers × 50 steps, 256 hidden", lstm_stack()),
    ):
        graph = rammer.from_onnx(model)
        programs = {p: rammer.compile(graph, "cpu", policy=p, progress=progress) for p in POLICIES}
        try:
            inputs = measure.random_inputs(programs[POLICIES[0]].inputs, 0)
            wanted = evaluate_graph(graph, inputs)
            worst = max(_error(p.run(inputs), wanted) for p in programs.values())
            if not worst < TOLERANCE:
                raise RammerError(f"{title}: results differ from NumPy's by {worst:.1e} of the largest output")
            runs = {name: measure.repeated(program) for name, program in programs.items()}
            table = tables.policy_table(programs, measure.interleaved(runs, seconds))
            table.title = title
            out.print(table)
            out.print(f"results equal NumPy's within {worst:.1e} of the largest output\n", highlight=False)
            plan = programs["wavefront"].plan
            files.write(html, viz.html(simulate(plan), plan))
        finally:
            for program in programs.values():
                program.close()
    out.print(f"timeline of the LSTM under wavefront: {html} (open it in a browser)", highlight=False)


def _error(outputs: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    return max(float(np.abs(outputs[n] - v).max() / (np.abs(v).max() or 1.0)) for n, v in wanted.items())
