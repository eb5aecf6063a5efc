"""The paper's models on the paper's devices, simulated: jobs that several figures have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from typing import cast

from benchmarks.models.store import Scale
from benchmarks.paper.experiments.planner import planner
from benchmarks.paper.figure import Job, Points, Source, Values
from rammer.ir.graph import Graph

# As the paper's figures have them; models as its artifact builds them.
MODELS = {
    "resnext29": "ResNeXt",
    "nasnet_cifar": "NASNet",
    "alexnet": "AlexNet",
    "deepspeech2_unrolled": "DeepSpeech2",
    "lstm_tc_unrolled": "LSTM-TC",
    "seq2seq_unrolled": "Seq2Seq",
}
LARGE = {"resnext101": "ResNeXt-101", "nasnet_imagenet": "NASNet (ImageNet)"}
RECURRENT = ("deepspeech2_unrolled", "lstm_tc_unrolled", "seq2seq_unrolled")


def key(spec: str, model: str, policy: str) -> str:
    """A job's key: the spec, the model with its batch ("resnext29:4"), the policy."""
    return f"{spec} {model} {policy}"


def jobs(spec: str, models: Iterable[str], policies: Iterable[str]) -> Iterator[Job]:
    """A job for every model ("resnext29:4" for batch 4, "lstm_tc_unrolled:1:four" for a scale) under every policy."""
    policies = tuple(policies)
    for model in models:
        for policy in policies:
            yield Job(key(spec, model, policy), partial(simulated, spec, model, policy))


def simulated(spec: str, model: str, policy: str) -> tuple[Source, Values]:
    """Plan a model for a spec, and what the timeline says."""
    own = planner(spec)
    return own.source, own.cost(own.plan(_optimized(spec, model), policy)).values()


@lru_cache(maxsize=1)  # jobs of one model follow each other
def _optimized(spec: str, model: str) -> Graph:
    # torch, which some models are exported from, takes seconds to import; rendering the book needs neither
    from benchmarks.models import catalog
    from rammer.frontend.onnx import load

    name, batch, scale = split(model)
    return planner(spec).optimized(load(catalog.prepare(name, batch, scale).built.path))


def number(points: Points, spec: str, model: str, policy: str, name: str = "ms") -> float | None:
    """A number of a job, if it is made."""
    point = points.get(key(spec, model, policy))
    return None if point is None else float(point.values[name])


def ratios(points: Points, spec: str, models: Iterable[str], slow: str, fast: str) -> dict[str, float]:
    """How many times faster the second policy is, by model; of those that are made."""
    found = {}
    for model in models:
        times = [number(points, spec, model, policy) for policy in (slow, fast)]
        if times[0] is not None and times[1]:
            found[model] = times[0] / times[1]
    return found


def spread(found: dict[str, float]) -> str | None:
    """ "2.6× on average, up to 6.3× (LSTM-TC)"; of one model alone its number."""
    if not found:
        return None
    best = max(found, key=lambda model: found[model])
    if len(found) == 1:
        return f"{found[best]:.2f}× ({title(best)})"
    return f"{sum(found.values()) / len(found):.2f}× on average, up to {found[best]:.2f}× ({title(best)})"


def split(model: str) -> tuple[str, int, Scale]:
    """Name, batch and scale of a model as jobs write it: "alexnet", "resnext29:4", "seq2seq_unrolled:1:four"."""
    name, batch, scale = (*model.split(":"), "", "")[:3]
    return name, int(batch or 1), cast(Scale, scale or "full")


def title(model: str) -> str:
    """The paper's name of a model, with its batch size."""
    name, batch = (*model.split(":"), "")[:2]
    return {**MODELS, **LARGE}.get(name, name) + (f", BS {batch}" if batch else "")
