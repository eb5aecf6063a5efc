"""Run systems under test on an NVIDIA GPU, each in a process of its own. Without a GPU, stand-ins test the code only.

A runner times single runs twice: by the device's events with inputs and weights resident, and by the host's clock from
the call to the finished result. Loading, compiling, capturing and tuning are timed separately.
"""

from __future__ import annotations

import gc
import importlib
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.gpu.programs import GROUPINGS, build_of, compiled
from benchmarks.models.store import Arrays, BuiltModel, Scale, stored
from rammer.errors import RammerError, did_you_mean

WARM_UP = 20
FLUSHED_BYTES = 256 << 20  # written between runs: more than any L2
EMULATOR = "emulator:4"
SLOT_RUNS = 5


@dataclass(frozen=True, slots=True)
class Task:
    """One peer on one model. `module` names the torch module. `gpu` is None in a dry run. `programs` is a folder with
    compiled programs of rammer. `slots` is a folder for the times of each slot of rammer's programs, or empty.
    """

    peer: str
    path: str
    module: str
    scale: Scale
    gpu: int | None
    programs: str = ""
    slots: str = ""


class Runner(Protocol):
    """A loaded model."""

    def outputs(self) -> Arrays: ...

    def times_ms(self, runs: int, flush: bool) -> list[float]:
        """Single runs by the device's events; `flush`: with nothing in its caches."""

    def latencies_ms(self, runs: int) -> list[float]:
        """From the call to the finished result, by the host."""

    def notes(self) -> dict[str, Any]:
        """What else is known."""


@dataclass(frozen=True, slots=True)
class Peer:
    """How a system gets ready, and what must be importable for it."""

    load: Callable[[Task, BuiltModel], Runner]
    needs: str
    what: str


# rammer


class Ours:
    """A program of rammer, launched as users' are: replayed as a CUDA graph. RAMMER_GPU_GRAPH=0 launches it plainly."""

    def __init__(self, task: Task, built: BuiltModel) -> None:
        import rammer

        device = EMULATOR if task.gpu is None else task.gpu
        build = build_of(task.peer)
        assert build is not None
        ready = build.file(task.programs, built.path) if task.programs else None
        self.was_ready = False
        if ready is not None and ready.exists():
            self.program = rammer.load(ready, device=device)
            self.was_ready = True
        elif task.programs or {"before", *GROUPINGS} & {*build.flags}:
            raise RammerError(f"no program {ready}", hint="--prepare compiles it")
        else:
            self.program = compiled(built.path, build, device=device, tune_seconds=0 if task.gpu is None else None)
        self.inputs = built.inputs
        self.emulated = task.gpu is None
        self.slots = Path(task.slots, f"{built.path.stem}-{task.peer}.npz") if task.slots else None
        self._flush: Callable[[], None] | None = None
        self.resident: dict[str, Any] = dict(built.inputs)
        if not self.emulated:
            import cupy  # type: ignore[import-not-found, unused-ignore]

            buffer = cupy.empty(FLUSHED_BYTES, np.uint8)
            self._flush = lambda: cupy.cuda.runtime.memset(buffer.data.ptr, 1, FLUSHED_BYTES)
            self.resident = {name: cupy.asarray(value) for name, value in built.inputs.items()}

    def outputs(self) -> Arrays:
        return self.program.run(self.inputs)

    def times_ms(self, runs: int, flush: bool) -> list[float]:
        if self.emulated:
            return self.latencies_ms(runs)
        before = self._flush if flush else None
        executable: Any = self.program.executable
        times: list[float] = executable.times_us(self.inputs, runs, before)
        return [us / 1e3 for us in times]

    def latencies_ms(self, runs: int) -> list[float]:
        return _host_ms(runs, lambda: self.program.run(self.resident))

    def notes(self) -> dict[str, Any]:
        report = self.program.report()
        usage = self.program.profile(self.inputs, seconds=0.2)
        if self.slots is not None:
            save_slots(self.program, self.inputs, self.slots)
        return {
            "rprograms": report.num_rprograms,
            "rtasks": report.num_rtasks,
            "barriers": report.num_barriers,
            "compiled_before": self.was_ready,  # by estimated times; otherwise by times measured here
            "compile_s": report.phases_s,
            "estimated_ms": report.estimated_us / 1e3,
            "usage": usage.to_json(),
        }


