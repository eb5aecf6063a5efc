"""Which candidate rKernels may be used: those that rules prove right, and that compute what they should when tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rammer.errors import DeviceError, VerificationError
from rammer.ir.evaluate import evaluate_graph
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.proof import prove
from rammer.ir.tensor import Array
from rammer.ir.tile import TileProgram
from rammer.program import Program
from rammer.vdevice.base import Progress, VDevice
from rammer.vdevice.profiles import profile_store, recipe_keys

BROKEN, UNSHOWN = "broken", "not shown"
Candidates = Mapping[Operation, Sequence[RKernel]]


def drop_unsound(
    candidates: Candidates, vdevice: VDevice, *, prove_them: bool, check: int, progress: Progress
) -> tuple[dict[Operation, list[RKernel]], list[str]]:
    """The candidates that no rule and no trial speaks against, and notes on the others.

    `check`: 0 tries none out, 1 some rTasks of each, 2 all of them. A kernel of which a rule cannot be shown is tried
    whole. Raises DeviceError, naming the operation, if none is left.
    """
    kernels = [k for options in candidates.values() for k in options if isinstance(k.body, TileProgram)]
    findings = _proofs(kernels, vdevice) if prove_them else {}
    wrong = {k: what for k, (verdict, what) in findings.items() if verdict == BROKEN}
    unshown = {k: what for k, (verdict, what) in findings.items() if verdict == UNSHOWN}
    notes = [f"{k.name} is no candidate: {what}" for k, what in wrong.items()]
    notes += [f"{k.name}: {what}; all of its rTasks are tried out" for k, what in unshown.items()]
    if check:
        left = [k for k in kernels if k not in wrong]
        found = vdevice.rkernels_wrong(left, every=frozenset(left if check > 1 else unshown), progress=progress)
        notes += [f"{k.name} is no candidate: tried out, {what}" for k, what in found.items()]
        wrong |= found
    kept = {operation: [k for k in options if k not in wrong] for operation, options in candidates.items()}
    for operation, options in candidates.items():
        if options and not kept[operation]:
            listed = "; ".join(f"{k.name}: {wrong[k]}" for k in options)
            raise DeviceError(
                f"{operation.kind}: no rKernel for {vdevice.spec.arch} is right: {listed}",
                hint="please report this, with the model; another arch= or RAMMER_VECTOR_LANES may do",
            )
    return kept, notes


def _proofs(kernels: Sequence[RKernel], vdevice: VDevice) -> dict[RKernel, tuple[str, str]]:
    """What the rules find in kernels, (verdict, finding); nothing of those that are proven. Kept in the cache."""
    recipes = recipe_keys(kernels, vdevice.spec)
    store = profile_store("any", "proof")
    with store:
        known = store.verdicts(recipes.values())
    fresh: dict[str, str] = {}
    for kernel, key in recipes.items():
        if key not in known and key not in fresh:
            finding = next(iter(sorted(prove(kernel), key=lambda f: not f.broken)), None)
            fresh[key] = f"{BROKEN if finding.broken else UNSHOWN}: {finding}" if finding else ""
    if fresh:
        with store:
            store.put_verdicts(fresh)
    verdicts = {k: (known | fresh)[key].partition(": ") for k, key in recipes.items()}
    return {k: (verdict, what) for k, (verdict, _, what) in verdicts.items() if verdict}


def compare_with_meaning(program: Program, graph: Graph, seed: int = 0) -> None:
    """Run a program once, and raise VerificationError R211 where an output is not what the graph's operators mean."""
    from rammer.measure import (
        random_inputs,  # what else is there draws tables, with a package that takes time to import
    )

    inputs = random_inputs(program.inputs, seed)
    wanted = evaluate_graph(graph, inputs)
    for name, value in program.run(inputs).items():
        if what := difference(value, wanted[name]):
            raise VerificationError("R211", f"output {name!r}: {what}", hint="`rammer check` finds the operator")


def difference(got: Array, want: Array) -> str:
    """How far an array is off, if it is by more than rounding explains; else nothing."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"it is {got.dtype}{list(got.shape)} and should be {want.dtype}{list(want.shape)}"
    if got.dtype.kind in "iub":
        off = np.argwhere(got != want)
        return f"{len(off)} of {got.size} elements differ, first {off[0].tolist()}" if len(off) else ""
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    scale = np.abs(b[finite]).max(initial=0.0)
    allowed = {2: 3e-2, 4: 1e-4, 8: 1e-11}[got.dtype.itemsize] * scale
    with np.errstate(invalid="ignore"):
        close = np.where(finite, np.abs(a - b) <= allowed, (a == b) | (np.isnan(a) & np.isnan(b)))
    if close.all():
        return ""
    at = tuple(map(int, np.unravel_index(int(np.argmin(close)), close.shape)))
    return f"{int((~close).sum())} of {got.size} elements differ; {list(at)} is {got[at]}, not {want[at]}"
