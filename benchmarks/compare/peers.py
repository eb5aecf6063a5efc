"""How each peer loads a model and runs it. Called in a process of its own; a peer that cannot says why by raising."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.compare.compile import compile_apart
from benchmarks.models.store import CACHE, Arrays, BuiltModel, Scale
from rammer.errors import RammerError

COMPILED = CACHE / "compiled"  # what torch and JAX have compiled


@dataclass(frozen=True, slots=True)
class Task:
    """What one peer process measures. `source` names the torch module, empty if the model has none.

    `form` is one of the peer's `forms`; `cold` lets rammer compile with an empty cache.
    """

    peer: str
    path: str
    source: str
    scale: Scale
    threads: int
    form: str = ""
    cold: bool = False


@dataclass(frozen=True, slots=True)
class Loaded:
    """A peer that is ready; `observe(inputs)` is asked once, after the last timed run."""

    run: Callable[[Arrays], Arrays]
    observe: Callable[[Arrays], dict[str, Any]] = lambda inputs: {}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A peer whose library is imported: `load` is the timed rest, `known` goes into its result."""

    load: Callable[[], Loaded]
    known: Mapping[str, Any] = field(default_factory=dict)


def one_form(built: BuiltModel) -> tuple[str, ...]:
    return ("",)


@dataclass(frozen=True, slots=True)
class Peer:
    """A system under test: the distribution whose version is reported, how it gets ready, its equivalent settings.

    Of several `forms` the fastest for a model is the one that counts.
    """

    distribution: str
    prepare: Callable[[BuiltModel, Task], Prepared]
    forms: Callable[[BuiltModel], tuple[str, ...]] = one_form

    def version(self) -> str:
        """The installed version, or an empty string."""
        try:
            return metadata.version(self.distribution)
        except metadata.PackageNotFoundError:
            return ""


def _rammer(policy: str) -> Callable[[BuiltModel, Task], Prepared]:
    def prepare(built: BuiltModel, task: Task) -> Prepared:
        """Compile in another process, so that this one is what a user's would be: it loads a saved program."""
        import rammer

        saved, known = compile_apart(built.path, policy, task.threads, task.cold)

        def load() -> Loaded:
            program = rammer.load(saved, device=task.threads)
            return Loaded(program.run, lambda inputs: {"usage": program.profile(inputs).to_json()})

        return Prepared(load, known)

    return prepare


def _onnxruntime(built: BuiltModel, task: Task) -> Prepared:
    import onnxruntime  # type: ignore[import-untyped, import-not-found, unused-ignore]

    def load() -> Loaded:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = task.threads
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        session = onnxruntime.InferenceSession(str(built.path), options, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_outputs()]
        return Loaded(lambda inputs: dict(zip(names, session.run(names, inputs), strict=True)))

    return Prepared(load)


AS_GIVEN, EQUAL_SPLITS = "", "splits without sizes"


def _openvino_forms(built: BuiltModel) -> tuple[str, ...]:
    """Without their sizes, which are equal, OpenVINO finds the LSTM behind some splits, and fails at others."""
    model = onnx.load(built.path)
    return (AS_GIVEN, EQUAL_SPLITS) if drop_equal_sizes(model) else (AS_GIVEN,)


def drop_equal_sizes(model: onnx.ModelProto) -> int:
    """Leave it to each Split to cut into equal parts where its constant sizes say so too; their number."""
    sizes = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT64}
    dropped = 0
    for node in model.graph.node:
        if node.op_type == "Split" and len(node.input) == 2 and len(set(sizes.get(node.input[1], (0, 1)))) == 1:
            del node.input[1]
            dropped += 1
    return dropped


def _openvino(built: BuiltModel, task: Task) -> Prepared:
    import openvino  # type: ignore[import-untyped, import-not-found, unused-ignore]

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": task.threads,
        "INFERENCE_PRECISION_HINT": "f32",  # its default on a CPU with bfloat16 instructions is bfloat16
    }
    names = list(built.outputs)
    source: Path | bytes = built.path
    if task.form == EQUAL_SPLITS:
        model = onnx.load(built.path)
        drop_equal_sizes(model)
        source = model.SerializeToString()

    def load() -> Loaded:
        core = openvino.Core()
        request = core.compile_model(core.read_model(source), "CPU", settings).create_infer_request()
        return Loaded(lambda inputs: dict(zip(names, request.infer(inputs, share_inputs=True).to_tuple(), strict=True)))

    return Prepared(load)


CONTIGUOUS, CHANNELS_LAST = "", "channels last"


def _torch_forms(built: BuiltModel) -> tuple[str, ...]:
    images = any(value.ndim == 4 for value in built.inputs.values())
    return (CONTIGUOUS, CHANNELS_LAST) if images else (CONTIGUOUS,)


def _torch(built: BuiltModel, task: Task) -> Prepared:
    torch, module = _module(task)
    layout = torch.channels_last if task.form == CHANNELS_LAST else torch.contiguous_format
    module = module.to(memory_format=layout)
    return Prepared(lambda: Loaded(_torch_run(module, built, layout)))