def save_slots(program: Any, inputs: Arrays, path: Path) -> None:
    """Return the times of every slot in the fastest of several runs. `times` [slots, 2] in µs and `operators` hold all
    lanes, one after another; `lengths` has the slots of each. By operator: `kinds`, `rkernels`, estimated µs of an
    rTask.
    """
    executable, report = program.executable, program.report()
    run = min((executable.run_timed(inputs)[1] for _ in range(SLOT_RUNS)), key=lambda r: r.total_us)
    lanes = [lane for program in run.programs for lane in program]
    operators = [lane for program in run.operators for lane in program]
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        "times": np.concatenate(lanes).astype(np.float32),
        "operators": np.concatenate(operators),
        "lengths": np.array([len(lane) for lane in lanes]),
        "programs": np.array(len(run.programs)),
        "total_us": np.array(run.total_us),
        "kinds": np.array([row.kind for row in report.operators]),
        "rkernels": np.array([row.rkernel for row in report.operators]),
        "rtask_us": np.array([row.rtask_us for row in report.operators]),
        "estimated_us": np.array(report.estimated_us),
    }
    np.savez_compressed(path, allow_pickle=False, **arrays)


def _ours(task: Task, built: BuiltModel) -> Runner:
    return Ours(task, built)


# torch


class Torch:
    """A torch module; `how` is "eager", "graph" (captured as a CUDA graph) or "compile" (max-autotune)."""

    def __init__(self, task: Task, built: BuiltModel, how: str, tf32: bool) -> None:
        import torch

        from benchmarks.models.build import find

        if not task.module:
            raise RammerError("there is no torch module of this model")
        if task.gpu is None and how != "eager":
            raise RammerError("needs a GPU")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = True
        self.torch, self.gpu = torch, task.gpu is not None
        device = "cpu" if task.gpu is None else f"cuda:{task.gpu}"
        module = find(task.module).build_module(task.scale).to(device)
        self.names = [*built.outputs]
        self.inputs = [torch.from_numpy(value).to(device) for value in built.inputs.values()]
        with torch.inference_mode():
            self.buffer = torch.empty(FLUSHED_BYTES if self.gpu else 0, dtype=torch.uint8, device=device)
            self.run = self._prepared(module, how)
            self.latest = self.run()

    def _prepared(self, module: Any, how: str) -> Callable[[], Any]:
        torch, inputs = self.torch, self.inputs
        if how == "compile":
            module = torch.compile(module, mode="max-autotune")
        if how != "graph":
            return lambda: module(*inputs)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):  # libraries choose their algorithms before the capture
            for _ in range(3):
                module(*inputs)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = module(*inputs)

        def replay() -> Any:
            graph.replay()
            return result

        return replay

    def _sync(self) -> None:
        if self.gpu:
            self.torch.cuda.synchronize()

    def outputs(self) -> Arrays:
        with self.torch.inference_mode():
            value = self.run()
            self._sync()
            values = value if isinstance(value, (tuple, list)) else [value]
            return {n: v.float().cpu().numpy() for n, v in zip(self.names, values, strict=True)}

    def times_ms(self, runs: int, flush: bool) -> list[float]:
        if not self.gpu:
            return self.latencies_ms(runs)
        cuda, found = self.torch.cuda, []
        with self.torch.inference_mode():
            for _ in range(runs):
                if flush:
                    self.buffer.fill_(1)
                begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
                cuda.synchronize()
                begin.record()
                self.run()
                end.record()
                end.synchronize()
                found.append(float(begin.elapsed_time(end)))
        return found

    def latencies_ms(self, runs: int) -> list[float]:
        def once() -> None:
            self.run()
            self._sync()

        with self.torch.inference_mode():
            return _host_ms(runs, once)

    def notes(self) -> dict[str, Any]:
        return {"torch": self.torch.__version__}


