"""Compare quantised networks with the same in float32, and with ONNX Runtime, called in turns.

Small networks are built here. ONNX Runtime's own tools quantise `mobilenet`, `minilm`, `hifi_gan` and `lstm`.
`llama_4bit_32` and similar ones have weights of four bits in blocks, `keyword_f16` and similar ones float16.

python -m benchmarks.quantized.run [--networks mlp_64,…] [--turns 15] [--device 2] [--clock wall] [--json r.json]
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from rich.table import Table

import rammer
from benchmarks.compare.apart import PAUSE_S
from benchmarks.compare.report import wide_console
from benchmarks.quantized.models import HALVES, MODELS, error, quantise
from rammer.ir.tensor import Array
from rammer.vdevice.cpu.host import host

ROUND_S = 0.1  # of one visit to one program
Layers = tuple[tuple[int, ...], ...]  # shapes of weights
NETWORKS: dict[str, tuple[tuple[int, ...], Layers]] = {
    "mlp_1": ((1, 512), ((512, 1024), (1024, 1024), (1024, 256))),
    "mlp_64": ((64, 512), ((512, 1024), (1024, 1024), (1024, 256))),
    "conv_56": ((1, 64, 56, 56), ((64, 64, 3, 3), (64, 64, 1, 1), (64, 64, 3, 3))),
    "conv_28": ((1, 128, 28, 28), ((128, 128, 3, 3), (128, 128, 1, 1), (128, 128, 3, 3))),
    "conv_14": ((1, 256, 14, 14), ((256, 256, 3, 3), (256, 256, 1, 1), (256, 256, 3, 3))),
}


def network(shape: tuple[int, ...], layers: Layers, quantised: bool) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """QLinearMatMul and QLinearConv, of unsigned bytes and signed weights; or MatMul and Conv, each before a ReLU."""
    rng = np.random.default_rng(0)
    nodes: list[NodeProto] = []
    constants: dict[str, Any] = {}
    t = "x"
    for n, size in enumerate(layers):
        weights = rng.integers(-127, 128, size).astype(np.int8)
        kind = "MatMul" if len(size) == 2 else "Conv"
        attrs: dict[str, Any] = {} if len(size) == 2 else {"pads": [size[2] // 2] * 4}
        terms = np.prod(size[:1] if len(size) == 2 else size[1:])
        if quantised:
            scales = {"sx": 0.02, "sw": 0.01, "sy": 0.01 * float(terms) ** 0.5}
            constants |= {f"{name}{n}": np.float32(value) for name, value in scales.items()}
            constants |= {f"w{n}": weights, f"zx{n}": np.uint8(128), f"zw{n}": np.int8(0), f"zy{n}": np.uint8(128)}
            names = [f"{name}{n}" for name in ("sx", "zx", "w", "sw", "zw", "sy", "zy")]
            nodes.append(helper.make_node(f"QLinear{kind}", [t, *names], [f"y{n}"], **attrs))
        else:
            constants[f"w{n}"] = weights * np.float32(0.01 / float(terms) ** 0.5)
            nodes.append(helper.make_node(kind, [t, f"w{n}"], [f"p{n}"], **attrs))
            nodes.append(helper.make_node("Relu", [f"p{n}"], [f"y{n}"]))
        t = f"y{n}"
    dtype = TensorProto.UINT8 if quantised else TensorProto.FLOAT
    ports = [helper.make_tensor_value_info(name, dtype, s) for name, s in (("x", shape), (t, None))]
    weights_of = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "network", ports[:1], ports[1:], weights_of)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    values = rng.integers(0, 256, shape).astype(np.uint8) if quantised else rng.standard_normal(shape, np.float32)
    return made, {"x": values}


def programs(
    models: dict[str, bytes], inputs: Callable[[str], dict[str, Array]], threads: int
) -> dict[str, Callable[[], dict[str, Array]]]:
    """What is compared, by name: each call runs once and gives the results. `models`: by kind, as are their inputs."""
    runs: dict[str, Callable[[], dict[str, Array]]] = {}
    for kind, model in models.items():
        program = rammer.compile(model, "cpu", device=threads)
        given = inputs(kind)
        runs[f"rammer {kind}"] = lambda p=program, i=given: dict(p.run(i))  # type: ignore[misc]
        if importlib.util.find_spec("onnxruntime"):
            runs[f"onnxruntime {kind}"] = _session(model, given, threads)
    return runs


def small(name: str, threads: int) -> tuple[dict[str, Callable[[], dict[str, Array]]], dict[str, float]]:
    """One of NETWORKS: its programs, and the share of bytes in which each differs from what ONNX says."""
    made = {kind: network(*NETWORKS[name], kind == "int8") for kind in ("fp32", "int8")}
    models = {kind: model.SerializeToString() for kind, (model, _) in made.items()}
    runs = programs(models, lambda kind: made[kind][1], threads)
    return runs, differences(name, runs)


def large(name: str, threads: int) -> tuple[dict[str, Callable[[], dict[str, Array]]], dict[str, float]]:
    """One of MODELS: its programs, and how far the results of each are from what float32 gives."""
    made = quantise(name)
    kind = "fp16" if name in HALVES else f"int{made.bits}"
    models = {"fp32": made.plain.read_bytes(), kind: made.quantised}
    runs = programs(models, lambda _: made.inputs, threads)
    return runs, {kind: error(run(), made.wanted) for kind, run in runs.items()}


def _session(model: bytes, inputs: dict[str, Array], threads: int) -> Callable[[], dict[str, Array]]:
    import onnxruntime  # type: ignore[import-untyped, import-not-found, unused-ignore]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda: dict(zip(names, map(np.asarray, session.run(None, inputs)), strict=True))


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}  # "cpu": for one thread, beside other processes


def measure(
    runs: dict[str, Callable[[], dict[str, Array]]], turns: int, clock: Callable[[], float], seconds: float = ROUND_S
) -> dict[str, list[float]]:
    """Microseconds of a call, one number for each turn: in each, all programs are called for a while, one by one.

    Before its visit idle threads of the one before stop spinning.
    """
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, run in runs.items():
            time.sleep(PAUSE_S)
            run()
            calls, begun = 0, clock()
            while (now := clock()) < begun + seconds:
                run()
                calls += 1
            found[name].append((now - begun) / calls * 1e6)
    return found


def differences(name: str, runs: dict[str, Callable[[], dict[str, Array]]]) -> dict[str, float]:
    """The share of bytes in which each program of bytes differs from what ONNX says; ours may by one, on a tie.

    ONNX Runtime's may by more: on CPUs without VNNI it adds pairs of products in 16 bits, which overflow.
    """
    model, inputs = network(*NETWORKS[name], True)
    (exact,) = np.asarray(ReferenceEvaluator(model).run(None, inputs), int)
    results = {kind: next(iter(run().values())) for kind, run in runs.items() if kind.endswith("int8")}
    off = {kind: np.abs(result.astype(int) - exact) for kind, result in results.items()}
    if (most := off["rammer int8"].max()) > 1:
        raise click.ClickException(f"{name}: a byte differs by {most} from what ONNX says")
    return {kind: float((wrong > 0).mean()) for kind, wrong in off.items()}


@click.command(help=__doc__)
@click.option("--networks", default=",".join(NETWORKS), help=f"separated by commas; also {', '.join(MODELS)}")
@click.option("--turns", default=15)
@click.option("--device", default=2, help="vEUs, and threads of ONNX Runtime")
@click.option("--clock", type=click.Choice(list(CLOCKS)), default="wall", help="cpu: what threads of the process take")
@click.option("--json", "output", type=click.Path(path_type=Path))
def main(networks: str, turns: int, device: int, clock: str, output: Path | None) -> None:
    table = Table("network", "program", "median µs", "fastest µs", "n", "differs")
    rows: dict[str, Any] = {}
    if unknown := [name for name in networks.split(",") if name not in {*NETWORKS, *MODELS}]:
        raise click.BadParameter(f"no network named {', '.join(unknown)}; --help lists them")
    for name in networks.split(","):
        runs, differ = (large if name in MODELS else small)(name, device)
        rows[name] = {
            kind: {"us": times, "differ": differ.get(kind)}
            for kind, times in measure(runs, turns, CLOCKS[clock]).items()
        }
        for kind, row in rows[name].items():
            times = row["us"]
            shown = f"{differ[kind]:.2%}" if kind in differ else ""
            table.add_row(name, kind, f"{statistics.median(times):.0f}", f"{min(times):.0f}", str(turns), shown)
    wide_console().print(table)
    print(host().name)
    if output:
        output.write_text(
            json.dumps({"cpu": host().name, "device": device, "clock": clock, "networks": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
