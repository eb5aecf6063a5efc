"""A program is run once before it is handed out, in a child process, and each operator compared with what it means.

The image itself runs, slot by slot, on seeded inputs; what operators find and leave is kept although memory is reused.
Then it runs as it always will, and must give the same bits. So what comes after proofs and trials (memory, packing,
tables, text, runtime) is seen once.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf, prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rammer.children import alone
from rammer.errors import InputError
from rammer.ir.evaluate import evaluate_graph, sampled_places, stored_at
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation, flops
from rammer.ir.plan import ExecutionPlan
from rammer.ir.replay import Kept, Replay
from rammer.ir.rounding import FACTOR_STEPS, Bounded, bounded_as, differs, graph_errors, unexplained
from rammer.ir.tensor import Array, DType, element
from rammer.ir.tile import Apply, TileProgram, statements
from rammer.measure import random_inputs
from rammer.vdevice.base import CompiledOnly, Executable, Image, RunsSlots
from rammer.vdevice.placement import constant_value
from rammer.vdevice.profiles import ProfileStore, generators

CHECKED = "checked by one run"
SHARE, LEAST_S, MOST_S = 0.025, 0.04, 1.8  # of a compilation's time, that comparing may take; seconds at least, at most
PATIENCE_S = 30.0  # without progress, after which a program hangs
NOWHERE = -1  # no operator: all vEUs run
WHOLE_FLOPS = 1 << 17  # of an operator that is compared as a whole, and
MOST_FLOPS = 1 << 19  # of the sampled elements of others
FEWEST, MOST_PLACES = 4, 64  # elements of each that are compared then


@dataclass(frozen=True)
class Fault:
    """What is wrong with a program, and the operator that shows it first, if one does."""

    what: str
    operator: int | None = None


def cpu_s() -> float:
    """Seconds of CPUs that this process and those that it waited for have taken."""
    return sum(os.times()[:4])


def budget(compiled_s: float) -> float:
    """Seconds of a CPU that comparing may take, after a compilation of so many: others' load is in neither."""
    return min(max(SHARE * compiled_s, LEAST_S), MOST_S)


def run_once(
    executable: Executable, image: Image, model: Graph, store: ProfileStore, seconds: float, every: bool
) -> tuple[str, Fault | None]:
    """Run a program once: what the report says of it, and what is wrong.

    It takes `seconds` or a little more. What was found is kept in the store, by the image's content. Outputs are those
    of the `model`, before any pass, where its meaning is computed in that time. `every`: all operators and elements are
    compared, whatever that takes.
    """
    if isinstance(executable, CompiledOnly):
        return "not run: device is not here", None
    if image.plan is None or not image.files:
        return "not run: nothing was built", None
    key = f"{'every' if every else 'some'} {_content(image)}"
    known = _read(store.verdicts([key]).get(key), len(image.plan.kernels))
    if known is None:
        run = _Run(executable, image, image.plan, model, inf if every else seconds, every)
        known = run.beside() if isinstance(executable, RunsSlots) else run.here()
        store.put_verdicts({key: json.dumps([known[0], known[1] and [known[1].what, known[1].operator]])})
    return known


def _content(image: Image) -> str:
    """A fingerprint of an image and of the code that judges it."""
    digest = hashlib.sha256(generators().encode() + Path(__file__).read_bytes())
    for name, data in sorted(image.files.items()):
        digest.update(f"\0{name}\0{len(data)}\0".encode())
        digest.update(data)
    for name, array in image.weights.items():
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        digest.update(f"\0{name}\0{array.dtype}{array.shape}\0{zlib.crc32(flat.data)}".encode())  # at memory's speed
    digest.update(f"{image.inputs}{image.outputs}".encode())
    return digest.hexdigest()


def _read(entry: object, num_operators: int) -> tuple[str, Fault | None] | None:
    """What the cache has; nothing if that is no verdict."""
    with suppress(ValueError, TypeError):
        note, fault = json.loads(str(entry))
        if fault is None:
            return str(note), None
        what, operator = fault
        if operator is None or (type(operator) is int and 0 <= operator < num_operators):
            return str(note), Fault(str(what), operator)
    return None


