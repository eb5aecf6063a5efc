"""Compile and run many models on a Dask cluster: on this machine's cores, or on the workers of a scheduler.

`connect` returns a `dask.distributed.Client`, with Dask's own `map`, `submit`, `gather` and `as_completed`. Dask also
repeats the work of workers that die, and results that only they had. This module adds what a compiler needs: a worker
compiles a model once and keeps it, and times that it measures stay in its machine's cache.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rammer
from rammer.compiler import CompileOptions
from rammer.errors import RammerError, installing
from rammer.forkpool import usable_cpus
from rammer.ir.tensor import Array
from rammer.runtime.program import Program

if TYPE_CHECKING:
    from dask.distributed import Client, Future

KEPT = 8  # programs that a worker keeps, evicted least recently used first


@contextmanager
def connect(scheduler: str | None = None, *, workers: int | None = None) -> Iterator[Client]:
    """Connect to the scheduler at an address ("tcp://host:8786"), or start a cluster of processes on this machine.

    `workers` is the number of processes, of one thread each; by default one per CPU that this process may use. Raises
    RammerError without Dask, and if the scheduler does not answer.
    """
    try:
        from dask.distributed import Client
    except ImportError as error:
        raise RammerError("Dask is not installed", hint=installing("distributed")) from error
    local = {"n_workers": workers or usable_cpus(), "threads_per_worker": 1, "dashboard_address": ":0"}  # a free port
    try:
        client = Client(scheduler) if scheduler is not None else Client(**local)
    except (OSError, ValueError) as error:
        raise RammerError(f"no scheduler at {scheduler}: {error}", hint="start one: dask scheduler") from error
    with client:
        yield client


@dataclass(frozen=True, slots=True)
class Recipe:
    """A model by content, and options to compile it. A worker compiles equal recipes once."""

    model: bytes = field(repr=False, compare=False)
    digest: str  # of the model
    how: CompileOptions

    def program(self) -> Program:
        """Return the program; this process compiles it on the first call. Raises RammerError."""
        return _compiled(self)


def recipe(model: str | os.PathLike[str] | bytes, **options: Any) -> Recipe:
    """Read an ONNX model, from one file or from memory, with options of `rammer.compile`. Raises RammerError."""
    try:
        content = model if isinstance(model, bytes) else Path(model).read_bytes()
    except OSError as error:
        raise RammerError(f"cannot read {error.filename}: {error.strerror}", hint="name a model in ONNX") from error
    digest = hashlib.sha256(content).hexdigest()
    return Recipe(content, digest, CompileOptions.of(options, "recipe()"))


def infer(client: Client, model: Recipe, batches: Iterable[Mapping[str, Array]]) -> list[Future]:
    """Run the model on every mapping of inputs. Return a future of the outputs for each, in order."""
    given = list(batches)
    return list(client.map(_run, [_sent(client, model)] * len(given), given, pure=False))


def sweep(
    client: Client, models: Sequence[Recipe], **choices: Sequence[Any]
) -> dict[Future, tuple[int, dict[str, Any]]]:
    """Compile every model with every combination of options (policy=[…], arch=[…], tune_seconds=[…]).

    Returns futures of reports as JSON (`Report.to_json`), each with its model's number and options.
    """
    found = {}
    for number, model in enumerate(models):
        sent = _sent(client, model)
        for values in product(*choices.values()):
            options = dict(zip(choices, values, strict=True))
            found[client.submit(_report, sent, options, pure=False)] = (number, options)
    return found


@lru_cache(maxsize=KEPT)
def _compiled(model: Recipe) -> Program:
    return rammer.compile(model.model, how=model.how)


def _sent(client: Client, model: Recipe) -> Future:
    """Send the model to each worker once, and again if one is lost. Dask could not recover scattered data."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sending large graph")
        return client.submit(_same, model, pure=True)


def _same(model: Recipe) -> Recipe:
    return model


def _run(model: Recipe, inputs: Mapping[str, Array]) -> dict[str, Array]:
    return dict(model.program().run(inputs))


def _report(model: Recipe, options: Mapping[str, Any]) -> dict[str, Any]:
    how = CompileOptions.of({**vars(model.how), **options}, "sweep()")
    return dict(replace(model, how=how).program().report().to_json())
