"""Run one case: plan, build, run several times, and compare with an oracle."""

from __future__ import annotations

import re
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import rammer
from rammer import config
from rammer.errors import ModelError, RammerError, ScheduleError, ToolchainError
from rammer.ir.device import MemoryLevel, SyncModel, VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.tensor import Array
from rammer.plugins import PluginRegistry
from rammer.runtime.program import Program
from rammer.vdevice.base import Executable, Image, Progress, VDevice, silent
from rammer_testing.fuzz.case import Case
from rammer_testing.fuzz.oracle import (
    Difference,
    Run,
    beyond_numbers,
    compare,
    consult,
    longest_sum,
    rounding,
    rounds_once,
    spread,
    spreads,
    tolerance,
)

MEASURED: dict[str, float | None] = {"measured": 0.5, "usual": None}  # seconds; None: the default
RIGHT, REFUSED, ILL, UNKNOWN = "right", "refused by name", "ill-conditioned", "no oracle"
WRONG, CRASHED, HUNG, INTERNAL = "wrong", "crashed", "hung", "refused by an internal error"
FAILURES = (WRONG, CRASHED, HUNG, INTERNAL)
ONE_IN, RARE = 3, 10  # of this many differing elements one may stay unexplained; RARE: no oracle agrees
LEFT_OUT = " is no candidate: "  # of our own rKernels, none may be
DRAWN_S = 0.5  # a nominal budget where times are not measured
BY_IMPORTER = "by the importer"
SYNCHRONISATION = "needs rTask-level synchronisation"
DEFECT = "cannot be imported: "  # prefix of the importer's report of its own exceptions


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a case. `reason` is the same for faults of one kind; `detail` is free text."""

    outcome: str
    reason: str = ""
    detail: str = ""

    @property
    def failed(self) -> bool:
        return self.outcome in FAILURES

    def to_json(self) -> dict[str, str]:
        return asdict(self)

    def resembles(self, other: Verdict) -> bool:
        """Return whether both may be of one fault: wrong results and crashes of one memory error vary in form."""
        if self.outcome == WRONG:
            return other.outcome == WRONG and (BY_IMPORTER in self.reason) == (BY_IMPORTER in other.reason)
        return self.outcome == other.outcome and (self.outcome == CRASHED or self.reason == other.reason)


class _Unbuilt:
    """The executable of a program that is planned, not built."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        raise NotImplementedError("build the plan first")

    def close(self) -> None:
        """Free nothing."""


class _Planner(VDevice):
    """A device that only plans, with the caches and times of a case."""

    def __init__(self, device: VDevice, case: Case) -> None:
        self.device = device
        if case.options.cache:
            device.spec = with_cache(device.spec, case.options.cache)
        self.spec = device.spec
        self._times, self._random = case.options.times, Random(case.name)
        self._tried = case.options.check > 0

    def rkernels_us(
        self, kernels: Sequence[RKernel], *, budget_s: float = 10.0, progress: Progress = silent
    ) -> Mapping[RKernel, float]:
        if self._times in MEASURED:
            return self.device.rkernels_us(kernels, budget_s=budget_s, progress=progress)
        return {kernel: 10 ** self._random.uniform(0, 3) for kernel in dict.fromkeys(kernels)}

    def rkernels_refused(
        self, kernels: Sequence[RKernel], *, budget_s: float = 10.0, progress: Progress = silent
    ) -> Mapping[RKernel, str]:
        return self.device.rkernels_refused(kernels, budget_s=budget_s, progress=progress) if self._tried else {}

    def rkernels_wrong(
        self, kernels: Sequence[RKernel], *, every: frozenset[RKernel] = frozenset(), progress: Progress = silent
    ) -> Mapping[RKernel, str]:
        return self.device.rkernels_wrong(kernels, every=every, progress=progress) if self._tried else {}

    def build(self, plan: ExecutionPlan, *, progress: Progress = silent) -> Image:
        return self.device.build(plan, progress=progress) if self._tried else super().build(plan)

    def load(self, image: Image) -> Executable:
        return self.device.load(image) if self._tried else _Unbuilt()


