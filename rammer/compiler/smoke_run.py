"""Run a new program once in a child process, and compare each operator with its definition.

Known as: differential testing. The image itself runs, slot by slot, on seeded inputs; operands and results are copied,
as memory is reused. Then it runs as a whole, and must give the same bits. So this tests everything that comes after
proofs and trials: memory, packing, tables, text, runtime.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf, prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rammer.errors import InputError
from rammer.forkpool import Background, run_isolated
from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation, ROperator, flops
from rammer.ir.plan import ExecutionPlan
from rammer.ir.semantics.evaluate import evaluate_graph, sampled_places, stored_at
from rammer.ir.semantics.expected import Expected, expected, of_kernels, rounded_once, step_at_largest, without_indices
from rammer.ir.semantics.rounding import FACTOR_STEPS, Bounded, bounded, bounded_as, differs, factor_step, unexplained
from rammer.ir.tensor import Array, NamedArrays, TensorId, element
from rammer.ir.tile import TileProgram
from rammer.ir.verify.replay import Replay, Snapshot
from rammer.runtime.report import CHECKED
from rammer.vdevice.base import (
    Bytes,
    CompiledOnly,
    Executable,
    Image,
    MayFork,
    RunsSlots,
    Stepped,
    ports_of,
    random_inputs,
)
from rammer.vdevice.image.placement import constant_value
from rammer.vdevice.profiles import ProfileStore, generators

SHARE, LEAST_S, MOST_S = 0.025, 0.04, 1.8  # fraction of a compilation's time for comparing; at least, at most
PATIENCE_S = 30.0  # a program without progress for so long hangs
EMULATED_S = 600.0  # an emulator's time limit for all runs
TOGETHER_AT, COMPARED_AT = -1, -2  # instead of an operator: all vEUs run; the program's outputs are compared
WHOLE_FLOPS = 1 << 17  # most work of an operator that is compared as a whole
MOST_FLOPS = 1 << 19  # most work of the sampled elements of others
TOGETHER, TOGETHER_S = 8, 0.002  # most runs of all vEUs, as races do not show in each; CPU s after which none starts
LATE_S = 0.01  # CPU seconds after which no run with a late vEU starts
UNWRITTEN = 0xFF  # value of each byte of memory before a run: NaN
FEWEST, MOST_PLACES = 4, 64  # elements compared of each operator that is sampled
USUAL = 64.0  # usual error of outputs, in steps of float32 (or double) at the largest element
USUAL_OF_OTHERS = 256.0  # of rKernels that transform operands: large filters are off by 2e-5 (docs/numerics.md)
OPERATOR_S, FLOPS_PER_S = 2.5e-4, 1.5e10  # time to evaluate the model: s per operator, and rate of one thread
BESIDE_S = 4 * MOST_S  # most s of that beside a compilation, which takes many times as long for such models
Wanted = tuple[NamedArrays, Mapping[TensorId, Array]]


@dataclass(frozen=True)
class Fault:
    """What is wrong with a program, and the first operator that shows it, if one does."""

    what: str
    operator: int | None = None


def cpu_s() -> float:
    """Return the CPU seconds of this process and of the children that it has waited for."""
    return sum(os.times()[:4])


def budget(compiled_s: float) -> float:
    """Return the CPU seconds that comparing may take after a compilation of so many CPU seconds.

    CPU seconds do not depend on other processes' load.
    """
    return min(max(SHARE * compiled_s, LEAST_S), MOST_S)


class ModelReference:
    """Compute the outputs that a program should give, in a child process beside its compilation. `end` stops it.

    Nothing is started if a program of a model with the same operators was judged before: the verdict is probably
    cached.
    """

    def __init__(self, model: Graph, spec: VDeviceSpec, store: ProfileStore, check: int) -> None:
        self.inputs = random_inputs(ports_of(model)[0], 0)
        self._model, self._step, self._store = model, FACTOR_STEPS.get(spec.precision, 0.0), store
        self._seconds = inf if check > 1 else MOST_S
        self._work_s = sum(OPERATOR_S + flops(op.operation.expr) / FLOPS_PER_S for op in model.operators)
        operators = [(op.kind, op.inputs, op.outputs) for op in model.operators]
        digest = hashlib.sha256(f"{operators}{model.types}{check}{spec.precision}{generators()}".encode())
        self._key = f"begun {digest.hexdigest()}"
        begins = check == 1 and self._work_s < BESIDE_S and not store.verdicts([self._key])
        self._ahead = Background(self._meant_beside, [None] if begins else [])
        self.still, self.end = self._ahead.still, self._ahead.end

    @cached_property
    def wanted(self) -> Wanted | None:
        """Inputs and the model's outputs, or None if computing them takes too long."""
        self._store.put_verdicts({self._key: ""})
        if self._ahead.begun:
            return self._ahead.results((), MOST_S).get(None)
        return self._meant() if self._work_s < self._seconds else None

    def _meant_beside(self, _: None) -> Wanted | None:
        one_thread()
        return self._meant()

    def _meant(self) -> Wanted | None:
        for inputs in (self.inputs, without_indices(self.inputs)):
            with suppress(InputError):
                return inputs, evaluate_graph(self._model, inputs)
        return None

    def shared(self, graph: Graph) -> list[TensorId]:
        """Return the tensors of an optimized graph that have the same values in the model."""
        computed = [t for op in graph.operators if not op.operation.expr.in_place for t in op.outputs]
        types = {t: (kind.shape, kind.dtype) for t, kind in self._model.types.items() if t in self._model.producers}
        return [t for t in computed if types.get(t) == (graph.types[t].shape, graph.types[t].dtype)]

    def rounded_once(self, wanted: Wanted) -> Expected:
        """Return the model's outputs, with the error of one rounding in each operator."""
        return rounded_once(self._model, *wanted)

    def expected(self, inputs: NamedArrays, tensors: Sequence[TensorId]) -> Expected:
        """Return the model's values for these inputs, with the error that rounding in its operators may cause."""

        def local(_: int, op: ROperator, given: NamedArrays) -> list[Bounded]:
            return bounded(op.operation.expr, given, factor_step=self._step, careful=True)

        return expected(self._model, inputs, local, tensors)


