"""Measure rounds of several models: one program of all, its parts, separate programs, and ONNX Runtime's sessions.

python -m benchmarks.micro.together [voice ocr detectors] [--rounds 10] [--seconds 0.5] [--small] [--json r.json]
python -m benchmarks.micro.together frame --count 10000 --peer "one plan" --peer separate
RAMMER_PLUGINS=benchmarks/micro/model_policies.py python -m benchmarks.micro.together frame --policy side_by_side

A round calls every model of a set once, with fixed inputs and outputs. State is an ordinary input here, which no peer
carries on. Each peer runs in a process of its own, and they are visited in turns. `--count` runs as many rounds of each
peer, of which the worst is shown. Half of what separate programs of one vEU take is the least that two vEUs could.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import onnx
from onnx import TensorProto, compose, helper, numpy_helper
from rich.table import Table

import rammer
from benchmarks.compare.apart import PAUSE_S
from benchmarks.compare.report import wide_console
from benchmarks.models.build import build
from benchmarks.models.store import Scale
from benchmarks.models.today.dense import TextDetector
from benchmarks.models.today.model import today
from rammer.forkpool import usable_cpus
from rammer.runtime.measure import random_inputs
from rammer.runtime.program import Program

Run = Callable[[], object]
PAGE = "page_detector"  # the text detector, on a page of 640x640
SETS = {
    "frame": ("today_vad", "today_denoiser_1", "today_transducer"),
    "voice": ("today_vad", "today_denoiser_1", "today_transducer", "today_speaker"),
    "voice16": ("today_vad", "today_denoiser_16", "today_transducer", "today_speaker"),
    "ocr": ("today_ocr_detector", "today_mobilenet_v2", "today_ocr_recognizer"),
    "page": (PAGE, "today_mobilenet_v2", "today_ocr_recognizer"),
}
DETECTORS = "detectors"
COUNT = 100  # of detectors


class Loaded(NamedTuple):
    """A peer that is ready, and the bytes of its arenas and weights, if known; of separate programs, also the goal."""

    round: Run
    planned_bytes: int = 0
    least_bytes: int = 0  # the largest arena and all weights


@dataclass(frozen=True, slots=True)
class Files:
    """A set of models: their files, each compiled, all in one plan, with parts, and all in one ONNX file (or "")."""

    models: Mapping[str, str]
    compiled: Mapping[str, str]
    single: Mapping[str, str]  # for one vEU
    joint: str
    parts: str
    merged: str
    threads: int
    by_policy: Mapping[str, str] = field(default_factory=dict)  # one plan of all by other policies


def detector(path: Path, seed: int) -> str:
    """Save an autoencoder of 4 to 64 units over 4 to 64 values, as one watches a machine; return the path."""
    random = np.random.default_rng(seed)
    width, units = (int(n) for n in random.integers(4, 65, 2))
    shapes = {"w": (width, units), "b": (units,), "v": (units, width), "c": (width,)}
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "v", "c"], ["z"]),
        helper.make_node("Sub", ["z", "x"], ["d"]),
        helper.make_node("ReduceSumSquare", ["d"], ["y"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, width))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ())],
        [numpy_helper.from_array(random.standard_normal(s, np.float32) / 8, n) for n, s in shapes.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return str(path)


def models_of(name: str, scale: Scale, folder: Path) -> dict[str, str]:
    """Return the files of a set's models by name."""
    if name == DETECTORS:
        return {f"m{n}": detector(folder / f"m{n}.onnx", n) for n in range(COUNT if scale == "full" else 4)}
    built = {spec: page(folder, scale) if spec == PAGE else str(build(spec, scale=scale).path) for spec in SETS[name]}
    return {spec.removeprefix("today_"): path for spec, path in built.items()}


def page(folder: Path, scale: Scale) -> str:
    """Save the text detector for a page; return the path."""
    sizes = {"image": 640 if scale == "full" else 128, "widths": (24, 40, 80, 160), "wide": 96}
    spec = today(PAGE, "text detector", TextDetector, sizes, sizes)
    path = folder / f"{PAGE}.onnx"
    onnx.save(spec.to_onnx(spec.build_module(), spec.example_inputs()), path)
    return str(path)


