"""Filter candidate rKernels: keep those that are proven, that compile, and that compute correct results."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from rammer.compiler.smoke_run import Fault
from rammer.errors import DeviceError, VerificationError
from rammer.forkpool import Background, computed
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.plan import ExecutionPlan
from rammer.ir.semantics.evaluate import Mask
from rammer.ir.tensor import Array, DType
from rammer.ir.tile import TileProgram, statements
from rammer.ir.verify import verify_plan
from rammer.ir.verify.kernel import proven
from rammer.vdevice.base import Progress, VDevice
from rammer.vdevice.profiles import ProfileStore, profile_store, recipe_keys

PROVEN, BROKEN, UNSHOWN = "proven", "broken", "not shown"
MAX_NOTES = 8  # most notes of one kind
MOST_REJECTED = 2  # rKernels of an operation that are replaced after a run: more mean that something else is wrong
Candidates: TypeAlias = Mapping[Operation, Sequence[RKernel]]
Kept: TypeAlias = dict[Operation, list[RKernel]]
Dropped: TypeAlias = tuple[Kept, list[str]]  # what stays, and notes


def generated(operations: Sequence[Operation], make: Callable[[Operation], Sequence[RKernel]]) -> Kept:
    """Return the rKernels that `make` generates for operations, on all cores."""

    def marked(operation: Operation) -> list[tuple[RKernel, bool]]:
        return [(kernel, kernel.operation is operation) for kernel in make(operation)]

    last = [marked(operation) for operation in operations[-1:]]  # here: imports the generators before children fork
    made = computed(marked, operations[:-1]) + last
    return {  # rKernels from another process have copies of their operation
        operation: [replace(k, operation=operation) if own and k.operation is not operation else k for k, own in found]
        for operation, found in zip(operations, made, strict=True)
    }


class Prover:
    """Prove the rKernels that plans use, by the rules of docs/semantics.md, and test them. `notes` describe exceptions.

    `check`: 0 tests none, 1 some rTasks of each and all of one that is not proven, 2 all. `still` is a context in which
    nothing else runs beside this process.
    """

    def __init__(
        self,
        vdevice: VDevice,
        check: int,
        progress: Progress,
        still: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.notes: list[str] = []
        self._others_still = still
        self._vdevice, self._check, self._progress = vdevice, check, progress
        self._accepted: set[RKernel] = set()
        self._ahead: Background[RKernel, str] | None = None

    def begin(self, likely: Iterable[RKernel]) -> None:
        """Start to prove what a plan will probably use, in a child process. `end` stops it."""
        recipes = recipe_keys([k for k in dict.fromkeys(likely) if isinstance(k.body, TileProgram)], self._vdevice.spec)
        self._ahead = Background(_proof, _unproven(recipes, _proof_store().verdicts(recipes.values())))

    @contextmanager
    def still(self) -> Iterator[None]:
        """Pause the proofs in the background, while something is measured."""
        with self._others_still(), self._ahead.still() if self._ahead else nullcontext():
            yield

    def end(self) -> None:
        """Stop the background proofs that were not collected."""
        if self._ahead:
            self._ahead.end()

    def check(self, candidates: Candidates, used: Iterable[RKernel]) -> tuple[Kept, dict[RKernel, RKernel]] | None:
        """Return None if the `used` rKernels are accepted; else the candidates to plan with again, and replacements.

        An rKernel that breaks a rule is left out. One that reads too much or is not proven is replaced by one marked
        so. Foreign text cannot be proven: all of its rTasks are tested. Raises DeviceError if no candidate is left.
        """
        used = [k for k in dict.fromkeys(used) if k not in self._accepted]
        fresh, foreign = [k for k in used if isinstance(k.body, TileProgram)], [k for k in used if k.is_foreign]
        if self._ahead:
            made = self._ahead.results(frozenset(fresh))
            recipes = recipe_keys(list(made), self._vdevice.spec)
            _proof_store().put_verdicts({recipes[k]: verdict for k, verdict in made.items()})
            self._ahead = None
        proofs = _proofs(fresh, self._vdevice)
        wrong = {k: what for k, (verdict, _, what) in proofs.items() if verdict == BROKEN}
        unshown = {k: what for k, (verdict, _, what) in proofs.items() if verdict == UNSHOWN}
        self.notes += shortened([f"{k.name}: {what}" for k, what in unshown.items()], "rKernels are not proven")
        untried: Mapping[RKernel, str] = dict.fromkeys(foreign, "")
        if self._check:
            left = [k for k in (*fresh, *foreign) if k not in wrong]
            every = frozenset(left if self._check > 1 else (*unshown, *foreign))
            tried = self._vdevice.rkernels_wrong(left, every=every, progress=self._progress)
            wrong |= {k: f"tried out, {what}" for k, what in tried.items()}
            untried = self._vdevice.rkernels_untried(left, every=every)
            self.notes += shortened([f"{k.name}: {w}" for k, w in untried.items()], "rKernels are not tried out")
        texts = {k: "not proven" if k in untried else "tried out and not proven" for k in foreign if k not in wrong}
        self.notes += shortened([f"{_named(k)} is foreign text: {w}" for k, w in texts.items()], "rKernels are foreign")
        judged = {
            k: replace(k, overreads=more, unproven=k in unshown)
            for k, (_, more, _) in proofs.items()
            if (more or k in unshown) and k not in wrong
        }
        self._accepted |= {judged.get(k, k) for k in (*fresh, *foreign)}
        if not wrong and not judged:
            return None
        kept, notes = _without(candidates, wrong, self._vdevice, "is right")
        self.notes += notes
        return {operation: [judged.get(k, k) for k in options] for operation, options in kept.items()}, judged


def _named(kernel: RKernel) -> str:
    return f"{kernel.name} of plugin {kernel.origin}" if kernel.origin else kernel.name


def as_unproven(candidates: Candidates) -> Kept:
    """Return the candidates, all marked as unproven."""
    return {operation: [replace(k, unproven=True) for k in options] for operation, options in candidates.items()}


def with_replacements(
    plan: ExecutionPlan, candidates: Candidates, replacements: Mapping[RKernel, RKernel]
) -> ExecutionPlan | None:
    """Return the plan with replacements for its rKernels, without memory, which depends on what they read.

    None if a new plan is needed: one of the rKernels is not a candidate, or must wait for more than the plan waits for.
    """
    kernels = tuple(replacements.get(k, k) for k in plan.kernels)
    offered = {k for options in candidates.values() for k in options}
    if not offered.issuperset(kernels) or (plan.memory and (plan.memory.pieces or plan.memory.in_scratch)):
        return None
    plan = replace(plan, kernels=kernels, memory=None, rtask_us={}, prices={})
    try:
        verify_plan(plan)
    except VerificationError:  # the wider reads reach results that the plan does not wait for
        return None
    return plan


def drop_refused(candidates: Candidates, vdevice: VDevice, budget_s: float, progress: Progress) -> Dropped:
    """Return the candidates that the device's compiler accepts, in bounded time and memory, and notes on the others."""
    refused = vdevice.rkernels_refused(_kernels(candidates), budget_s=budget_s, progress=progress)
    return _without(candidates, refused, vdevice, "can be compiled")