def run_once(
    executable: Executable, image: Image, judge: ModelReference, store: ProfileStore, seconds: float, every: bool
) -> tuple[str, Fault | None]:
    """Run a program once. Return the text for its report, and what is wrong, or None.

    It takes about `seconds`. The verdict is cached by the image's content. Outputs are compared with those of the model
    before any pass, if the judge has them in time. `every`: compare all operators and elements, however long it takes.
    """
    if isinstance(executable, CompiledOnly):
        return "not run: device is not here", None
    if image.plan is None or not image.files:
        return "not run: nothing was built", None
    key = f"{'every' if every else 'some'} {_content(image)}"
    known = _read(store.verdicts([key]).get(key), len(image.plan.kernels))
    if known is None:
        run = _Run(executable, image, image.plan, judge, inf if every else seconds, every)
        known = run.made()
        store.put_verdicts({key: json.dumps([known[0], known[1] and [known[1].what, known[1].operator]])})
    return known


def _content(image: Image) -> str:
    """Return a fingerprint of an image and of the code that judges it."""
    digest = hashlib.sha256(generators().encode() + Path(__file__).read_bytes())
    for name, data in sorted(image.files.items()):
        digest.update(f"\0{name}\0{len(data)}\0".encode())
        digest.update(data)
    for name, array in image.weights.items():
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        digest.update(f"\0{name}\0{array.dtype}{array.shape}\0{zlib.crc32(flat.data)}".encode())  # as fast as memory
    digest.update(f"{image.inputs}{image.outputs}".encode())
    return digest.hexdigest()


def _read(entry: object, num_operators: int) -> tuple[str, Fault | None] | None:
    """Return the cached verdict, or None if the entry is not valid."""
    with suppress(ValueError, TypeError):
        note, fault = json.loads(str(entry))
        if fault is None:
            return str(note), None
        what, operator = fault
        if operator is None or (type(operator) is int and 0 <= operator < num_operators):
            return str(note), Fault(str(what), operator)
    return None


