"""Table 1, and Figures 4, 15 and 21: models, operators, streams and training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import fmean, median, stdev

import numpy as np

from benchmarks.paper.experiments.simulated import MODELS, title
from benchmarks.paper.figure import Claim, Drawn, Figure, Job, Panel, Points, Source, Values

NOTES = {  # as the paper's Table 1 prints them
    "resnext29": ("CIFAR-10", "layers: 29, cardinality: 16, bottleneck width: 64d (16x64d)"),
    "nasnet_cifar": ("CIFAR-10", "repeated cells: 6, filters: 768 (6@768)"),
    "alexnet": ("ImageNet", "paper parameter"),
    "deepspeech2_unrolled": ("LibriSpeech", "input length: 300; CNN layer: 2; uni-LSTM, layer: 7, hidden size: 256"),
    "lstm_tc_unrolled": ("synthetic", "input length: 100, hidden size: 256, layer: 10"),
    "seq2seq_unrolled": (
        "synthetic",
        "encoder: input length 100, hidden size 128, layer 8; decoder: output length 30, hidden size 128, layer 4",
    ),
}


def _count(model: str) -> tuple[Source, Values]:
    from benchmarks.models import catalog

    work = catalog.prepare(model).work
    found = {"nodes": work.nodes, "macs": work.macs, "parameters": work.parameters}
    return Source("counted", "nodes, multiply-adds and parameters of the ONNX files"), found


def _draw_models(points: Points) -> Drawn:
    rows: list[tuple[str, ...]] = [("model", "dataset", "note", "nodes", "parameters, M", "GMAC")]
    for model, (dataset, note) in NOTES.items():
        if point := points.get(model):
            v = point.values
            numbers = (f"{v['nodes']:,}", f"{v['parameters'] / 1e6:.2f}", f"{v['macs'] / 1e9:.3f}")
            rows.append((MODELS[model], dataset, note, *numbers))
    return Drawn(tables={"Models": rows})


TABLE_1 = Figure(
    name="table1",
    title="Table 1",
    caption="Deep learning models and datasets.",
    section="§5.1",
    how="The models as this repository builds them, after the paper's artifact (`benchmarks/models`).",
    jobs=lambda: [Job(model, partial(_count, model)) for model in MODELS],
    draw=_draw_models,
    differs=("Weights and inputs are seeded random numbers: times do not depend on them.",),
)

RUNS = 1000


def _operators(model: str = "resnext29", runs: int = RUNS) -> tuple[Source, Values]:
    """Microseconds of every operator of a model in `runs` runs: mean and deviation, by the program's own clocks."""
    import rammer
    from benchmarks.compare.run import machine
    from benchmarks.models import catalog
    from rammer.vdevice.base import TimedExecutable

    built = catalog.prepare(model).built
    with rammer.compile(str(built.path), "cpu", policy="sequential") as program:
        executable, plan = program.executable, program.plan
        assert isinstance(executable, TimedExecutable) and plan is not None
        times = np.zeros((runs, len(plan.graph.operators)))
        for run in range(runs):
            _, slots = executable.run_timed(built.inputs)
            for lanes, numbers in zip(slots.programs, slots.operators, strict=True):
                begins = np.full(times.shape[1], np.inf)
                ends = np.full(times.shape[1], -np.inf)
                for lane, number in zip(lanes, numbers, strict=True):
                    kept = number >= 0
                    np.minimum.at(begins, number[kept], lane[kept, 0])
                    np.maximum.at(ends, number[kept], lane[kept, 1])
                ran = np.isfinite(begins)
                times[run, ran] += (ends - begins)[ran]
        veus = plan.spec.num_veus
    times = times[:, times.mean(axis=0) > 0]
    order = np.argsort(times.mean(axis=0))
    found = {
        "mean_us": [float(f"{v:.4g}") for v in times.mean(axis=0)[order]],
        "stdev_us": [float(f"{v:.3g}") for v in times.std(axis=0)[order]],
        "median_us": [float(f"{v:.4g}") for v in np.median(times, axis=0)[order]],
        "quartiles_us": [[float(f"{v:.4g}") for v in q[order]] for q in np.percentile(times, (25, 75), axis=0)],
    }
    return Source("measured", f"cpu: {machine()['cpu']}, {veus} vEUs"), {"n": runs, **found}


def _draw_operators(points: Points) -> Drawn:
    if (point := points.get("cpu resnext29")) is None:
        return Drawn((Panel("Operators of ResNeXt, by their mean time", "µs", "dots"),))
    v = point.values
    curves = {
        name: tuple((float(n), us) for n, us in enumerate(v[f"{which}_us"], 1))
        for name, which in (("mean", "mean"), ("standard deviation", "stdev"))
    }
    panel = Panel("Operators of ResNeXt, by their mean time", "µs", "dots", curves=curves, across="operator", log=True)
    return Drawn((panel,))