def _inductor(built: BuiltModel, task: Task) -> Prepared:
    torch, module = _module(task)
    from benchmarks.torch.inductor import package

    path, seconds = package(built.path, module, *map(torch.from_numpy, built.inputs.values()))
    known = {} if seconds is None else {"compile": {"s": seconds}}

    def load() -> Loaded:
        return Loaded(_torch_run(torch._inductor.aoti_load_package(str(path)), built, torch.contiguous_format))

    return Prepared(load, known)


def _zentorch(built: BuiltModel, task: Task) -> Prepared:
    """AMD's graph compiler for PyTorch, for its own CPUs."""
    torch, module = _module(task)
    import zentorch  # type: ignore[import-untyped, import-not-found, unused-ignore] # noqa: F401

    def load() -> Loaded:
        return Loaded(_torch_run(torch.compile(module, backend="zentorch"), built, torch.contiguous_format))

    return Prepared(load)


def _module(task: Task) -> tuple[Any, Any]:
    """torch and the model's module. Raises RammerError if it has none."""
    import torch

    from benchmarks.models.build import find

    if not task.source:
        raise RammerError("there is no torch module of this model")
    torch.set_num_threads(task.threads)
    return torch, find(task.source).build_module(task.scale)


def _torch_run(model: Callable[..., Any], built: BuiltModel, layout: Any) -> Callable[[Arrays], Arrays]:
    import torch

    def laid_out(value: Any) -> Any:
        return value.contiguous(memory_format=layout) if value.ndim == 4 else value

    def run(inputs: Arrays) -> Arrays:
        with torch.inference_mode():
            found = model(*(laid_out(torch.from_numpy(value)) for value in inputs.values()))
            tensors = (found,) if isinstance(found, torch.Tensor) else found
            return dict(zip(built.outputs, (tensor.numpy() for tensor in tensors), strict=True))

    return run


def _jax(built: BuiltModel, task: Task) -> Prepared:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(COMPILED / "jax")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "1"
    from benchmarks.compare.adapters.onnx_jax import translate

    return Prepared(lambda: Loaded(translate(built.path)))


def _iree_forms(built: BuiltModel) -> tuple[str, ...]:
    from benchmarks.compare.adapters.onnx_iree import AS_GIVEN, FORMS

    images = any(value.ndim == 4 for value in built.inputs.values())
    return tuple(FORMS) if images else (AS_GIVEN,)


def _iree(built: BuiltModel, task: Task) -> Prepared:
    from benchmarks.compare.adapters.onnx_iree import package, runner

    path, seconds = package(built.path, task.form)
    known = {} if seconds is None else {"compile": {"s": seconds}}
    return Prepared(lambda: Loaded(runner(path, list(built.outputs), task.threads)), known)


def _mnn(built: BuiltModel, task: Task) -> Prepared:
    from benchmarks.compare.adapters.onnx_mnn import package, runner

    path = package(built.path)
    return Prepared(lambda: Loaded(runner(path, built.inputs, list(built.outputs), task.threads)))


def _litert(built: BuiltModel, task: Task) -> Prepared:
    from benchmarks.compare.adapters.onnx_litert import package, runner

    path = package(built.path, list(built.inputs))
    return Prepared(lambda: Loaded(runner(path, built.path, task.threads)))


PEERS: dict[str, Peer] = {
    "rammer": Peer("rammer", _rammer("auto")),
    "rammer-wavefront": Peer("rammer", _rammer("wavefront")),
    "rammer-sequential": Peer("rammer", _rammer("sequential")),
    "rammer-graphturbo": Peer("rammer", _rammer("graphturbo")),
    "onnxruntime": Peer("onnxruntime", _onnxruntime),
    "openvino": Peer("openvino", _openvino, _openvino_forms),
    "torch": Peer("torch", _torch, _torch_forms),
    "torch-compile": Peer("torch", _inductor),
    "jax": Peer("jax", _jax),
    "zentorch": Peer("zentorch", _zentorch),
    "mnn": Peer("MNN", _mnn),
    "litert": Peer("ai-edge-litert", _litert),
    "iree": Peer("iree-base-compiler", _iree, _iree_forms),
}


def worst_error(outputs: Arrays, expected: Arrays) -> float:
    """Largest absolute difference over the largest expected magnitude, of the worst output."""
    errors = []
    for name, reference in expected.items():
        value = np.asarray(outputs[name])
        if value.shape != reference.shape:
            raise RammerError(f"output {name!r} has shape {value.shape}, expected {reference.shape}")
        difference = np.abs(value.astype(np.float64) - reference).max()
        errors.append(float(difference / max(np.abs(reference).max(), np.finfo(np.float32).tiny)))
    return max(errors)


def limit_threads(threads: int) -> None:
    """Tell every threading library of this process and its children; call before they are loaded."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(threads)
    if hasattr(os, "sched_setaffinity"):  # XLA asks the system how many threads to use
        cpus = sorted(os.sched_getaffinity(0))
        if threads < len(cpus):
            os.sched_setaffinity(0, cpus[:threads])