class _Planners(PluginRegistry):
    """A registry whose devices only plan."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self._case = case
        self.opened: list[VDevice] = []

    def open(self, target: str, *, arch: str | None = None, device: str | int | None = None) -> VDevice:
        self.opened.append(super().open(target, arch=arch, device=device))
        return _Planner(self.opened[-1], self._case)


def with_cache(spec: VDeviceSpec, nbytes: int) -> VDeviceSpec:
    """Return a spec whose vEUs have `nbytes` in their last private cache; scratch is half of it."""
    own = [level for level in spec.memory if level.owner == "veu"]
    if not own:
        return spec

    def resized(level: MemoryLevel) -> MemoryLevel:
        return replace(level, nbytes=nbytes) if level is own[-1] else level

    return replace(spec, memory=tuple(map(resized, spec.memory)), scratch_bytes=max(nbytes // 2, 64 << 10))


class Trial:
    """A case in progress: `plan`, then `check`. Both return a Verdict as soon as it is known."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.device: VDevice | None = None
        self._planned: Program | None = None

    @property
    def kernels(self) -> list[RKernel]:
        """Return the rKernels to compile, if the case was planned."""
        return list(dict.fromkeys(self._planned.plan.kernels)) if self._planned else []

    def plan(self) -> Verdict | None:
        """Do everything up to the plan. Returns a Verdict if that fails."""
        return self._guarded(self._plan)

    def check(self) -> Verdict:
        """Build, run and compare."""
        verdict = self._guarded(self._check)
        assert verdict is not None
        return verdict

    def _guarded(self, work: Any) -> Verdict | None:
        options = self.case.options
        flags = {"RAMMER_VERIFY": str(options.verify), "RAMMER_CHECK": str(options.check), "RAMMER_PIN": "0"}
        try:
            with config.override(**flags), np.errstate(all="ignore"):
                found: Verdict | None = work()
                return found
        except ModelError as error:
            if DEFECT in error.what:
                return Verdict(INTERNAL, _kind(error.what.partition(DEFECT)[2]), str(error))
            if consult(self.case.model, self.case.inputs(0)) is None:
                return Verdict(UNKNOWN, "no oracle takes the model", str(error))
            if self.case.lies and self._imports():
                what = _kind(error.what.rpartition("': ")[2])
                return Verdict(INTERNAL, f"refused for shapes that are declared: {what}", str(error))
            return Verdict(REFUSED, _kind(error.what), str(error))
        except ScheduleError as error:
            if self.device is not None and self.device.spec.sync is SyncModel.GLOBAL and SYNCHRONISATION in error.what:
                return Verdict(REFUSED, _kind(error.what), str(error))  # not every policy is for every device
            return internal(error)
        except RammerError as error:
            return internal(error)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.name}"
            text = f"{type(error).__name__} in {place}: {error}"
            return Verdict(INTERNAL, _kind(text), "".join(traceback.format_exception(error))[-3000:])

    def _imports(self) -> bool:
        """Return whether the model can be imported without its false declarations."""
        try:
            rammer.from_onnx(self.case.model)
        except RammerError:
            return False
        return True

    def _plan(self) -> Verdict | None:
        options = self.case.options
        registry = _Planners(self.case)
        try:
            self._planned = rammer.compile(
                self.case.given,
                options.target,
                policy=options.policy,
                arch=options.arch,
                device=options.veus,
                precision=options.precision,
                shapes=self.case.shapes,
                tune_seconds=0.0 if options.times == "estimated" else MEASURED.get(options.times, DRAWN_S),
                registry=registry,
            )
        finally:
            self.device = registry.opened[-1] if registry.opened else None
        if faulty := [note for note in self._planned.plan.notes if LEFT_OUT in note]:
            return Verdict(INTERNAL, _kind(faulty[0].partition(LEFT_OUT)[2]), "\n".join(faulty))
        return None

    def _check(self) -> Verdict:
        assert self._planned is not None and self.device is not None
        image = self.device.build(self._planned.plan)
        program = Program(image, self.device, self._planned.report())
        try:
            first = self._run(program, 0, poison=True)
            second = self._run(program, 1, poison=False)
            again = self._run(program, 0, poison=False)
            if text := _unequal(first, again):
                return Verdict(WRONG, "the same inputs give something else after others", text)
            if self.case.options.saved and image.files:
                with tempfile.TemporaryDirectory(prefix="rammer-fuzz-") as folder:
                    path = Path(folder, "case.rammer")
                    program.save(path)
                    with rammer.load(path, device=self._device_to_load) as loaded:
                        if text := _unequal(first, loaded.run(self.case.inputs(0))):
                            return Verdict(WRONG, "the saved program gives something else", text)
            verdicts = [self._judge(run, found, program.run) for run, found in enumerate((first, second))]
        finally:
            program.close()
            self._planned.close()
            self.device = None
        return next((v for v in verdicts if v.failed), next((v for v in verdicts if v.outcome != RIGHT), verdicts[0]))

    @property
    def _device_to_load(self) -> str | int | None:
        """Return the device that runs a saved program: None for vEUs, whose number the program holds."""
        veus = self.case.options.veus
        return None if isinstance(veus, int) else veus

    def _run(self, program: Program, run: int, *, poison: bool) -> dict[str, Array]:
        if hasattr(program.executable, "poison"):
            program.executable.poison = poison
        return program.run(self.case.inputs(run))

    def _judge(self, run: int, found: dict[str, Array], ours: Run | None = None) -> Verdict:
        """Compare with the first oracle; if it disagrees, with its movement under noise, `ours`, and the other
        oracles.
        """
        model, inputs = self.case.model, self.case.inputs(run)
        said = consult(model, inputs)
        if said is None:
            return Verdict(UNKNOWN, "no oracle takes the model")
        oracle, wanted = said
        precision = self.case.options.precision
        allowed = tolerance(model, longest_sum(model), precision)
        found = self._where_defined(found, wanted, inputs)
        first = [compare(found[name], value, name, allowed) for name, value in wanted.items()]
        if not any(first):
            beyond = [name for name, value in wanted.items() if beyond_numbers(found[name], value)]
            return Verdict(ILL, "infinities and NaN at other places", ", ".join(beyond)) if beyond else Verdict(RIGHT)
        left, moved, alike = first, dict[str, Array](), all(_alike(found[n], value) for n, value in wanted.items())
        for moved in spreads(model, inputs, oracle, precision) if alike else ():
            left = [compare(found[n], value, n, allowed, moved[n]) for n, value in wanted.items()]
            if not any(left):
                return Verdict(ILL, "the oracle itself moves as far", "; ".join(str(d) for d in first if d))
        text = "; ".join(str(d) for d in left if d)
        if ours is not None and alike:
            own = spread(ours, inputs, found, precision, rounds_once(model))
            either = {name: np.maximum(moved[name], own[name]) for name in wanted}
            if not any(compare(found[n], value, n, allowed, either[n]) for n, value in wanted.items()):
                return Verdict(ILL, "the program itself moves as far", text)  # by other roundings than the oracle's
        others, unlike = [], False
        for name in ("evaluator", "interpreter"):
            if name != oracle and (second := consult(model, inputs, (name,))):
                agrees = not any(
                    n not in second[1] or compare(found[n], second[1][n], n, allowed, moved.get(n)) for n in wanted
                )
                others.append((name, agrees))
                disputed = [d.output for d in left if d and d.output in second[1]]
                unlike |= any(compare(second[1][n], wanted[n], n, allowed) for n in disputed)
        if ("evaluator", True) in others:
            return Verdict(ILL, f"{oracle} deviates from ONNX's evaluator", text)
        if alike and unlike:  # worst-case bounds are wide: they do not count where all oracles agree
            bounds = rounding(model, inputs, precision)
            if not any(compare(found[n], value, n, allowed, moved[n] + bounds[n]) for n, value in wanted.items()):
                return Verdict(ILL, "rounding may move it as far, and oracles disagree", text)
        share = ONE_IN if ("interpreter", True) in others else RARE
        if share * _count(left) <= _count(first):  # of many ties, each moves rarely
            return Verdict(ILL, "most of what differs moves in the oracle itself", text)
        said_by = ", ".join(f"{name} {'agrees with us' if ok else 'disagrees with us, too'}" for name, ok in others)
        kind = BY_IMPORTER if ("interpreter", True) in others else "by the program"
        return Verdict(WRONG, f"another result, {kind}", f"run {run}, {oracle}: {text}; {said_by}")

    def _where_defined(
        self, found: Mapping[str, Array], wanted: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Return what was found; the wanted value where any is correct: integers cast from values that do not fit."""
        given, known = dict(found), {**inputs, **wanted}
        for name, origin in self.case.undefined.items():
            if name in wanted and wanted[name].shape == found[name].shape:
                fits = fitting(known[origin], wanted[name].dtype) if origin in known else False
                given[name] = np.where(fits, found[name], wanted[name]).astype(found[name].dtype)
        return given


def _alike(found: Array, wanted: Array) -> bool:
    return found.shape == wanted.shape and found.dtype == wanted.dtype


def fitting(value: Array, dtype: Any) -> Array:
    """Return which floats an integer type holds after truncation."""
    wide, limits = value.astype(np.float64), np.iinfo(dtype)
    return np.asarray((wide > float(limits.min) - 1) & (wide < float(limits.max) + 1))


def _count(differences: Sequence[Difference | None]) -> int:
    return sum(d.count for d in differences if d)


def internal(error: RammerError) -> Verdict:
    """Return the verdict on an error that no model should cause."""
    what = (
        re.sub(r": .*\n(?:.*error: )?", ": ", error.what, count=1) if isinstance(error, ToolchainError) else error.what
    )
    return Verdict(INTERNAL, _kind(f"{type(error).__name__}: {what}"), _with_notes(error))


def _unequal(first: Mapping[str, Array], second: Mapping[str, Array]) -> str:
    """Return the outputs that differ in any bit; NaNs are equal."""
    return "; ".join(
        str(compare(second[n], value, n, 0.0) or n)
        for n, value in first.items()
        if not np.array_equal(value, second[n], equal_nan=value.dtype.kind not in "biu")
    )


def _kind(text: str) -> str:
    """Return a message without names, types and numbers: the same for faults of one kind."""
    text = re.sub(
        r"^.*: no rKernel for \S+ (is right|can be compiled): \S+: ", r"no rKernel \1: ", text.partition("\n")[0]
    )
    text = re.sub(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]", "…", text.partition("; ")[0])
    text = re.sub(r"\b(bool|u?int\d+|b?float\d+)\b", "T", text)
    text = re.sub(r"\b(out|x|t|c)_?\d+\b", "…", text)
    return re.sub(r"(?<![A-Za-z\d])-?\d[\d.,×x]*", "N", text)[:200]


def _with_notes(error: BaseException) -> str:
    return "\n".join((str(error), *getattr(error, "__notes__", ())))[:3000]