class _Run:
    """A run of a program, and what it is compared with."""

    def __init__(
        self, executable: Executable, image: Image, plan: ExecutionPlan, model: Graph, seconds: float, every: bool
    ) -> None:
        self._executable, self._image, self._plan, self._model = executable, image, plan, model
        self._seconds, self._every = seconds, every
        self._progress = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.int64)  # a child shows it: operator, steps

    def beside(self) -> tuple[str, Fault | None]:
        """In a child, slot by slot and then as a whole."""
        self._progress[0] = NOWHERE
        ended = alone(lambda: self._seeded(self._slot_by_slot), lambda: int(self._progress[1]), PATIENCE_S)
        if ended.made is not None:
            return ended.made
        operator = int(self._progress[0])
        if operator == NOWHERE:
            return CHECKED, Fault(f"when its vEUs run together, {ended.how}")
        return CHECKED, Fault(ended.how, operator)

    def here(self) -> tuple[str, Fault | None]:
        """In this process, as a whole: what a device holds does not survive a fork."""
        if self._meaning_s() > self._seconds:
            return "not run: its meaning takes longer to compute than a run may take", None
        return self._seeded(lambda inputs: self._against_the_model(inputs, self._executable.run(inputs)))

    def _seeded(self, run: Callable[[Mapping[str, Array]], tuple[str, Fault | None]]) -> tuple[str, Fault | None]:
        seeded = random_inputs(self._image.inputs, 0)
        zeros = {name: a if DType(a.dtype.name).is_float else np.zeros_like(a) for name, a in seeded.items()}
        refused = ""
        for inputs in (seeded, zeros):  # of numbers that are indices none may be in range
            try:
                return run(inputs)
            except InputError as error:
                refused = error.what
        return f"not run: seeded inputs are refused: {refused}", None

    def _slot_by_slot(self, inputs: Mapping[str, Array]) -> tuple[str, Fault | None]:
        plan, executable, progress, every = self._plan, self._executable, self._progress, self._every
        assert isinstance(executable, RunsSlots)
        if plan.memory is None or plan.memory.near:
            return self.here()  # of a vEU's scratch nothing is kept
        began, work_s = time.monotonic(), 2 * self._seconds + time.thread_time()  # others may have the CPU, too
        arena, step = executable.stepped(inputs)

        def run(slots: NDArray[np.int64]) -> None:
            progress[0] = replay.now
            progress[1] += 1
            step(slots)

        total = len(plan.kernels)
        whole = {n: operation.outputs[0].size for n, operation in enumerate(k.operation for k in plan.kernels)}
        chosen = whole if every else _chosen(plan, self._seconds)
        replay = Replay(plan, inputs, arena, run, chosen)
        count = 0
        for n in replay:
            progress[1] += 1
            if time.thread_time() < work_s:
                if what := _wrong(plan, n, replay, chosen[n]):
                    return CHECKED, Fault(what, n)
                count += 1
            if not every and time.monotonic() > began + MOST_S:
                return f"{CHECKED}: {count} of {total} operators, as far as {MOST_S:g} s reached", None
        kept = {t: value.copy() for t in plan.graph.outputs if (value := replay.output(t)) is not None}
        progress[0] = NOWHERE
        progress[1] += 1
        arena[...] = 0xFF  # else what is not computed, or read too early, would be there from before
        found = executable.run(inputs)
        for tensor, value in kept.items():
            off = differs(found[tensor], Bounded(value, np.zeros(value.shape)))
            if off.any():
                at = tuple(map(int, np.argwhere(off)[0]))
                what = (
                    f"output {tensor!r}{list(at)} is {found[tensor][at]} when its vEUs run together, and {value[at]} "
                )
                return CHECKED, Fault(f"{what} when its slots run one after another", plan.graph.producers.get(tensor))
        if every or self._meaning_s() < self._seconds / 2:
            _, fault = self._against_the_model(inputs, found)
            if fault:
                return CHECKED, fault
        return CHECKED if count == total else f"{CHECKED}: {count} of {total} operators", None

    def _meaning_s(self) -> float:
        """What it takes to compute the meaning of all outputs, estimated."""
        counts = Counter(op.operation for op in (*self._model.operators, *self._plan.graph.operators))
        if any(operation.expr.into for operation in counts):
            return inf
        return sum(n * _seconds(operation, operation.outputs[0].size) for operation, n in counts.items())

    def _against_the_model(self, inputs: Mapping[str, Array], found: Mapping[str, Array]) -> tuple[str, Fault | None]:
        """Outputs of a run against those of the model, with the bounds of the operators that passes made of its own."""
        if any(op.operation.expr.into for op in self._plan.graph.operators):
            return CHECKED, None
        empty = {
            t: np.zeros(kind.shape, kind.dtype.numpy)
            for t in self._model.inputs
            if not (kind := self._model.types[t]).size
        }
        wanted = evaluate_graph(self._model, {**inputs, **empty})
        ways = [(k.form, _factor_step(k)) for k in self._plan.kernels]
        errors = graph_errors(self._plan.graph, inputs, ways)
        for tensor in self._image.plan.graph.outputs if self._image.plan else ():
            off = differs(found[tensor], Bounded(wanted[tensor], errors[tensor]))
            if off.any():
                at = tuple(map(int, np.argwhere(off)[0]))
                return CHECKED, Fault(
                    f"output {tensor!r}{list(at)} is {found[tensor][at]} and should be {wanted[tensor][at]}, give or "
                    f"take {errors[tensor][at]:.2g}, though each operator is right"
                )
        return CHECKED, None