def _torch(how: str, tf32: bool = False) -> Callable[[Task, BuiltModel], Runner]:
    return lambda task, built: Torch(task, built, how, tf32)


# JAX


class Jax:
    """The ONNX model as one jitted function; it has no events, so both times are the host's."""

    def __init__(self, task: Task, built: BuiltModel, precision: str) -> None:
        import jax  # type: ignore[import-not-found, unused-ignore]

        from benchmarks.compare.adapters.onnx_jax import translate

        if task.gpu is not None and jax.default_backend() != "gpu":
            raise RammerError(f"jax runs on {jax.default_backend()!r} here")
        self.jax = jax
        jax.config.update("jax_default_matmul_precision", precision)  # type: ignore[no-untyped-call, unused-ignore]
        self.inputs = {name: jax.device_put(value) for name, value in built.inputs.items()}
        self.run = translate(Path(task.path))
        self.run(self.inputs)

    def outputs(self) -> Arrays:
        return {name: np.asarray(value) for name, value in self.run(self.inputs).items()}

    def times_ms(self, runs: int, flush: bool) -> list[float]:
        if flush:
            raise RammerError("jax's caches are not flushed")
        return self.latencies_ms(runs)

    def latencies_ms(self, runs: int) -> list[float]:
        return _host_ms(runs, lambda: self.run(self.inputs))  # it copies the outputs to the host, and so waits

    def notes(self) -> dict[str, Any]:
        return {"jax": self.jax.__version__, "clock": "host, with outputs copied to it"}


def _jax(precision: str) -> Callable[[Task, BuiltModel], Runner]:
    return lambda task, built: Jax(task, built, precision)


def _host_ms(runs: int, once: Callable[[], Any]) -> list[float]:
    found = []
    for _ in range(runs):
        start = time.perf_counter()
        once()
        found.append(1e3 * (time.perf_counter() - start))
    return found


PEERS: dict[str, Peer] = {
    "rammer": Peer(_ours, "", "our default policy, float32"),
    "rammer-sequential": Peer(_ours, "", "one launch per operator, the same kernels: RammerBase"),
    "rammer-wavefront": Peer(_ours, "", "the paper's policy, float32"),
    "rammer-stationary": Peer(_ours, "", "weights of steps have homes, float32"),
    "rammer-graphturbo": Peer(_ours, "", "results in shared memory where that pays, float32"),
    "rammer-graphturbo-apart": Peer(_ours, "", "the same with results=off"),
    "torch": Peer(_torch("eager"), "torch", "eager, TF32 off"),
    "torch-tf32": Peer(_torch("eager", True), "torch", "eager, TF32 on"),
    "torch-graph": Peer(_torch("graph"), "torch", "eager as a CUDA graph (of *_lstm: nn.LSTM), TF32 off"),
    "torch-graph-tf32": Peer(_torch("graph", True), "torch", "the same, TF32 on"),
    "torch-max": Peer(_torch("compile"), "torch", "torch.compile(mode='max-autotune'), TF32 off"),
    "torch-max-tf32": Peer(_torch("compile", True), "torch", "the same, TF32 on"),
    "jax": Peer(_jax("float32"), "jax", "jit, float32"),
    "jax-tf32": Peer(_jax("tensorfloat32"), "jax", "jit, tensorfloat32"),
}


def peer_of(name: str) -> Peer:
    """Return the peer of a name, which may end with flags. Raises RammerError for an unknown one."""
    base = name.partition("@")[0] if build_of(name) else name
    if base not in PEERS:
        raise RammerError(f"no peer {name!r}", hint=did_you_mean(name, PEERS) or ", ".join(PEERS))
    return PEERS[base]


# processes