Run = Callable[[NamedArrays], tuple[str, Fault | None]]  # of inputs


class _Run:
    """A run of a program, and what it is compared with."""

    def __init__(
        self,
        executable: Executable,
        image: Image,
        plan: ExecutionPlan,
        judge: ModelReference,
        seconds: float,
        every: bool,
    ) -> None:
        self._executable, self._image, self._plan, self._judge = executable, image, plan, judge
        self._every, self._wanted = every, judge.wanted
        self._seconds = seconds / 2 if self._wanted else seconds  # correct outputs also test operators
        self._progress = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.int64)  # a child writes it: operator, steps

    def made(self) -> tuple[str, Fault | None]:
        """Run the program slot by slot and then as a whole, in a child process.

        If the device does not permit that, run it as a whole, in this process if it cannot fork.
        """
        executable = self._executable
        if isinstance(executable, RunsSlots):
            return self._beside(self._slot_by_slot, PATIENCE_S)
        if isinstance(executable, MayFork) and executable.forks:
            return self._beside(self._whole, EMULATED_S)
        return self._seeded(self._whole)  # a device's state does not survive a fork

    def _beside(self, run: Run, patience_s: float) -> tuple[str, Fault | None]:
        self._progress[0] = TOGETHER_AT
        ended = run_isolated(lambda: self._seeded(run), self._steps, patience_s)
        if ended.made is not None:
            return ended.made
        operator = int(self._progress[0])
        if operator < 0:
            when = "its vEUs run together" if operator == TOGETHER_AT else "its outputs are compared"
            return CHECKED, Fault(f"when {when}, {ended.how}")
        return CHECKED, Fault(ended.how, operator)

    def _steps(self) -> int:
        """Return a number that changes unless the program hangs. NumPy does not, however long it compares outputs."""
        return time.monotonic_ns() if self._progress[0] == COMPARED_AT else int(self._progress[1])

    def _whole(self, inputs: NamedArrays) -> tuple[str, Fault | None]:
        if self._wanted is None:
            return "not run: its meaning takes longer to compute than a run may take", None
        return self._against_the_model(CHECKED, inputs, self._executable.run(inputs))

    def _seeded(self, run: Run) -> tuple[str, Fault | None]:
        refused = ""
        for inputs in (self._judge.inputs, without_indices(self._judge.inputs)):
            try:
                return run(inputs)
            except InputError as error:
                refused = error.what
        return f"not run: seeded inputs are refused: {refused}", None

    def _slot_by_slot(self, inputs: NamedArrays) -> tuple[str, Fault | None]:
        plan, executable, progress, every = self._plan, self._executable, self._progress, self._every
        assert isinstance(executable, RunsSlots)
        if plan.memory is None or plan.memory.in_scratch:
            return self._whole(inputs)  # results in scratch cannot be copied
        began, work_s = time.monotonic(), 2 * self._seconds + time.thread_time()  # others may have the CPU, too
        stepped = executable.stepped(inputs)

        def run(slots: NDArray[np.int64]) -> None:
            progress[0] = replay.now
            progress[1] += 1
            stepped.run(slots)

        total = len(plan.kernels)
        whole = {n: operation.outputs[0].size for n, operation in enumerate(k.operation for k in plan.kernels)}
        chosen = whole if every else _chosen(plan, self._seconds)
        replay = Replay(plan, inputs, stepped.arena, run, chosen)
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
        progress[0] = TOGETHER_AT
        used = _used(stepped.scratch)
        for found, own in self._together(executable, inputs, stepped):
            progress[1] += 1
            if own and (now := _used(stepped.scratch)) != used:
                return CHECKED, Fault(f"vEUs that run together use the scratch of {now} instead of {used}")
            for tensor, value in kept.items():
                if what := _unlike(found[tensor], value):
                    return CHECKED, Fault(f"output {tensor!r}{what}", plan.graph.producers.get(tensor))
        checked = CHECKED if count == total else f"{CHECKED}: {count} of {total} operators"
        return self._against_the_model(checked, inputs, found)

    @staticmethod
    def _together(executable: RunsSlots, inputs: NamedArrays, memory: Stepped) -> Iterator[tuple[NamedArrays, bool]]:
        """Yield the outputs of runs with all vEUs, and whether each vEU ran only its own work, without stealing.

        First each vEU is late once, as far as time permits, so that a missing wait shows. Memory is overwritten before
        each run; otherwise values that are not computed, or read too early, would be there from before.
        """
        for least, most, most_s, late in ((2, len(memory.scratch), LATE_S, True), (1, TOGETHER, TOGETHER_S, False)):
            until = time.thread_time() + most_s  # others may have the CPU, too
            for n in range(most):
                if n >= least and time.thread_time() > until:
                    break
                for part in (memory.arena, *(memory.scratch if late else ())):
                    part[...] = UNWRITTEN
                yield (executable.run_late(inputs, n) if late else executable.run(inputs)), late

    def _against_the_model(self, checked: str, inputs: NamedArrays, found: NamedArrays) -> tuple[str, Fault | None]:
        """Compare a run's outputs with the model's.

        Where they are farther off than usual, compute how far rounding explains it: first as if each operator rounded
        once, then, if that is not enough, with bounds of all roundings inside of operators, those of the model and
        those that passes made of it. Bounds take many times as long.
        """
        self._progress[0] = COMPARED_AT
        if self._wanted is None or any(not np.array_equal(inputs[t], a) for t, a in self._wanted[0].items()):
            return f"{checked}; outputs are not compared with the model", None
        once: Expected = {}
        explained: Expected = {}
        own = all(k.faithful for k in set(self._plan.kernels))
        transforms = any("_transform" in op.kind for op in self._plan.graph.operators)
        steps = USUAL if own and not transforms else USUAL_OF_OTHERS
        doubles = self._plan.spec.has_float64

        def least(value: Array, steps: float) -> Array:
            return np.full(value.shape, steps * step_at_largest(value, doubles))

        for tensor, value in self._wanted[1].items():
            if not differs(found[tensor], Bounded(value, least(value, USUAL))).any():
                continue
            if not self._every:
                once = once or self._judge.rounded_once(self._wanted)
                if not once[tensor].unlike(found[tensor], least(value, steps)):
                    continue
            if not explained:
                shared = self._judge.shared(self._plan.graph)
                meant = self._judge.expected(inputs, shared)
                made = expected(self._plan.graph, inputs, of_kernels(self._plan), shared)
                explained = {t: m.wider(made[t]) for t, m in meant.items()}
                for t in shared:
                    if what := explained[t].unlike(made[t].value, least(meant[t].value, USUAL)):
                        return checked, Fault(f"{t!r}{what}, by what passes made of the model")
            if what := explained[tensor].unlike(found[tensor], least(value, steps)):
                return checked, Fault(f"output {tensor!r}{what}, though each compared operator is right")
        return checked, None