def prepare(name: str, scale: Scale, folder: Path, threads: int, policies: Sequence[str] = ()) -> Files:
    """Compile and save a set of models, and merge their graphs."""
    models = models_of(name, scale, folder)
    compiled, single = ({model: str(folder / f"{model}.{kind}.rammer") for model in models} for kind in ("all", "one"))
    for model, path in models.items():
        for file, veus in ((compiled[model], threads), (single[model], 1)):
            with rammer.compile(path, "cpu", device=veus) as program:
                program.save(file)
    joint, parted = str(folder / "joint.rammer"), str(folder / "parts.rammer")
    by_policy = {policy: str(folder / f"{number}.policy.rammer") for number, policy in enumerate(policies)}
    jobs = [(joint, [], "auto"), (parted, None, "auto"), *((by_policy[policy], [], policy) for policy in policies)]
    for file, together, policy in jobs:
        with rammer.compile(models, "cpu", device=threads, together=together, policy=policy) as program:
            program.save(file)
    merged = str(folder / "merged.onnx")
    try:
        onnx.save(merge(models), merged)
    except (ValueError, onnx.checker.ValidationError) as error:
        print(f"{name}: onnx.compose merges no such models: {error}")
        merged = ""
    return Files(models, compiled, single, joint, parted, merged, threads, by_policy)


def merge(models: Mapping[str, str]) -> onnx.ModelProto:
    """Return one ONNX model of all graphs."""
    whole: onnx.ModelProto | None = None
    for name, path in models.items():
        model = compose.add_prefix(onnx.load(path), f"{name}.")
        model.ir_version = 10
        whole = compose.merge_models(whole, model, io_map=[]) if whole else model
    assert whole is not None
    return whole


def bound(program: Program) -> Run:
    return program.bind(random_inputs(program.inputs, 0))


def one_plan(files: Files, policy: str = "") -> Loaded:
    program = rammer.load(files.by_policy[policy] if policy else files.joint, device=files.threads)
    return Loaded(bound(program), _bytes(program))


def separate(files: Files) -> Loaded:
    return _separate(files.compiled.values(), files.threads)


def separate_of_one(files: Files) -> Loaded:
    return _separate(files.single.values(), 1)


def _separate(paths: Iterable[str], veus: int) -> Loaded:
    programs = [rammer.load(path, device=veus) for path in paths]
    runs = [bound(program) for program in programs]
    reports = [program.report() for program in programs]
    least = max(r.arena_bytes for r in reports) + sum(r.weight_bytes for r in reports)
    return Loaded(lambda: [run() for run in runs], sum(map(_bytes, programs)), least)


def parts(files: Files) -> Loaded:
    program = rammer.load(files.parts, device=files.threads)
    assert isinstance(program, rammer.JointProgram)
    every = [program.part(*names) for names in program.parts]
    runs = [bound(program.part(name)) for name in files.models]
    weights = {w.ctypes.data: w.nbytes for part in every for w in part.image.weights.values()}
    arena = max(part.report().arena_bytes for part in every)
    return Loaded(lambda: [run() for run in runs], arena + sum(weights.values()))


def _bytes(program: Program) -> int:
    report = program.report()
    return report.arena_bytes + report.weight_bytes