def drop_wrong(candidates: Candidates, vdevice: VDevice, check: int, progress: Progress) -> Dropped:
    """Return the candidates that pass a test of some rTasks (`check` 1) or all (2), and notes on the others."""
    kernels = _kernels(candidates)
    every = frozenset(kernels if check > 1 else ())
    wrong = vdevice.rkernels_wrong(kernels, every=every, progress=progress)
    return _without(candidates, {k: f"tried out, {what}" for k, what in wrong.items()}, vdevice, "is right")


def rejecting(
    candidates: Candidates, fault: Fault, plan: ExecutionPlan, vdevice: VDevice, rejected: dict[Operation, int]
) -> Dropped:
    """Return the candidates without the rKernel that a run of the plan's program has shown to be wrong, and a note.

    `rejected` counts rejections by operation. Raises VerificationError R212 if rejecting does not help: no operator is
    at fault, or its rKernel is not a candidate, or MOST_REJECTED were rejected already.
    """
    hint = "please report it, with the model; RAMMER_CHECK=0 runs no program before it is handed out"
    if fault.operator is None:
        raise VerificationError("R212", fault.what, hint=hint)
    op, kernel = plan.graph.operators[fault.operator], plan.kernels[fault.operator]
    what = f"{op.kind} {op.name!r}, run once: {fault.what}"
    count = rejected[op.operation] = rejected.get(op.operation, 0) + 1
    if kernel not in candidates.get(op.operation, ()) or count > MOST_REJECTED:
        raise VerificationError("R212", f"{what} (by rKernel {kernel.name}, the {count}. of its kind)", hint=hint)
    return _without(candidates, {kernel: what}, vdevice, "is right")


def drop_spilled(candidates: Candidates, vdevice: VDevice, budget_s: float, progress: Progress) -> Dropped:
    """Return the candidates whose values all fit into registers, and notes on the others.

    Only rKernels that the budget reaches are checked. The whole program is checked when it is built.
    """
    kernels = _kernels(candidates)
    found = vdevice.rkernels_registers(kernels, budget_s=budget_s, progress=progress) if budget_s > 0 else {}
    spilled = {k: f"{needs.spilled_bytes} bytes per thread spill" for k, needs in found.items() if needs.spilled_bytes}
    return _without(candidates, spilled, vdevice, "keeps its values in registers")


def _kernels(candidates: Candidates) -> list[RKernel]:
    return [k for options in candidates.values() for k in options]


