"""How each peer loads a model and runs it. Called in a process of its own; a peer that cannot says why by raising."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.store import Arrays, BuiltModel, Scale
from rammer.errors import RammerError

if TYPE_CHECKING:
    import torch

Runner = Callable[[Arrays], Arrays]


@dataclass(frozen=True, slots=True)
class Task:
    """What one peer process measures. `source` names the torch module, empty if the model has none."""

    peer: str
    path: str
    source: str
    scale: Scale
    threads: int


# Import the library and gather what is given (untimed), and return the timed rest: load, compile, ready to run.
Prepare = Callable[[BuiltModel, Task], Callable[[], Runner]]


@dataclass(frozen=True, slots=True)
class Peer:
    """A system under test: the distribution whose version is reported, and how it gets ready."""

    distribution: str
    prepare: Prepare
    by_default: bool = True

    def version(self) -> str:
        """The installed version, or an empty string."""
        try:
            return metadata.version(self.distribution)
        except metadata.PackageNotFoundError:
            return ""


def _rammer(policy: str) -> Prepare:
    def prepare(built: BuiltModel, task: Task) -> Callable[[], Runner]:
        import rammer

        return lambda: rammer.compile(built.path, "cpu", policy=policy, device=task.threads).run

    return prepare


def _onnxruntime(built: BuiltModel, task: Task) -> Callable[[], Runner]:
    import onnxruntime  # type: ignore[import-untyped, import-not-found, unused-ignore]

    def load() -> Runner:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = task.threads
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        session = onnxruntime.InferenceSession(str(built.path), options, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_outputs()]
        return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))

    return load


def _openvino(built: BuiltModel, task: Task) -> Callable[[], Runner]:
    import openvino  # type: ignore[import-untyped, import-not-found, unused-ignore]

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": task.threads,
        "INFERENCE_PRECISION_HINT": "f32",  # its default on a CPU with bfloat16 instructions is bfloat16
    }
    names = list(built.outputs)

    def load() -> Runner:
        core = openvino.Core()
        request = core.compile_model(core.read_model(built.path), "CPU", settings).create_infer_request()
        return lambda inputs: dict(zip(names, request.infer(inputs, share_inputs=True).to_tuple(), strict=True))

    return load


def _torch(compile_module: Callable[[torch.nn.Module], Any]) -> Prepare:
    def prepare(built: BuiltModel, task: Task) -> Callable[[], Runner]:
        import torch

        from benchmarks.models import find

        if not task.source:
            raise RammerError("there is no torch module of this model")
        torch.set_num_threads(task.threads)
        module = find(task.source).build_module(task.scale)
        (name,) = built.outputs

        def load() -> Runner:
            model = compile_module(module)

            def run(inputs: Arrays) -> Arrays:
                with torch.inference_mode():
                    return {name: model(*map(torch.from_numpy, inputs.values())).numpy()}

            return run

        return load

    return prepare


def _compiled(module: torch.nn.Module) -> Any:
    import torch

    return torch.compile(module)


def _compiled_max(module: torch.nn.Module) -> Any:
    import torch
    from torch._inductor import config

    config.freezing = True
    return torch.compile(module, mode="max-autotune")


def _jax(built: BuiltModel, task: Task) -> Callable[[], Runner]:
    from benchmarks.onnx_jax import translate

    return lambda: translate(built.path)


PEERS: dict[str, Peer] = {
    "rammer": Peer("rammer", _rammer("wavefront")),
    "rammer-sequential": Peer("rammer", _rammer("sequential")),
    "onnxruntime": Peer("onnxruntime", _onnxruntime),
    "openvino": Peer("openvino", _openvino),
    "torch": Peer("torch", _torch(lambda module: module)),
    "torch-compile": Peer("torch", _torch(_compiled), by_default=False),
    "torch-compile-max": Peer("torch", _torch(_compiled_max), by_default=False),
    "jax": Peer("jax", _jax, by_default=False),
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