def onnxruntime_of(one: bool, threads: int, pool: bool) -> Callable[[Files], Loaded]:
    """Return how ONNX Runtime loads a set: as one file or many, with pools of their own or one pool."""

    def load(files: Files) -> Loaded:
        import onnxruntime  # type: ignore[import-untyped, import-not-found, unused-ignore]

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        if pool:
            onnxruntime.set_global_thread_pool_sizes(threads, 1)
            options.use_per_session_threads = False
        calls = []
        for path in [files.merged] if one else files.models.values():
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            binding = session.io_binding()
            random = np.random.default_rng(0)
            for port in session.get_inputs():
                floats = port.type == "tensor(float)"
                value = random.standard_normal(port.shape) if floats else random.integers(0, 2, port.shape)
                array = value.astype(np.float32 if floats else port.type[7:-1])
                binding.bind_ortvalue_input(port.name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
            for port in session.get_outputs():
                binding.bind_output(port.name)
            calls.append((session, binding))

        def run() -> None:
            for session, binding in calls:
                session.run_with_iobinding(binding)

        run()
        for session, binding in calls:  # later runs write where the first one did
            for port, value in zip(session.get_outputs(), binding.get_outputs(), strict=True):
                binding.bind_ortvalue_output(port.name, value)
        return Loaded(run)

    return load


OURS: dict[str, Callable[[Files], Loaded]] = {
    "one plan": one_plan,
    "parts": parts,
    "separate": separate,
    "separate, one vEU": separate_of_one,
}
THEIRS = {
    f"onnxruntime {what}, {threads} thread{'s' * (threads > 1)}": onnxruntime_of(what == "one file", threads, pool)
    for what, pool in (("separate", False), ("one pool", True), ("one file", False))
    for threads in (1, 2)
    if not (pool and threads == 1)
}
PEERS = OURS | THEIRS


def resident() -> int:
    """Return the bytes of memory that this process uses."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def serve(pipe: connection.Connection, peer: str, files: Files) -> None:
    """Child's main: load, answer with bytes of memory, then answer a number of seconds or rounds with their µs."""
    import onnxruntime  # noqa: F401  # type: ignore[import-untyped, unused-ignore]  # libraries are not what is measured

    before = resident()
    run, *planned = PEERS[peer](files) if peer in PEERS else one_plan(files, peer)
    for _ in range(5):
        run()
    planned_bytes, least_bytes = planned
    pipe.send({"resident_bytes": resident() - before, "planned_bytes": planned_bytes, "least_bytes": least_bytes})
    while (wanted := pipe.recv()) is not None:
        time.sleep(PAUSE_S)
        run()
        samples: list[float] = []
        seconds, count = wanted
        stop = time.perf_counter() + seconds
        while len(samples) < count or time.perf_counter() < stop:
            start = time.perf_counter()
            run()
            samples.append((time.perf_counter() - start) * 1e6)
        pipe.send(samples)


def measure(
    files: Files, rounds: int, seconds: float, count: int = 0, peers: Sequence[str] = (*PEERS,)
) -> dict[str, Any]:
    """Return results by peer: median and minimum of rounds, the worst of them, their number, and memory.

    Each visit takes `seconds`, or with `count` its part of so many rounds.
    """
    context = get_context("spawn")
    pipes: dict[str, Any] = {}
    memory = {}
    for peer in (*peers, *files.by_policy):
        if "one file" in peer and not files.merged:
            continue
        pipes[peer], child = context.Pipe()
        context.Process(target=serve, args=(child, peer, files), daemon=True).start()
        child.close()  # so that the end of the process ends the wait
        memory[peer] = pipes[peer].recv()
    samples: dict[str, list[float]] = {peer: [] for peer in pipes}
    order = list(pipes)
    for number in range(rounds):
        for peer in order[number % len(order) :] + order[: number % len(order)]:
            pipes[peer].send((0, -(-count // rounds)) if count else (seconds, 0))
            samples[peer] += pipes[peer].recv()
    for pipe in pipes.values():
        pipe.send(None)
    return {
        peer: {
            "median_us": statistics.median(found),
            "min_us": min(found),
            "p99_us": float(np.percentile(found, 99)),
            "worst_us": max(found),
            "n": len(found),
            **memory[peer],
        }
        for peer, found in samples.items()
    }


def table(name: str, results: Mapping[str, Any]) -> Table:
    """Return one row per peer; `x` is the median over that of the first, one plan if it is there."""
    rows = Table(
        name, "median µs", "x", "min µs", "p99 µs", "worst µs", "n", "resident MB", "planned MB", "least MB", box=None
    )
    first = next(iter(results.values()))["median_us"]
    for peer, r in results.items():
        times = (f"{r[what]:.1f}" for what in ("min_us", "p99_us", "worst_us"))
        mb = f"{r['resident_bytes'] / 1e6:.1f}"
        planned, least = (f"{r[what] / 1e6:.2f}" if r[what] else "" for what in ("planned_bytes", "least_bytes"))
        rows.add_row(
            peer, f"{r['median_us']:.1f}", f"{r['median_us'] / first:.2f}", *times, str(r["n"]), mb, planned, least
        )
    return rows


@click.command()
@click.argument("sets", nargs=-1, type=click.Choice([*SETS, DETECTORS]))
@click.option("--rounds", default=10, show_default=True, help="Visits of each peer.")
@click.option("--seconds", default=0.5, show_default=True, help="Of one visit.")
@click.option("--threads", type=int, help="vEUs of our programs.  [default: usable CPUs]")
@click.option("--count", default=0, help="Rounds of each peer in all visits, instead of --seconds.")
@click.option("--peer", "peers", multiple=True, type=click.Choice([*PEERS]), help="Only these; may be repeated.")
@click.option("--policy", "policies", multiple=True, help="One plan by this policy, too; may be repeated.")
@click.option("--small", is_flag=True, help="Small variants of the models.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write the results here, too.")
def main(
    sets: tuple[str, ...],
    rounds: int,
    seconds: float,
    threads: int | None,
    count: int,
    peers: tuple[str, ...],
    policies: tuple[str, ...],
    small: bool,
    output: Path | None,
) -> None:
    """Time rounds of sets of models: as one program, as parts, as separate programs, and in ONNX Runtime."""
    if not importlib.util.find_spec("onnxruntime"):
        raise click.ClickException("onnxruntime is not installed")
    found = {}
    for name in sets or ("voice", "ocr", DETECTORS):
        with tempfile.TemporaryDirectory() as folder:
            files = prepare(name, "small" if small else "full", Path(folder), threads or usable_cpus(), policies)
            found[name] = measure(files, rounds, seconds, count, peers or tuple(PEERS))
        wide_console().print(table(name, found[name]))
    if output:
        output.write_text(json.dumps({"rounds": rounds, "seconds": seconds, "sets": found}, indent=1))


if __name__ == "__main__":
    main()