@dataclass
class Results:
    """What one peer did with one model; `failed` says why it stopped, and keeps what was measured before."""

    load_s: float = 0.0
    errors: dict[str, float] = field(default_factory=dict)
    warm_ms: list[float] = field(default_factory=list)
    flushed_ms: list[float] = field(default_factory=list)
    latency_ms: list[float] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    failed: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def serve(pipe: connection.Connection, peer: str) -> None:
    """Run in the child. Import, load the task that the parent sends, and answer what was loaded; then answer each
    number of runs. None requests notes and ends the child.
    """
    try:
        importlib.import_module(peer_of(peer).needs or "rammer.compiler")  # takes seconds; peers do it side by side
        task, reference, warm_up = pipe.recv()
        built = stored(Path(task.path))
        start = time.perf_counter()
        runner = peer_of(task.peer).load(task, built)
        load_s = time.perf_counter() - start
        errors = relative_errors(runner.outputs(), reference)
        if warm_up:
            runner.latencies_ms(warm_up)
        pipe.send({"load_s": load_s, "errors": errors})
        gc.disable()
        while (runs := pipe.recv()) is not None:
            answer = {"warm_ms": runner.times_ms(runs, False), "latency_ms": runner.latencies_ms(runs)}
            if task.gpu is not None and peer_of(task.peer).needs != "jax":
                answer["flushed_ms"] = runner.times_ms(max(runs // 4, 1), True)
            pipe.send(answer)
        again = relative_errors(runner.outputs(), reference)  # it may go wrong after many runs
        pipe.send({"notes": runner.notes(), "errors": {f"{n} (after)": e for n, e in again.items()}})
    except Exception as failure:  # whatever a peer raises is its result, and must not stop the others
        last = traceback.extract_tb(failure.__traceback__)[-1]
        pipe.send(
            {"failed": f"{type(failure).__name__}: {failure}"[:600] + f" ({Path(last.filename).name}:{last.lineno})"}
        )


def relative_errors(outputs: Arrays, reference: Arrays) -> dict[str, float]:
    """|out - ref| / |ref| in float64, by output. Raises RammerError for another shape, or no number."""
    found = {}
    for name, wanted in reference.items():
        value = np.asarray(outputs[name], np.float64)
        if value.shape != wanted.shape:
            raise RammerError(f"output {name!r} has shape {value.shape}, expected {wanted.shape}")
        if not np.isfinite(value).all():
            raise RammerError(f"output {name!r} has values that are no numbers")
        norm = float(np.linalg.norm(wanted)) or 1.0
        found[name] = float(np.linalg.norm(value - wanted)) / norm
    return found


class Worker:
    """The parent's side of one peer's process, which imports what it needs before it has a task."""

    def __init__(self, peer: str) -> None:
        context = get_context("spawn")
        self.results = Results()
        self._pipe, child = context.Pipe()
        self._process = context.Process(target=serve, args=(child, peer), daemon=True)
        self._process.start()
        child.close()

    @property
    def alive(self) -> bool:
        return not self.results.failed

    def load(self, task: Task, reference: Arrays, warm_up: int, timeout_s: float) -> None:
        """Load the model, while no other peer does."""
        with suppress(OSError):  # `wait` says how the process ended
            self._pipe.send((task, reference, warm_up))
        self.wait(timeout_s)

    def wait(self, timeout_s: float) -> None:
        """Take one answer into the results."""
        if not self.alive:
            return
        try:
            if not self._pipe.poll(timeout_s):
                raise RammerError(f"no answer within {timeout_s:.0f} s")
            answer = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(5)
            answer = {"failed": f"its process ended with exit code {self._process.exitcode}"}
        except RammerError as error:
            answer = {"failed": error.what}
        for name, value in answer.items():
            old = getattr(self.results, name)
            new = old + value if isinstance(old, list) else {**old, **value} if isinstance(old, dict) else value
            setattr(self.results, name, new)
        if not self.alive:
            self.stop()

    def ask(self, runs: int | None, timeout_s: float) -> None:
        """Measure so many runs; None: notes, and the end."""
        if self.alive:
            with suppress(OSError):  # `wait` says how the process ended
                self._pipe.send(runs)
            self.wait(timeout_s)

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._pipe.close()