def _deviation(points: Points) -> str | None:
    if (point := points.get("cpu resnext29")) is None:
        return None
    shares = [s / m for s, m in zip(point.values["stdev_us"], point.values["mean_us"], strict=True) if m]
    return f"{median(shares):.1%} in the median of the operators"


def _half(points: Points) -> str | None:
    """How far the middle half of the runs is spread."""
    if (point := points.get("cpu resnext29")) is None or "quartiles_us" not in point.values:
        return None
    low, high = (np.array(q) for q in point.values["quartiles_us"])
    shares = (high - low) / np.array(point.values["median_us"])
    return f"{np.median(shares):.1%} in the median of the operators"


FIGURE_4 = Figure(
    name="figure4",
    title="Figure 4",
    caption="The profiled kernel time of all the operators in ResNeXt model. Each data point ran 1,000 times.",
    section="§2",
    how="Every operator of ResNeXt alone on all vEUs of the CPU (RammerBase), in whole runs, by the program's own "
    "clocks. Planning ahead needs equal times from run to run.",
    jobs=lambda: [Job("cpu resnext29", _operators, target="cpu")],
    draw=_draw_operators,
    claims=(
        Claim("standard deviation over mean", "very little", _deviation),
        Claim("between the quartiles, over the median", "–", _half),
    ),
    differs=(
        "Operators take microseconds, and a shared virtual machine is sometimes interrupted for longer: such "
        "runs cause the deviation, which the middle half of the runs does not show. GPU kernels are not "
        "interrupted.",
    ),
)

STREAMS = (1, 2, 4)
STREAM_RUNS = 30


def _streams(model: str) -> tuple[Source, Values]:
    """Milliseconds of ONNX Runtime with 1, 2 and 4 operators at a time, in turns; two threads for each operator."""
    import onnxruntime

    from benchmarks.compare.run import machine
    from benchmarks.models import catalog

    built = catalog.prepare(model).built
    sessions = {}
    for count in STREAMS:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = 2, count
        if count > 1:
            options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        sessions[count] = onnxruntime.InferenceSession(str(built.path), options, providers=["CPUExecutionProvider"])
    samples: dict[int, list[float]] = {count: [] for count in STREAMS}
    for run in range(STREAM_RUNS + 1):
        for count, session in sessions.items():
            start = time.perf_counter()
            session.run(None, built.inputs)
            if run:  # the first one warms up
                samples[count].append((time.perf_counter() - start) * 1e3)
    found = {str(c): float(f"{median(s):.4g}") for c, s in samples.items()}
    spread = {str(c): float(f"{stdev(s):.3g}") for c, s in samples.items()}
    source = Source("measured", f"cpu: {machine()['cpu']}, ONNX Runtime {onnxruntime.__version__}")
    return source, {"n": STREAM_RUNS, "median_ms": found, "stdev_ms": spread}


def _stream_jobs() -> Iterator[Job]:
    for model in MODELS:
        yield Job(f"cpu {model}", partial(_streams, model), target="cpu")


def _draw_streams(points: Points) -> Drawn:
    rows = {
        f"STM {count}": tuple(
            points[f"cpu {m}"].values["median_ms"][str(count)] if f"cpu {m}" in points else None for m in MODELS
        )
        for count in STREAMS
    }
    groups = tuple(map(title, MODELS))
    return Drawn((Panel("ONNX Runtime, measured on the CPU", "median time (ms)", "bars", groups, rows, log=True),))


def _four(points: Points) -> str | None:
    made = [points[f"cpu {m}"].values["median_ms"] for m in MODELS if f"cpu {m}" in points]
    return f"{fmean(ms['4'] / ms['1'] for ms in made):.2f}× on average" if made else None


FIGURE_15 = Figure(
    name="figure15",
    title="Figure 15",
    caption="TF performance with different stream (STM) number.",
    section="§5.2.2",
    how="Run-time scheduling on the CPU: ONNX Runtime's operators one at a time, and up to 2 and 4 at a time.",
    jobs=_stream_jobs,
    draw=_draw_streams,
    claims=(Claim("4 streams over 1, end to end", "2.72× the time, on average", _four),),
    differs=(
        "GPU streams run kernels side by side that would leave the GPU idle alone. On two cores, operators "
        "side by side take each other's threads.",
    ),
    absent=(("TensorFlow on a GPU", "TensorFlow 1.15 with streams needs a V100 and its CUDA 10"),),
)