def _without(candidates: Candidates, faults: Mapping[RKernel, str], vdevice: VDevice, virtue: str) -> Dropped:
    """Return the candidates without faults, and notes on the others.

    Raises DeviceError, naming the operation, if an operation has no candidate left.
    """
    kept = {operation: [k for k in options if k not in faults] for operation, options in candidates.items()}
    for operation, options in candidates.items():
        if options and not kept[operation]:
            listed = "; ".join(f"{_named(k)}: {faults[k]}" for k in options)
            raise DeviceError(
                f"{operation.kind} {', '.join(map(str, operation.inputs))}: no rKernel for {vdevice.spec.arch} "
                f"{virtue}: {listed}",
                hint="please report it; a plugin's rammer_rkernels can offer others",
            )
    return kept, shortened([f"{_named(k)} is no candidate: {what}" for k, what in faults.items()])


def shortened(notes: Sequence[str], what: str = "rKernels are no candidates") -> list[str]:
    """Return the first notes of a kind, and how many more there are."""
    rest = [f"{len(notes) - MAX_NOTES} more {what}"] if len(notes) > MAX_NOTES else []
    return [*notes[:MAX_NOTES], *rest]


def _proofs(kernels: Sequence[RKernel], vdevice: VDevice) -> dict[RKernel, tuple[str, bool, str]]:
    """Return, per kernel, the verdict, whether it reads too much, and a finding. Results are cached on disk."""
    recipes = recipe_keys(kernels, vdevice.spec)
    store = _proof_store()
    known = store.verdicts(recipes.values())
    unproven = _unproven(recipes, known)
    fresh = {recipes[k]: verdict for k, verdict in zip(unproven, computed(_proof, unproven), strict=True)}
    store.put_verdicts(fresh)
    parts = {k: (known | fresh)[key].split("\0", 2) for k, key in recipes.items()}
    return {k: (verdict, bool(overreads), what) for k, (verdict, overreads, what) in parts.items()}


def _proof_store() -> ProfileStore:
    return profile_store("any", "proof")


def _unproven(recipes: dict[RKernel, str], known: Container[str]) -> list[RKernel]:
    """Return one of each set of equal kernels whose verdict is unknown; those with most statements first."""
    unknown = {key: kernel for kernel, key in reversed(recipes.items()) if key not in known}

    def most_first(k: RKernel) -> int:
        return -sum(1 for _ in statements(k.body.body)) if isinstance(k.body, TileProgram) else 0

    return sorted(unknown.values(), key=most_first)


def _proof(kernel: RKernel) -> str:
    """Return the verdict on a kernel, whether it reads too much, and a finding, separated by NUL."""
    judged, findings = proven(kernel)
    finding = next(iter(sorted(findings, key=lambda f: not f.broken)), None)
    verdict = PROVEN if finding is None else BROKEN if finding.broken else UNSHOWN
    return f"{verdict}\0{'overreads' if judged.overreads else ''}\0{finding or ''}"


def allowed_error(want: Array) -> float:
    """Return the error that rounding explains in an array that should be `want`: a part of its largest element."""
    dtype = DType(want.dtype.name)
    if not dtype.is_float:
        return 0.0
    values = want.astype(np.float64)
    scale = np.abs(values[np.isfinite(values)]).max(initial=0.0)
    return float({1: dtype.epsilon, 2: 3e-2, 4: 1e-4, 8: 1e-11}[want.dtype.itemsize] * scale)


def largest_error(got: Array, want: Array, defined: Mask | None = None) -> float:
    """Return the largest difference between finite elements, where they are `defined`."""
    one, other = (a.astype(np.complex128 if a.dtype.kind == "c" else np.float64) for a in (got, want))
    compared = np.isfinite(one) & np.isfinite(other) & (True if defined is None else defined)
    return float(np.abs(one[compared] - other[compared]).max(initial=0.0))


def difference(got: Array, want: Array, defined: Mask | None = None) -> str:
    """Return how far an array is off where it is `defined`, if by more than rounding explains; else an empty string."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"it is {got.dtype}{list(got.shape)} and should be {want.dtype}{list(want.shape)}"
    dtype = DType(got.dtype.name)
    if not dtype.is_float:
        off = np.argwhere((got != want) & (True if defined is None else defined))
        return f"{len(off)} of {got.size} elements differ, first {off[0].tolist()}" if len(off) else ""
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite, allowed = np.isfinite(b), allowed_error(want)
    with np.errstate(invalid="ignore"):
        close = np.where(finite, np.abs(a - b) <= allowed, (a == b) | (np.isnan(a) & np.isnan(b)))
    close |= False if defined is None else ~defined
    if close.all():
        return ""
    at = tuple(map(int, np.unravel_index(int(np.argmin(close)), close.shape)))
    return f"{int((~close).sum())} of {got.size} elements differ; {list(at)} is {got[at]}, not {want[at]}"
