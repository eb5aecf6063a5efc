"""A program is run once before it is handed out, in a child process, and each operator compared with what it means.

The image itself runs, slot by slot, on seeded inputs; what operators find and leave is kept although memory is reused.
Then it runs as it always will, and must give the same bits. So what comes after proofs and trials (memory, packing,
tables, text, runtime) is seen once.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from rammer.children import alone
from rammer.errors import InputError
from rammer.ir.evaluate import sampled_places, stored_at
from rammer.ir.expr import TensorExpr
from rammer.ir.kernel import RKernel
from rammer.ir.operator import flops
from rammer.ir.plan import ExecutionPlan
from rammer.ir.replay import Kept, Replay
from rammer.ir.rounding import bounded_as, differs
from rammer.ir.tensor import Array, element
from rammer.ir.tile import Apply, TileProgram, statements
from rammer.measure import random_inputs
from rammer.vdevice.base import Executable, Image, RunsSlots
from rammer.vdevice.placement import constant_value
from rammer.vdevice.profiles import ProfileStore, generators

CHECKED = "checked by one run"
SHARE, LEAST_S, MOST_S = 0.04, 0.1, 1.8  # of a compilation's time, which a run may take; seconds at least and most
PATIENCE_S = 30.0  # without progress, after which a program hangs
NOWHERE = -1  # no operator: all vEUs run
WHOLE_FLOPS = 1 << 21  # of an operator that is compared as a whole, and
MOST_FLOPS = 1 << 22  # of the sampled elements of others
FEWEST, MOST_PLACES = 3, 64  # elements of each that are compared then
HALF_STEPS = {"bf16": 2.0**-9, "tf32": 2.0**-12}


@dataclass(frozen=True)
class Fault:
    """What is wrong with a program, and the operator that shows it first, if one does."""

    what: str
    operator: int | None = None


def budget(compiled_s: float) -> float:
    """Seconds that a run and its comparison may take, after a compilation of so many."""
    return min(max(SHARE * compiled_s, LEAST_S), MOST_S)


def run_once(
    executable: Executable, image: Image, store: ProfileStore | None, seconds: float, every: bool
) -> tuple[str, Fault | None]:
    """Run a program once: what the report says of it, and what is wrong.

    It takes `seconds` or a little more. What was found is kept in the store, by the image's content. `every`: all
    operators and elements are compared, whatever that takes.
    """
    plan = image.plan
    if store is None or plan is None or not isinstance(executable, RunsSlots):
        return "not run: device is not here", None
    if plan.memory is None or plan.memory.pieces or plan.memory.near:
        return "not run: tensors lie in pieces", None
    key = f"{'every' if every else 'some'} {_content(image)}"
    known = _read(store.verdicts([key]).get(key), len(plan.kernels))
    if known is None:
        known = _found(executable, image, plan, inf if every else seconds, every)
        store.put_verdicts({key: json.dumps([known[0], known[1] and [known[1].what, known[1].operator]])})
    return known


def _content(image: Image) -> str:
    """A fingerprint of an image and of the code that judges it."""
    digest = hashlib.sha256(generators().encode())
    for name, data in sorted(image.files.items()):
        digest.update(f"\0{name}\0{len(data)}\0".encode())
        digest.update(data)
    for name, array in image.weights.items():
        digest.update(f"\0{name}\0{array.dtype}{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
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


def _found(
    executable: RunsSlots, image: Image, plan: ExecutionPlan, seconds: float, every: bool
) -> tuple[str, Fault | None]:
    """In a child: what a run shows."""
    progress = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.int64)
    progress[0] = NOWHERE
    ended = alone(lambda: _run(executable, image, plan, seconds, every, progress), lambda: int(progress[1]), PATIENCE_S)
    if ended.made is not None:
        return ended.made
    operator = int(progress[0])
    if operator == NOWHERE:
        return CHECKED, Fault(f"when its vEUs run together, {ended.how}")
    return CHECKED, Fault(ended.how, operator)


def _run(
    executable: RunsSlots, image: Image, plan: ExecutionPlan, seconds: float, every: bool, progress: Array
) -> tuple[str, Fault | None]:
    """The run, slot by slot, then as a whole."""
    seeded = random_inputs(image.inputs, 0)
    zeros = {
        p.name: a if p.dtype.is_float else np.zeros_like(a) for p, a in zip(image.inputs, seeded.values(), strict=True)
    }
    refused = ""
    for inputs in (seeded, zeros):  # of numbers that are indices none may be in range
        try:
            return _compared(executable, inputs, plan, seconds, every, progress)
        except InputError as error:
            refused = error.what
    return f"not run: seeded inputs are refused: {refused}", None


def _compared(
    executable: RunsSlots,
    inputs: Mapping[str, Array],
    plan: ExecutionPlan,
    seconds: float,
    every: bool,
    progress: Array,
) -> tuple[str, Fault | None]:
    began, work_s = time.monotonic(), seconds + time.thread_time()  # others may have the CPU, too
    arena, step = executable.stepped(inputs)

    def run(slots: NDArray[np.int64]) -> None:
        progress[0] = replay.now
        progress[1] += 1
        step(slots)

    total = len(plan.kernels)
    operators = range(total) if every else _chosen(plan, seconds)
    replay = Replay(plan, inputs, arena, run, operators)
    count, seen = 0, set[RKernel]()
    for n in replay:
        progress[1] += 1
        if time.thread_time() < work_s:
            if what := _wrong(plan, n, replay, every, again=plan.kernels[n] in seen):
                return CHECKED, Fault(what, n)
            count += 1
            seen.add(plan.kernels[n])
        if not every and time.monotonic() > began + MOST_S:
            return f"{CHECKED}: {count} of {total} operators, as far as {MOST_S:g} s reached", None
    kept = {t: replay.output(t) for t in plan.graph.outputs}
    progress[0] = NOWHERE
    progress[1] += 1
    found = executable.run(inputs)
    for tensor, value in kept.items():
        with np.errstate(invalid="ignore"):
            if (
                value is not None
                and (off := (found[tensor] != value) & ~((value != value) & (found[tensor] != found[tensor]))).any()
            ):
                at = tuple(map(int, np.argwhere(off)[0]))
                return CHECKED, Fault(
                    f"output {tensor!r}: {list(at)} is {found[tensor][at]} when its vEUs run together, and {value[at]} "
                    "when its slots run one after another",
                    plan.graph.producers.get(tensor),
                )
    return CHECKED if count == total else f"{CHECKED}: {count} of {total} operators", None


def _chosen(plan: ExecutionPlan, seconds: float) -> list[int]:
    """The operators to compare, as many as fit into the time: of each rKernel one, then others at random."""
    first = {kernel: n for n, kernel in reversed(list(enumerate(plan.kernels)))}
    order = list(dict.fromkeys([*first.values(), *np.random.default_rng(0).permutation(len(plan.kernels)).tolist()]))
    costs = np.cumsum([_seconds(plan.kernels[n], again=first[plan.kernels[n]] != n) for n in order])
    return sorted(order[: max(int(np.searchsorted(costs, seconds)), 1)])


def _seconds(kernel: RKernel, again: bool) -> float:
    """What it takes to compare an operator, estimated."""
    expr = kernel.operation.expr
    nbytes = sum(t.nbytes for t in (*kernel.operation.inputs, *kernel.operation.outputs))
    each = flops(expr) / max(prod(expr.root.shape), 1)
    work = each * (FEWEST if again else _count(expr)) if again or not _is_whole(kernel) else flops(expr)
    return 5e-4 * len(expr.stages) + 2e-8 * work + 3e-10 * nbytes


def _is_whole(kernel: RKernel) -> bool:
    return kernel.form is None and not kernel.operation.expr.into and flops(kernel.operation.expr) <= WHOLE_FLOPS


def _count(expr: TensorExpr) -> int:
    each = flops(expr) / max(prod(expr.root.shape), 1)
    return int(min(max(MOST_FLOPS / max(each, 1), FEWEST), MOST_PLACES))


def _wrong(plan: ExecutionPlan, n: int, replay: Replay, every: bool, again: bool) -> str:
    """The first element of an operator's results that is not what its formula makes of its operands.

    `again`: its rKernel was compared before, elsewhere; only its operands and results may still be the wrong ones.
    """
    op, kernel = plan.graph.operators[n], plan.kernels[n]
    expr = op.operation.expr
    names = [name for name, _ in expr.inputs]
    given: dict[str, Array | Kept] = {
        name: constant_value(plan.graph, t) if kept is None else kept
        for name, t, kept in zip(names, op.inputs, replay.operands(n), strict=True)
    }
    places, elements = None, []
    if not expr.into and (every or (_is_whole(kernel) and not again)):
        given = {name: value.whole() if isinstance(value, Kept) else value for name, value in given.items()}
    else:
        places = sampled_places(expr, FEWEST if again else _count(expr), n)
        elements = stored_at(expr, given, places)
        if expr.into:  # of what data put outside nothing is stored
            ((_, kind),) = expr.outputs
            inside = np.all([(e >= 0) & (e < extent) for e, extent in zip(elements, kind.shape, strict=True)], axis=0)
            places, elements = places[inside], [e[inside] for e in elements]
    wanted = bounded_as(expr, kernel.form, given, places, factor_step=_factor_step(kernel))
    for tensor, result, want in zip(op.outputs, replay.results(n), wanted, strict=True):
        got = result.whole() if places is None else result.flat[element(result.kind, elements)]
        off = differs(got, want)
        if off.any():
            at = tuple(map(int, np.argwhere(off)[0]))
            place = list(at) if places is None else places[at[0]].tolist()
            return (
                f"{tensor!r}{place} is {got[at]} and should be {np.asarray(want.value)[at]:.9g}, give or take "
                f"{np.broadcast_to(want.error, off.shape)[at]:.2g}"
            )
    return ""


def _factor_step(kernel: RKernel) -> float:
    """What an rKernel's instructions round factors by, relatively; 0.0 if they take them as they are, or in parts."""
    body = kernel.body.body if isinstance(kernel.body, TileProgram) else ()
    used = [s.instruction for s in statements(body) if isinstance(s, Apply) and s.instruction.precision != "fp32"]
    rounds = [i for i in used if i.encoding is None or i.encoding.parts == 1]
    return max((HALF_STEPS[i.precision] for i in rounds), default=0.0)