TRAINERS = {"rammer": "Rammer", "rammer-sequential": "RammerBase", "eager": "PyTorch", "inductor": "PyTorch Inductor"}
TRAINED: dict[str, tuple[int, tuple[str, ...]]] = {  # by job: the batch, and who trains in turns
    "cpu 256": (256, ("rammer", "eager", "inductor")),
    "cpu 16": (16, ("rammer", "eager", "inductor")),
    "cpu 256 RammerBase": (256, ("rammer", "rammer-sequential")),
    "cpu 16 RammerBase": (16, ("rammer", "rammer-sequential")),
}
TRAINED_STEPS = {256: 5, 16: 20}


def _training(key: str) -> tuple[Source, Values]:
    """Milliseconds of a step of LSTM-TC, forward and backward and update, of every way in turns."""
    import torch

    from benchmarks.compare.run import machine
    from benchmarks.torch.training import THREADS, compare

    batch, ways = TRAINED[key]
    made = compare(f"lstm_tc:{batch}", ways, "full", TRAINED_STEPS[batch], tune_s=0.0)
    kept = ("median_ms", "median_forward_ms", "median_backward_ms", "min_ms", "error", "loss_error")
    found: Values = {
        way: {"failed": entry["failed"]}
        if "failed" in entry
        else {name: float(f"{entry[name]:.4g}") for name in kept if name in entry}
        for way, entry in made.items()
    }
    source = Source("measured", f"cpu: {machine()['cpu']}, {THREADS} threads, PyTorch {torch.__version__}")
    return source, {"n": TRAINED_STEPS[batch], "ways": found}


def _draw_training(points: Points) -> Drawn:
    present = [key for key in TRAINED if key in points]
    if not present:
        return Drawn()
    ways = {key: points[key].values["ways"] for key in present}
    rows = {name: tuple(ways[k].get(way, {}).get("median_ms") for k in present) for way, name in TRAINERS.items()}
    partners = {key: "RammerBase" if key.endswith("RammerBase") else "PyTorch" for key in present}
    groups = tuple(f"batch {TRAINED[key][0]}, in turns with {partners[key]}" for key in present)
    panel = Panel("A step of training, measured on the CPU", "median time (ms)", "bars", groups, rows, log=True)
    table: list[tuple[str, ...]] = [("batch", "", "median ms", "least", "forward", "backward", "off eager")]
    for key in present:
        for way, of in ways[key].items():
            head = (str(TRAINED[key][0]), TRAINERS[way])
            if "failed" in of:
                table.append((*head, of["failed"], "", "", "", ""))
                continue
            times = (f"{of[name]:.4g}" for name in ("median_ms", "min_ms", "median_forward_ms", "median_backward_ms"))
            apart = f"{max(of['error'], of['loss_error']):.1e}" if "error" in of else "–"
            table.append((*head, *times, apart))
    return Drawn((panel,), {"Measured in turns": table})


def _faster_than(way: str, key: str) -> Callable[[Points], str | None]:
    """How many times as fast as another way a step is."""

    def ratio(points: Points) -> str | None:
        if (point := points.get(key)) is None:
            return None
        ours, theirs = (point.values["ways"][w].get("median_ms") for w in ("rammer", way))
        return f"{theirs / ours:.2f}×" if ours and theirs else "failed"

    return ratio


FIGURE_21 = Figure(
    name="figure21",
    title="Figure 21",
    caption="End-to-end model training time of LSTM-TC with batch size of 256 on NVIDIA V100 GPU.",
    section="§6",
    how="A step of SGD on a CPU: forward and backward graphs by `torch.compile`, beside eager PyTorch and Inductor "
    "(Dynamo gives Inductor no recurrent layers). rKernels are not tuned beyond what every compilation measures.",
    jobs=lambda: [Job(key, partial(_training, key), target="cpu") for key in TRAINED],
    draw=_draw_training,
    claims=(
        Claim("as fast as RammerBase, batch 256", "2.28×", _faster_than("rammer-sequential", "cpu 256 RammerBase")),
        Claim("as fast as RammerBase, batch 16", "–", _faster_than("rammer-sequential", "cpu 16 RammerBase")),
        Claim("as fast as a framework's compiler, batch 256", "2.36× TF-XLA", _faster_than("inductor", "cpu 256")),
        Claim("as fast as the framework, batch 256", "–", _faster_than("eager", "cpu 256")),
        Claim("as fast as the framework, batch 16", "–", _faster_than("eager", "cpu 16")),
    ),
    differs=(
        "On two cores, operators one by one lose nothing: every product of a step has work for both, and a "
        "barrier separates operators, not a launch. At a batch of 16, RammerBase was even faster by some "
        "percent.",
        "Each batch was measured twice, in turns with the frameworks and in turns with RammerBase.",
    ),
    absent=(("on a V100", "none was available, and plans of backward graphs were not simulated on its spec"),),
)