def _chosen(plan: ExecutionPlan, seconds: float) -> dict[int, int]:
    """Operators to compare, and at how many elements: as many as fit into the time.

    A few elements of each rKernel's first operator, then of others, at random; what time is left is for more of the
    first ones. Of untried rKernels (those of plugins) more are compared in any case.
    """
    first = {kernel: n for n, kernel in reversed(list(enumerate(plan.kernels)))}
    order = list(dict.fromkeys([*first.values(), *np.random.default_rng(0).permutation(len(plan.kernels)).tolist()]))
    known: dict[tuple[object, RKernel], tuple[int, float]] = {}
    untried = [n for k, n in first.items() if not isinstance(k.body, TileProgram)]
    chosen: dict[int, int] = {}
    for counts, some in ((_many, untried), (_few, order), (_many, list(first.values()))):
        for n in some:
            if (key := (counts, kernel := plan.kernels[n])) not in known:
                known[key] = (many := counts(kernel)), _seconds(kernel.operation, many, formed=kernel.form is not None)
            count, cost = known[key]
            if (counts is _many and some is untried) or cost < seconds or not chosen:
                seconds -= cost
                chosen[n] = max(chosen.get(n, 0), count)
    return chosen


def _few(kernel: RKernel) -> int:
    return FEWEST


def _many(kernel: RKernel) -> int:
    """All elements of small operators. Those of another form are computed from whole tiles of others."""
    operation = kernel.operation
    if kernel.form is not None:
        return FEWEST
    if not operation.expr.into and flops(operation.expr) <= WHOLE_FLOPS:
        return operation.outputs[0].size
    each = flops(operation.expr) / max(operation.outputs[0].size, 1)
    return int(min(max(MOST_FLOPS / max(each, 1), FEWEST), MOST_PLACES))


def _seconds(operation: Operation, count: int, formed: bool = False) -> float:
    """What it takes to compare so many elements, estimated: each stage, each operation, and each byte that is kept."""
    nbytes = sum(t.nbytes for t in (*operation.inputs, *operation.outputs))
    work = flops(operation.expr) * count / max(operation.outputs[0].size, 1)
    return (4e-3 if formed else 0.0) + 5e-4 * len(operation.expr.stages) + 2e-8 * work + 3e-10 * nbytes


def _wrong(plan: ExecutionPlan, n: int, replay: Replay, count: int) -> str:
    """The first of so many elements of an operator's results that is not what its formula makes of its operands."""
    op, kernel = plan.graph.operators[n], plan.kernels[n]
    expr = op.operation.expr
    names = [name for name, _ in expr.inputs]
    given: dict[str, Array | Kept] = {
        name: constant_value(plan.graph, t) if kept is None else kept
        for name, t, kept in zip(names, op.inputs, replay.operands(n), strict=True)
    }
    bound = partial(bounded_as, expr, kernel.form, given, factor_step=_factor_step(kernel))
    whole = not expr.into and count >= prod(expr.root.shape)
    places = np.argwhere(np.ones(expr.root.shape, bool)) if whole else sampled_places(expr, count, n)
    elements = stored_at(expr, given, places)
    if expr.into:  # of what data put outside nothing is stored
        ((_, kind),) = expr.outputs
        inside = np.all([(e >= 0) & (e < extent) for e, extent in zip(elements, kind.shape, strict=True)], axis=0)
        places, elements = places[inside], [e[inside] for e in elements]
    arrays = (
        {name: value.whole() if isinstance(value, Kept) else value for name, value in given.items()} if whole else {}
    )
    wanted = bounded_as(expr, kernel.form, arrays, factor_step=_factor_step(kernel)) if whole else bound(places)
    for number, (tensor, result, both) in enumerate(zip(op.outputs, replay.results(n), wanted, strict=True)):
        got, want = result.flat[element(result.kind, elements)], Bounded(*map(np.ravel, both))
        at = unexplained(got, want, number, places, partial(bound, careful=True))
        if at is not None:
            return (
                f"{tensor!r}{places[at].tolist()} is {got[at]} and should be {want.value[at]}, give or take "
                f"{want.error[at]:.2g}"
            )
    return ""


def _factor_step(kernel: RKernel) -> float:
    """What an rKernel's instructions round factors by, relatively; 0.0 if they take them as they are, or in parts."""
    body = kernel.body.body if isinstance(kernel.body, TileProgram) else ()
    used = [s.instruction for s in statements(body) if isinstance(s, Apply) and s.instruction.precision != "fp32"]
    rounds = [i for i in used if i.encoding is None or i.encoding.parts == 1]
    return max((FACTOR_STEPS[i.precision] for i in rounds), default=0.0)