def _used(scratch: Sequence[Bytes]) -> list[int]:
    """Return the vEUs whose scratch was written."""
    return [veu for veu, part in enumerate(scratch) if (part != UNWRITTEN).any()]


def _unlike(together: Array, alone: Array) -> str:
    """Return the first element that differs when all vEUs run together; "" if there is none."""
    off = differs(together, Bounded(alone, np.zeros(alone.shape)))
    if not off.any():
        return ""
    at = tuple(map(int, np.argwhere(off)[0]))
    what = f"{list(at)} is {together[at]} when its vEUs run together"
    return f"{what}, and {alone[at]} when its slots run one after another"


def one_thread() -> None:
    """Limit NumPy's own OpenBLAS to one thread in this process; others would spin beside a compilation."""
    for path in (Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*"):
        with suppress(OSError, AttributeError):
            ctypes.CDLL(str(path)).scipy_openblas_set_num_threads64_(1)


def _chosen(plan: ExecutionPlan, seconds: float) -> dict[int, int]:
    """Choose operators to compare, and how many elements of each, so that they fit into the time.

    Some elements of each rKernel's first operator come first, then of others, in random order. Remaining time goes to
    more elements of the first ones. For untested rKernels (of plugins) more elements are compared in any case.
    """
    first = {kernel: n for n, kernel in reversed(list(enumerate(plan.kernels)))}
    order = list(dict.fromkeys([*first.values(), *np.random.default_rng(0).permutation(len(plan.kernels)).tolist()]))
    known: dict[tuple[object, RKernel], tuple[int, float]] = {}
    untried = [n for k, n in first.items() if not isinstance(k.body, TileProgram)]
    chosen: dict[int, int] = {}
    for counts, some in ((_many, untried), (lambda _: FEWEST, order), (_many, list(first.values()))):
        for n in some:
            if (key := (counts, kernel := plan.kernels[n])) not in known:
                known[key] = (many := counts(kernel)), _seconds(kernel.operation, many, formed=kernel.form is not None)
            count, cost = known[key]
            if (counts is _many and some is untried) or cost < seconds or not chosen:
                seconds -= cost
                chosen[n] = max(chosen.get(n, 0), count)
    return chosen


def _many(kernel: RKernel) -> int:
    """Return how many elements to compare: all of small operators; FEWEST of another form, which needs whole tiles."""
    operation = kernel.operation
    if kernel.form is not None:
        return FEWEST
    if not operation.expr.into and flops(operation.expr) <= WHOLE_FLOPS:
        return operation.outputs[0].size
    each = flops(operation.expr) / max(operation.outputs[0].size, 1)
    return int(min(max(MOST_FLOPS / max(each, 1), FEWEST), MOST_PLACES))


def _seconds(operation: Operation, count: int, formed: bool = False) -> float:
    """Return the estimated seconds to compare so many elements: per stage, operation, and byte that is copied."""
    nbytes = sum(t.nbytes for t in (*operation.inputs, *operation.outputs))
    work = flops(operation.expr) * count / max(operation.outputs[0].size, 1)
    return (4e-3 if formed else 0.0) + 5e-4 * len(operation.expr.stages) + 2e-8 * work + 3e-10 * nbytes


def _wrong(plan: ExecutionPlan, n: int, replay: Replay, count: int) -> str:
    """Return the first of so many elements of an operator's results that differs from its formula; "" if none does."""
    op, kernel = plan.graph.operators[n], plan.kernels[n]
    expr = op.operation.expr
    names = [name for name, _ in expr.inputs]
    given: dict[str, Array | Snapshot] = {
        name: constant_value(plan.graph, t) if kept is None else kept
        for name, t, kept in zip(names, op.inputs, replay.operands(n), strict=True)
    }
    bound = partial(bounded_as, expr, kernel.form, given, factor_step=factor_step(kernel))
    whole = not expr.into and count >= prod(expr.root.shape)
    places = np.argwhere(np.ones(expr.root.shape, bool)) if whole else sampled_places(expr, count, n)
    elements = stored_at(expr, given, places)
    if expr.into:  # elements with indices out of range are not stored
        ((_, kind),) = expr.outputs
        inside = np.all([(e >= 0) & (e < extent) for e, extent in zip(elements, kind.shape, strict=True)], axis=0)
        places, elements = places[inside], [e[inside] for e in elements]
    arrays = {t: v.whole() if isinstance(v, Snapshot) else v for t, v in given.items()} if whole else {}
    wanted = bounded_as(expr, kernel.form, arrays, factor_step=factor_step(kernel)) if whole else bound(places)
    for number, (tensor, result, both) in enumerate(zip(op.outputs, replay.results(n), wanted, strict=True)):
        got, want = np.atleast_1d(result.flat[element(result.kind, elements)]), Bounded(*map(np.ravel, both))
        at = unexplained(got, want, number, places, partial(bound, careful=True))
        if at is not None:
            return (
                f"{tensor!r}{places[at].tolist()} is {got[at]} and should be {want.value[at]}, give or take "
                f"{want.error[at]:.2g}"
            )
    return ""
