"""From a model to a Program: the one place where scheduler and vDevice meet."""

from __future__ import annotations

import copyreg
import os
import tempfile
import time
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

from rammer import artifact, config
from rammer.candidates import (
    Candidates,
    Prover,
    as_unproven,
    compare_with_meaning,
    drop_refused,
    drop_spilled,
    drop_wrong,
    few,
    generated,
    rejecting,
    standing_in,
)
from rammer.collector import seldom
from rammer.cost.price import fit
from rammer.errors import (
    ArtifactError,
    DeviceError,
    ModelError,
    RammerError,
    UnsuitableError,
    VerificationError,
    from_checkout,
)
from rammer.ir.dependency import Dependencies
from rammer.ir.graph import Graph
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.memory import direct_ports, plan_memory
from rammer.ir.operator import Operation
from rammer.ir.order import HappensBefore
from rammer.ir.plan import ExecutionPlan, Price
from rammer.ir.tensor import Array, TensorId
from rammer.ir.verify import verify_graph, verify_plan, verify_schedule
from rammer.once import Judge, budget, cpu_s, run_once
from rammer.passes import Watch, optimize
from rammer.passes import silent as unwatched
from rammer.passes.clean.drop_empty import drop_empty
from rammer.passes.in_place import update_in_place
from rammer.plugins import DeviceInfo, PluginRegistry
from rammer.program import Program
from rammer.report import Report, make_report
from rammer.scheduler.policy import Policy, Problem
from rammer.scheduler.policy_options import wishes_of
from rammer.scheduler.profiler import EstimatingProfiler, MeasuredProfiler
from rammer.state import checked_pairs, same_types
from rammer.trace import CHOICES, DEVICES, TIMES, Trace
from rammer.vdevice.base import Image, Progress, VDevice, ports_of, silent
from rammer.vdevice.proof.verify import verify_image

if TYPE_CHECKING:
    import onnx
    import torch

Model: TypeAlias = (
    "Graph | str | os.PathLike[str] | bytes | onnx.ModelProto"
    " | torch.nn.Module | torch.export.ExportedProgram | torch.onnx.ONNXProgram"
)

COMPILING = ("onnx", "networkx")  # packages that compiling takes, and running a saved program does not


def load(
    model: Model,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    constants: Mapping[str, Array] | None = None,
    example: Any = None,
) -> Graph:
    """Import a model: a path to an .onnx file, its bytes, a ModelProto, an ONNXProgram, or a torch.nn.Module.

    Raises ModelError.

    `shapes` fixes the dimensions of inputs that the model leaves open, `dims` those that it names; `constants` fixes
    the values of inputs that decide shapes, which are then no inputs of the graph. A module, or a file of
    TorchScript, needs an `example`; an ExportedProgram has its own.
    """
    return _load(model, shapes, dims, constants, example)[0]


def from_torch(
    module: torch.nn.Module | torch.export.ExportedProgram | str | os.PathLike[str], example: Any = None
) -> Graph:
    """Import a PyTorch module in eval mode, or a file of TorchScript, for inputs of the example's shapes and types.

    `example` is a tensor, a tuple of them, or a dict of keyword arguments; an ExportedProgram has its own. Inputs are
    called as the parameters of `forward`, outputs as their keys, or "output". Raises ModelError, which lists all
    operators that are unsupported.
    """
    try:
        from rammer.frontend.torch import from_module
    except ModuleNotFoundError as error:
        raise ModelError(f"{error.name} is not installed", hint=from_checkout("torch")) from None
    return from_module(module, example)


def _load(
    model: Model,
    shapes: Mapping[str, Sequence[int]] | None,
    dims: Mapping[str, int] | None,
    constants: Mapping[str, Array] | None,
    example: Any,
) -> tuple[Graph, tuple[str, ...]]:
    """The graph, and the files it was read from."""
    if isinstance(model, Graph):
        return model, ()
    require_compiler()
    if hasattr(model, "state_dict"):  # a module, or one that was exported, said without torch
        return from_torch(model, example), ()
    if example is not None:
        if isinstance(model, str | os.PathLike) and artifact.is_archive(model):  # TorchScript
            return from_torch(model, example), (os.fspath(model),)
        raise ModelError(
            "example= is for modules and TorchScript files", hint="shapes= fixes what an ONNX model leaves open"
        )
    # onnx takes 0.2 s to import; a loaded Program needs none of it
    from rammer.frontend.onnx import Source

    imported = Source(model).load(shapes=shapes, dims=dims, constants=constants)
    return imported.graph, imported.files


