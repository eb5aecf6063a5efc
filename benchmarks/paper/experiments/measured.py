"""The paper's models measured on this machine against their peers: the harnesses of benchmarks, as jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from benchmarks.paper.figure import Job, Points, Source, Values

PEERS = {  # as on the pages; ours first
    "rammer": "Rammer (wavefront)",
    "rammer-sequential": "RammerBase",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "torch": "PyTorch",
    "torch-compile": "PyTorch Inductor",
    "jax": "JAX (XLA)",
    "iree": "IREE",
}
COMPILERS = ("torch-compile", "jax", "iree")  # they compile for minutes: a part of their own, beside rammer
GPU_PEERS = {
    "rammer": "Rammer (wavefront)",
    "rammer-sequential": "RammerBase",
    "torch": "PyTorch",
    "torch-max": "Inductor",
}
SECONDS, THREADS, LOAD_S = 1.0, 2, 600.0
GPU_RUNS = 200


def jobs(models: Iterable[str], gpu: bool = True, compilers: bool = True) -> Iterator[Job]:
    """Jobs for every model ("resnext29:4") on the CPU, and one on an NVIDIA GPU where there is one."""
    models = tuple(models)
    quick = tuple(peer for peer in PEERS if peer not in COMPILERS)
    for model in models:
        yield Job(f"cpu {model}", partial(on_cpu, model, quick), target="cpu")
    for model in models if compilers else ():
        yield Job(f"cpu {model} compilers", partial(on_cpu, model, ("rammer", *COMPILERS)), target="cpu")
    for model in models if gpu else ():
        yield Job(f"cuda {model}", partial(on_gpu, model), target="cuda")


def on_cpu(model: str, peers: Sequence[str] = tuple(PEERS)) -> tuple[Source, Values]:
    """`benchmarks.compare.run` of one model: milliseconds of every peer in turns, and how the vEUs were used."""
    from benchmarks.compare.run import Options, machine, measure_model

    options = Options("full", THREADS, 1000, SECONDS, LOAD_S, cold=False, again=False)
    entry, _ = measure_model(model, list(peers), options, lambda what: None)
    found = {name: _few(results) for name, results in entry["peers"].items()}
    n = max((results.get("n", 0) for results in found.values()), default=0)
    return Source("measured", f"cpu: {machine()['cpu']}, {THREADS} threads"), {"n": n, "peers": found}


def _few(found: Values) -> Values:
    """Of a peer's results what the book shows."""
    if "min_ms" not in found:
        return {"failed": str(found.get("failed", "no result"))}
    kept: Values = {name: float(f"{found[name]:.5g}") for name in ("min_ms", "median_ms")}
    usage = found.get("usage") or {}
    shares = {name: round(usage[name], 5) for name in ("overhead", "scheduling") if name in usage}
    return {**kept, **shares, "n": found["n"]}


def on_gpu(model: str) -> tuple[Source, Values]:
    """`benchmarks.gpu.run` of one model: milliseconds of every peer that is installed, by the GPU's clock."""
    from benchmarks.gpu.run import available, compare, state_of_gpu, summary
    from benchmarks.models import catalog

    entry = catalog.named(model)
    found, _ = compare(entry, available(list(GPU_PEERS))[0], 0, "full", GPU_RUNS, LOAD_S, "", "")
    peers: dict[str, Values] = {}
    for peer, results in found.items():
        times = summary(results.warm_ms)
        ms = {"min_ms": min(results.warm_ms), "median_ms": times["median"], "n": times["n"]} if times else {}
        peers[peer] = ms or {"failed": results.failed}
    n = max((int(p.get("n", 0)) for p in peers.values()), default=0)
    return Source("measured", f"cuda: {state_of_gpu()}"), {"n": n, "peers": peers}


def number(points: Points, target: str, model: str, peer: str, name: str = "median_ms") -> float | None:
    """A number of a peer, if it is made and the peer did not fail."""
    return _number(points, _part(target, model, peer), peer, name)


def times_rammers(points: Points, model: str, peer: str) -> float | None:
    """A peer's median on the CPU over rammer's in the same turns."""
    part = _part("cpu", model, peer)
    theirs, ours = (_number(points, part, who, "median_ms") for who in (peer, "rammer"))
    return theirs / ours if theirs and ours else None


def failures(points: Points, target: str, models: Iterable[str]) -> list[str]:
    """What peers said that failed."""
    found = []
    for model in models:
        for part in (f"{target} {model}", f"{target} {model} compilers"):
            if point := points.get(part):
                failed = {p: r["failed"] for p, r in point.values["peers"].items() if "failed" in r}
                found += [f"{target} {model}, {PEERS.get(peer, peer)}: {why}" for peer, why in failed.items()]
    return found


def _part(target: str, model: str, peer: str) -> str:
    return f"{target} {model}{' compilers' * (target == 'cpu' and peer in COMPILERS)}"


def _number(points: Points, part: str, peer: str, name: str) -> float | None:
    point = points.get(part)
    value = point.values["peers"].get(peer, {}).get(name) if point else None
    return None if value is None else float(value)