def require_compiler() -> None:
    """Raise RammerError where only what runs saved programs is installed."""
    if missing := [name for name in COMPILING if find_spec(name) is None]:
        raise RammerError(
            f"compiling a model needs the package {missing[0]}, which is not installed",
            hint=f"{from_checkout()}; rammer-run only runs saved programs",
        )


def opened(
    registry: PluginRegistry,
    target: str,
    policy: str | None,
    options: Mapping[str, str] | None,
    arch: str | None,
    device: str | int | None,
    precision: str | None,
    numerics: str | None,
    form: str = "table",
) -> tuple[Policy, VDevice]:
    """Find a policy and open a device, as the arguments of `compile` say. The caller closes the device.

    Raises PolicyError or DeviceError for what does not exist, is not available, or is not offered.
    """
    chosen = registry.policy(policy or config.get("RAMMER_POLICY"), options)
    vdevice = registry.open(target, arch=arch, device=device)
    try:
        return chosen, vdevice.adapted(
            precision=precision or config.get("RAMMER_PRECISION"),
            numerics=numerics or config.get("RAMMER_NUMERICS"),
            form=form,
        )
    except BaseException:
        vdevice.close()
        raise


@seldom()
def compile(
    model: Model,
    target: str | None = None,
    *,
    policy: str | None = None,
    options: Mapping[str, str] | None = None,
    arch: str | None = None,
    device: str | int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    constants: Mapping[str, Array] | None = None,
    state: Mapping[str, str] | bool | None = None,
    example: Any = None,
    precision: str | None = None,
    numerics: str | None = None,
    form: str = "table",
    tune_seconds: float | None = None,
    progress: Progress = silent,
    registry: PluginRegistry | None = None,
) -> Program:
    """Compile a model for a vDevice into a Program. Raises a RammerError that names what failed.

    `target` is a vDevice ("cpu"), `policy` a scheduling policy ("auto"); RAMMER_VDEVICE and RAMMER_POLICY are
    their defaults. `options` are the policy's; {"beyond": "off"} is the same as "wavefront:beyond=off". `shapes`,
    `dims` and `constants` fix dimensions and values of inputs, `example` is what a torch.nn.Module is traced with, as
    for `load`. `state={"h_out": "h_in"}` makes outputs
    inputs of the next run, which stay in the program; True finds such pairs by their names. `device` selects among
    devices of a target; for "cpu" it is the number of vEUs. `tune_seconds` bounds the time spent measuring rKernels,
    and once more for operators that a policy makes.
    `precision` is what products of float32 may be rounded to: "fp32" (the default: exact), or where the vDevice offers
    them "tf32" and "bf16", for its matrix units. `numerics="strict"` takes only rKernels in which an infinity or NaN
    reaches the elements that the formula gives it to and no others, with the rounding errors of direct sums; "fast"
    (the default) takes Winograd's forms and matrix units, too. `form`: a GPU's program may also be written out as
    "branches", one per vEU, if it is small (the paper's Figure 9).
    """
    registry = registry or PluginRegistry()
    trace = Trace()
    clock, began = _Clock(trace), cpu_s()
    target = target or config.get("RAMMER_VDEVICE")
    chosen, vdevice = opened(registry, target, policy, options, arch, device, precision, numerics, form)
    trace.say(DEVICES, f"vDevice {target!r}, {vdevice.spec.arch}, {vdevice.spec.num_veus} vEUs; policy {chosen.name!r}")
    for fault in registry.faults:
        trace.say(DEVICES, f"plugin {fault.plugin!r} of {fault.distribution} is not used: {fault.reason}")
    prover: Prover | None = None
    judge: Judge | None = None
    try:
        budget_s = config.number("RAMMER_TUNE_SECONDS", given=tune_seconds) or 0.0
        if not isinstance(model, Graph):
            require_compiler()  # it is said first
        if budget_s > 0:
            vdevice.begin()
        with clock("load"):
            whole, sources = _load(model, shapes, dims, constants, example)
            graph = drop_empty(whole)
            types = [{t: whole.types[t] for t in names} for names in (whole.inputs, whole.outputs)]
            pairs = same_types(checked_pairs(state, *types), *types)
        trace.graph("imported", graph)
        check = config.integer("RAMMER_CHECK") or 0
        judge = Judge(graph, vdevice.spec, vdevice.verdicts(), check)
        graph, in_place = update_in_place(graph, pairs if vdevice.spec.updates else {})
        verify = config.integer("RAMMER_VERIFY") or 0
        widened: list[str] = []
        with clock("passes"):
            verify_pass = _verify_pass(graph)
            watch = verify_pass if verify >= 2 else unwatched
            apart, finer = wishes_of(chosen, graph, vdevice.spec)
            graph = optimize(graph, vdevice.spec, images_apart=apart, watch=watch, tell=widened.append)
            if verify:
                verify_pass("", graph)
        for note in widened:
            trace.warn(note)
        trace.graph("graph", graph)
        with clock("rkernels"):
            made = find_candidates(graph, vdevice, registry, finer)
            candidates = made if verify else as_unproven(made)
        with clock("check"):
            candidates, dropped = usable(candidates, vdevice, check, budget_s, progress)
        prover = Prover(vdevice, check, progress, judge.still)
        with clock("profile"):
            profiler = profile(candidates, vdevice, budget_s, progress, prover.still)
        if verify and profiler.times:  # which say what a plan will probably use
            rounds = {k: -(-k.num_rtasks // vdevice.spec.num_veus) for options in candidates.values() for k in options}
            prover.begin(min(o, key=lambda k: profiler.rtask_us(k) * rounds[k]) for o in candidates.values())
        further: dict[Operation, Sequence[RKernel]] = {}  # of operations that a policy makes

        def offer(other: Graph, veus: int) -> Mapping[Operation, Sequence[RKernel]]:
            """rKernels for another graph of the same meaning: of what is new in it, for so many vEUs, measured now."""
            known = {**candidates, **further}
            made = find_candidates(other, vdevice, registry, finer=finer, known=known, num_veus=veus)
            kept, notes = usable(made if verify else as_unproven(made), vdevice, check, budget_s, progress)
            dropped.extend(notes)
            with prover.still():
                profiler.times |= measured(kept, vdevice, budget_s, progress)
            further.update(kept)
            return further

        problem = Problem(graph, vdevice.spec, candidates, profiler, offer=offer, has_room=vdevice.has_room)
        with clock("schedule"):
            plan = chosen.schedule(problem)
        rejected: dict[Operation, int] = {}  # rKernels that a run of the program has shown to be wrong
        while True:
            candidates = {**candidates, **further}
            with clock("prove"):  # what a plan uses; where that may not be used, another plan
                while verify and (changed := prover.settle(candidates, plan.kernels)):
                    candidates, standing = changed
                    profiler.times |= {new: profiler.times[k] for k, new in standing.items() if k in profiler.times}
                    stands = standing_in(plan, candidates, standing)
                    plan = stands or chosen.schedule(replace(problem, candidates=candidates))
            with clock("verify"):  # first: memory and prices are those of plans that have all rTasks
                if verify and plan.graph is not graph:
                    verify_pass("", plan.graph)
                schedule = verify_schedule(plan) if verify else None
            used = list(dict.fromkeys(plan.kernels))
            plan = replace(plan, rtask_us={k: profiler.rtask_us(k) for k in used})
            with clock("memory"):
                plan = in_memory(plan, {*pairs, *pairs.values()}, schedule.order if schedule else None)
            with clock("price"):
                plan = replace(plan, prices=profiler.prices(used) or {})
            notes = (*widened, *prover.notes, *dropped, *_imported(plan), *_bounded(plan))
            plan = replace(plan, notes=(*plan.notes, *notes))
            for note in plan.notes:
                trace.say(CHOICES, note)
            timeline = problem.timelines.of(plan)
            trace.plan(plan, timeline)
            with clock("verify"):
                if verify:
                    verify_plan(plan, schedule)
            with clock("build"):
                image = replace(vdevice.build(plan, progress=progress), state=pairs, in_place=in_place)
            with clock("image"):
                built = image.plan or plan
                if verify and built.memory is not plan.memory:  # a backend may place tensors anew
                    schedule = verify_schedule(built)
                    verify_plan(built, schedule)
                if schedule and (unknown := verify_image(image, built, vdevice, schedule.order)):
                    trace.say(CHOICES, unknown)
                    image = replace(image, plan=_noted(image.plan or plan, unknown))
            executable = vdevice.load(image)
            checked, wrong = "not run: RAMMER_CHECK=0", None
            with clock("run"):
                if check:
                    seconds = budget(cpu_s() - began)
                    checked, wrong = run_once(executable, image, judge, vdevice.verdicts(), seconds, every=check > 1)
            if wrong is None:
                break
            executable.close()
            candidates, rejections = rejecting(candidates, wrong, image.plan or plan, vdevice, rejected)
            further.update({operation: candidates[operation] for operation in further})
            dropped.extend(rejections)
            with clock("schedule"):
                plan = chosen.schedule(replace(problem, candidates=candidates))
        if graph.inputs != whole.inputs or graph.outputs != whole.outputs:
            image = replace(image, signature=ports_of(whole))
        weight_bytes = sum(a.nbytes for a in image.weights.values())
        report = make_report(image.plan or plan, timeline, weight_bytes, clock.seconds, checked)
        program = Program(image, vdevice, report, sources=sources, executable=executable)
        if check > 1:
            compare_with_meaning(program, whole)
        return program
    except BaseException:
        if prover:
            prover.end()
        vdevice.close()
        raise
    finally:
        if judge:
            judge.end()


def find_candidates(
    graph: Graph,
    vdevice: VDevice,
    registry: PluginRegistry,
    finer: tuple[int, ...] = (),
    known: Container[Operation] = (),
    num_veus: int | None = None,
) -> dict[Operation, list[RKernel]]:
    """Candidate rKernels of every distinct operation that is not `known`.

    `finer`: how many times as many rTasks as usual further ones shall have.

    Raises DeviceError naming all operations nobody can compute.
    """
    names = {op.operation: op.name for op in reversed(graph.operators)}  # of the first operator of each
    operations = list(dict.fromkeys(op.operation for op in graph.operators if op.operation not in known))
    spec = replace(vdevice.spec, num_veus=num_veus or vdevice.spec.num_veus)
    found = generated(operations, lambda operation: registry.rkernels(operation, spec, finer))
    if spec.numerics == "strict":
        found = {operation: [k for k in kernels if k.faithful] for operation, kernels in found.items()}
    nobody = {operation.kind: names[operation] for operation, kernels in reversed(found.items()) if not kernels}
    if nobody:
        listed = ", ".join(f"{kind} (node {name!r})" for kind, name in sorted(nobody.items()))
        strict = ", with numerics='strict'," if spec.numerics == "strict" else ""
        raise DeviceError(
            f"vDevice {vdevice.spec.name!r}{strict} has no rKernel for: {listed}",
            hint=f"a plugin's rammer_rkernels can offer some in {' or '.join(vdevice.spec.languages)}",
        )
    return found


def usable(
    candidates: Candidates, vdevice: VDevice, check: int, budget_s: float, progress: Progress
) -> tuple[Candidates, list[str]]:
    """The candidates that the device's compiler takes, that compute what they should and keep values in registers; and
    notes on the others. Without a budget nothing is tried out here.
    """
    refused: list[str] = []
    wrong: list[str] = []
    if budget_s > 0:  # else nothing is measured, and just what the plan uses is tried out
        candidates, refused = drop_refused(candidates, vdevice, budget_s, progress)
        candidates, wrong = drop_wrong(candidates, vdevice, check, progress) if check else (candidates, wrong)
    candidates, spilled = drop_spilled(candidates, vdevice, budget_s, progress)
    return candidates, [*refused, *wrong, *spilled]


def measured(candidates: Candidates, vdevice: VDevice, budget_s: float, progress: Progress) -> Mapping[RKernel, float]:
    """Microseconds of an rTask of each candidate; of none without a budget."""
    kernels = [k for options in candidates.values() for k in options]
    return vdevice.rkernels_us(kernels, budget_s=budget_s, progress=progress) if budget_s > 0 else {}


def in_memory(
    plan: ExecutionPlan, alone: Collection[TensorId] = (), order: HappensBefore | None = None
) -> ExecutionPlan:
    """The plan with every tensor in its place; those that are `alone` share theirs with nothing, as ports that stay
    where the caller has them. `order`: the plan's, where it is known.
    """
    if plan.memory and not alone:
        return plan
    direct = direct_ports(plan.graph, plan.spec.direct_bytes)
    near = bool(plan.memory and plan.memory.near)
    return replace(plan, memory=plan_memory(plan, alone={*alone, *direct}, near=near, happens_before=order))


def profile(
    candidates: Mapping[Operation, Sequence[RKernel]],
    vdevice: VDevice,
    budget_s: float,
    progress: Progress,
    still: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> MeasuredProfiler:
    """Measure where there is something to choose or to schedule; the spec's estimate stands in for the rest.

    Later measurements are made inside of `still`, where nothing else is done.
    """

    def measure(plans: Sequence[ExecutionPlan]) -> Sequence[float] | None:
        with still():
            return vdevice.plans_us([in_memory(plan) for plan in plans])

    def price(times: Mapping[RKernel, float]) -> Mapping[RKernel, Price]:
        with still():
            states_us = vdevice.rkernels_states_us(list(times), budget_s=budget_s, progress=progress)
        if not states_us:  # where nobody measured, prices would only add estimates to estimates
            return {}
        return {kernel: fit(kernel, vdevice.spec, us, states_us.get(kernel)) for kernel, us in times.items()}

    estimates = EstimatingProfiler(vdevice.spec)
    if budget_s <= 0:
        return MeasuredProfiler({}, estimates)
    return MeasuredProfiler(measured(candidates, vdevice, budget_s, progress), estimates, measure, price)


def load_program(
    path: str | os.PathLike[str],
    *,
    device: str | int | None = None,
    registry: PluginRegistry | None = None,
) -> Program:
    """Load a saved program without compiling. Raises ArtifactError, or DeviceError if its vDevice is missing.

    Of a file with several programs, the first that runs here. A program holds machine code: load only what you trust.
    """
    ends, reasons = artifact.ends(path), []
    for end in ends:
        image, report = artifact.load(path, end)
        try:
            return _program(image, report, device, registry or PluginRegistry())
        except (UnsuitableError, DeviceError) as error:
            if len(ends) == 1:
                raise
            reasons.append(error.what)
    raise UnsuitableError(
        f"{os.fspath(path)}: none of its {len(ends)} programs runs here: {'; '.join(dict.fromkeys(reasons))}",
        hint="compile the model for this machine, too",
    )


def _program(image: Image, report: dict[str, Any], device: str | int | None, registry: PluginRegistry) -> Program:
    vdevice = registry.open(image.target, device=device)
    try:
        return Program(image, vdevice, Report.from_json(report))
    except BaseException:
        vdevice.close()
        raise


def save_together(programs: Sequence[Program], path: str | os.PathLike[str]) -> None:
    """Write programs of one model into one file, the best first: `load_program` takes the first that runs there.

    Raises ArtifactError, also for programs whose inputs and outputs differ.
    """
    ports = {(program.inputs, program.outputs, tuple(program.state_pairs.items())) for program in programs}
    if len(ports) != 1:
        raise ArtifactError(f"{len(programs)} programs with different inputs, outputs or state cannot share a file")
    with tempfile.TemporaryDirectory() as folder:
        parts = [os.path.join(folder, str(n)) for n in range(len(programs))]
        for program, part in zip(programs, parts, strict=True):
            program.save(part)
        artifact.save_together(parts, path)


def _pickled(program: Program) -> tuple[Callable[[bytes], Program], tuple[bytes]]:
    """By content: what `save` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "program")
        program.save(path)
        with open(path, "rb") as file:
            return _unpickled, (file.read(),)


def _unpickled(data: bytes) -> Program:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "program")
        with open(path, "wb") as file:
            file.write(data)
        return load_program(path)  # it maps its weights, and needs the name no more


copyreg.pickle(Program, _pickled)


def devices(registry: PluginRegistry | None = None) -> list[DeviceInfo]:
    """Every registered vDevice: whether it can run here, and if not why."""
    return (registry or PluginRegistry()).devices()


def _verify_pass(before: Graph) -> Watch:
    """Return a check of the graph after a pass, or after all of them (no name): its ports are still what they were."""

    def check(name: str, graph: Graph) -> None:
        try:
            verify_graph(graph, before)
        except VerificationError as error:
            error.add_note(f"after the pass {name!r}" if name else "after all passes")
            raise

    return check


def _noted(plan: ExecutionPlan, note: str) -> ExecutionPlan:
    return replace(plan, notes=(*plan.notes, note))


def _imported(plan: ExecutionPlan) -> list[str]:
    """A note that names the rKernels that came from records."""
    names = sorted({k.name for k in plan.kernels if isinstance(k.body, ForeignSource) and k.schedule})
    return [f"imported rKernels: {', '.join(names)}"] if names else []


def _bounded(plan: ExecutionPlan) -> list[str]:
    """Notes on reads of which the plan knows only a box; such rTasks may wait for more than they read."""
    return few(Dependencies(plan.graph, plan.kernels).bounded(), "inputs are taken as boxes")


class _Clock:
    """Seconds per phase of a compilation."""

    def __init__(self, trace: Trace) -> None:
        self.seconds: dict[str, float] = {}
        self._trace = trace

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        except RammerError as error:
            error.add_note(f"while compiling: {phase}")
            raise
        except MemoryError as error:
            hint = "the model needs more memory than this process can get"
            raise RammerError(f"memory ran out while compiling: {phase}", hint=hint) from error
        took = time.perf_counter() - start
        self.seconds[phase] = self.seconds.get(phase, 0.0) + took
        self._trace.say(TIMES, f"{phase} {took:.3f} s")


__all__ = ["compile", "devices", "load", "load_program", "save_together"]
