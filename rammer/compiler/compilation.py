"""Compile a graph in stages: optimized → candidates → profiled → planned → proven → built. Known as: a driver.

Only this module uses both scheduler and vDevice. Each stage is a frozen value, computed on first use.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Self, cast

from rammer import config
from rammer.compiler.candidates import (
    Prover,
    as_unproven,
    drop_refused,
    drop_spilled,
    drop_wrong,
    generated,
    rejecting,
    shortened,
    with_replacements,
)
from rammer.compiler.clock import Clock
from rammer.compiler.models import Model, read
from rammer.compiler.options import CompileOptions
from rammer.compiler.smoke_run import Fault, ModelReference, budget, cpu_s, run_once
from rammer.compiler.stages import Built, CandidateSet, Kernels, Optimized, Planned, Profiled, Proven, Stage
from rammer.compiler.summary import make_report
from rammer.compiler.trace import Trace
from rammer.cost.price import fit
from rammer.errors import DeviceError, InputError, RammerError, VerificationError
from rammer.ir.analysis.dependency import Dependencies
from rammer.ir.analysis.messages import BOX_BYTES
from rammer.ir.analysis.order import HappensBefore
from rammer.ir.analysis.storage import direct_ports
from rammer.ir.graph import Graph
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.operator import Operation
from rammer.ir.plan import ExecutionPlan, Offer, Price
from rammer.ir.tensor import TensorId
from rammer.ir.verify import verify_graph, verify_plan, verify_schedule
from rammer.log import CHOICES, DEVICES
from rammer.passes import ignore_pass as unwatched
from rammer.passes import optimize
from rammer.passes.clean.drop_empty import drop_empty
from rammer.passes.in_place import update_in_place
from rammer.planner.memory import plan_memory
from rammer.planner.messages import with_messages
from rammer.planner.pieces import WORTH_BYTES
from rammer.plugins import PluginRegistry
from rammer.runtime.program import Program
from rammer.runtime.state import checked_pairs, same_types
from rammer.scheduler.judge import Estimate
from rammer.scheduler.policy import Policy, Problem
from rammer.scheduler.policy_options import tuning_of
from rammer.scheduler.profiler import EstimatingProfiler, MeasuredProfiler
from rammer.scheduler.select import PriceTable
from rammer.vdevice.base import Executable, Progress, VDevice, ports_of, silent
from rammer.vdevice.proof.verify import verify_image

STAGES: dict[type[Stage], str] = {  # by type the name of a stage, here and as a field of the stage after it
    Optimized: "optimized",
    CandidateSet: "candidates",
    Profiled: "profiled",
    Planned: "planned",
    Proven: "proven",
    Built: "built",
}


class Compilation:
    """The compilation of one graph for a device, by a policy.

    Each stage computes those before it, and no others: `Compilation(graph, device, policy).planned` stops at a plan.
    `enter` continues from a stage's value. Of the options, `state` and `tune_seconds` count, and `policy` if none is
    given. Of the environment, RAMMER_VERIFY and RAMMER_CHECK count. Use it in a `with` block, which stops background
    work and closes a device that `of` has opened. Errors name the phase in a note.
    """

    def __init__(
        self,
        graph: Graph,
        device: VDevice,
        policy: Policy | None = None,
        options: CompileOptions | None = None,
        *,
        registry: PluginRegistry | None = None,
        progress: Progress = silent,
        clock: Clock | None = None,
    ) -> None:
        self.device, self.options, self.registry = device, options or CompileOptions(), registry or PluginRegistry()
        self.policy = policy or self.options.open_policy(self.registry)
        self.trace = clock.trace if clock else Trace()
        self._clock, self._began_s, self._progress = clock or Clock(self.trace), cpu_s(), progress
        self._verify, self._check = config.integer("RAMMER_VERIFY") or 0, config.integer("RAMMER_CHECK") or 0
        self._budget_s = self.options.budget_s
        self._files: tuple[str, ...] = ()  # that the model was read from
        self._owned = False  # whether `close` closes the device
        self._loaded: Executable | None = None  # an executable that no program owns yet
        self._model, self._graph = graph, drop_empty(graph)
        types = [{t: graph.types[t] for t in names} for names in (graph.inputs, graph.outputs)]
        self._state = same_types(checked_pairs(self.options.state, *types), *types)
        self._judge: ModelReference | None = None
        self._kernels: dict[Operation, Sequence[RKernel]] = {}  # current candidates: proofs and runs reject some
        self._made: dict[Operation, Sequence[RKernel]] = {}  # of operations that a policy makes
        self._notes: list[str] = []  # on rejected rKernels

    @classmethod
    def of(
        cls,
        model: Model,
        options: CompileOptions,
        *,
        registry: PluginRegistry | None = None,
        progress: Progress = silent,
    ) -> Self:
        """Read a model, and find the policy and open the device that the options name. Raises a RammerError.

        `close` closes the device, unless a program owns it.
        """
        if options.together:
            raise InputError("together= is for several models", hint='give them by name: {"vad": "vad.onnx", …}')
        began_s, clock, registry = cpu_s(), Clock(Trace()), registry or PluginRegistry()
        policy, device = options.open(registry)
        say = clock.trace.say
        say(DEVICES, f"{options.vdevice!r}, {device.spec.arch}, {device.spec.num_veus} vEUs; policy {policy.name!r}")
        for fault in registry.faults:
            say(DEVICES, f"plugin {fault.plugin!r} of {fault.distribution} is not used: {fault.reason}")
        try:
            if options.budget_s > 0:
                device.begin()
            with clock("load"):
                graph, files = read(model, **options.to_load)
                made = cls(graph, device, policy, options, registry=registry, progress=progress, clock=clock)
        except BaseException:
            device.close()
            raise
        made._files, made._began_s, made._owned = files, began_s, True
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop background proofs and evaluations, and close the device if the compilation owns it."""
        self._end()
        if self._judge:
            self._judge.end()
        if self._owned:
            self._owned = False
            self.device.close()

    def _end(self) -> None:
        if "_prover" in vars(self):
            self._prover.end()
        if self._loaded:
            self._loaded.close()
            self._loaded = None

    def __str__(self) -> str:
        """Return the stages that were computed, one per line."""
        return "\n".join(str(vars(self)[name]) for name in STAGES.values() if name in vars(self)) or repr(self)

    def __repr__(self) -> str:
        return f"<Compilation of {self._model.name!r} for {self.device.spec.name!r} by {self.policy.name!r}>"

    def enter(self, stage: Optimized | CandidateSet | Profiled | Planned) -> Self:
        """Continue from a stage's value: it and those before it are kept, and later ones computed again.

        Rules are checked as usual: no proof of another process is trusted. Raises VerificationError for a graph that is
        not well formed.
        """
        self._end()
        for name in (*STAGES.values(), "_prover", "profiler", "problem"):
            vars(self).pop(name, None)
        self._kernels, self._made, self._notes = {}, {}, []
        names, entered = list(STAGES.values()), cast(Stage | None, stage)
        for number in range(names.index(STAGES[type(stage)]), -1, -1):  # each has the one before as a field
            setattr(self, names[number], entered)
            entered = getattr(entered, names[number - 1], None)
        if self._verify:
            self._verified("", self.optimized.graph)
        if not isinstance(stage, Optimized):
            self._kernels, self._notes = dict(self.candidates.kernels), list(self.candidates.notes)
        if isinstance(stage, Planned):
            self._kernels, self._notes = dict(stage.kernels), list(stage.notes)
            self.profiler.times |= stage.times
            self._made = {o: kernels for o, kernels in stage.kernels.items() if o not in self.candidates.kernels}
        return self

    # stages

    @cached_property
    def optimized(self) -> Optimized:
        """The graph after all passes for this device and policy."""
        self.trace.graph("imported", self._graph)
        spec, notes = self.device.spec, list[str]()
        state = self._state if spec.updates else {}
        graph, in_place = update_in_place(self._graph, state, copies=spec.updates and spec.is_core)
        with self._clock("passes"):
            tuning = tuning_of(self.policy, graph, spec)
            watch = self._verified if self._verify >= 2 else unwatched
            graph = optimize(graph, spec, per_image=tuning.per_image, watch=watch, tell=notes.append)
            if self._verify:
                self._verified("", graph)
        for note in notes:
            self.trace.warn(note)
        self.trace.graph("graph", graph)
        return Optimized(graph, self._model, self._state, in_place, tuning, tuple(notes))

    @cached_property
    def candidates(self) -> CandidateSet:
        """rKernels of every operation that the device's compiler accepts and that pass their tests."""
        optimized = self.optimized
        with self._clock("rkernels"):
            found = self._found(optimized.graph)
        with self._clock("check"):
            self._kernels = self._usable(found)
        return CandidateSet(optimized, dict(self._kernels), tuple(self._notes))

    @cached_property
    def profiled(self) -> Profiled:
        """Measured times of the candidates, within the budget."""
        candidates = self.candidates
        with self._clock("profile"):
            return Profiled(candidates, self._measured(candidates.kernels))

    @cached_property
    def planned(self) -> Planned:
        """The policy's plan."""
        problem = self.problem
        if self._verify and self.profiler.times:  # times show what a plan will probably use

            def unshared_us(kernel: RKernel) -> float:
                return self.profiler.rtask_us(kernel) * -(-kernel.num_rtasks // problem.spec.num_veus)

            self._prover.begin(min(options, key=unshared_us) for options in problem.candidates.values())
        return self._planned(problem)

    @cached_property
    def proven(self) -> Proven:
        """The plan with rKernels and order proven, and with memory, prices and notes."""
        return self._proven(self.planned)

    @cached_property
    def built(self) -> Built:
        """The program's image, compared with its plan, loaded and run once.

        Raises VerificationError if the run shows a fault that other rKernels do not fix.
        """
        rejected: dict[Operation, int] = {}  # rKernels that a run of the program has shown to be wrong
        judge = self._begun_judge()
        while True:
            built, wrong = self._built(self.proven, judge)
            self._loaded = built.executable
            if wrong is None:
                return built
            self._loaded.close()
            plan = built.image.plan or self.proven.plan
            kept, notes = rejecting(self._kernels, wrong, plan, self.device, rejected)
            self._kernels = dict(kept)
            self._made.update({operation: self._kernels[operation] for operation in self._made})
            self._notes += notes
            self.planned = self._planned(replace(self.problem, candidates=self._kernels))
            self.proven = self._proven(self.planned)

    def estimates(self, policies: Iterable[str]) -> dict[str, float | str]:
        """Return the estimated µs of plans by other policies, or why there is none. Nothing is built."""
        found: dict[str, float | str] = {}
        for name in policies:
            try:
                policy = self.registry.policy(name)
                with Compilation(self._model, self.device, policy, self.options, registry=self.registry) as other:
                    if tuning_of(policy, self._graph, self.device.spec) == self.optimized.tuning:
                        other.enter(self.profiled)
                    found[name] = Estimate(other.problem, policy.schedule(other.problem)).us
            except RammerError as error:
                found[name] = error.what
        return found

    def program(self) -> Program:
        """Return the program, which owns the device from now on."""
        built = self.built
        program = Program(built.image, self.device, built.report, sources=self._files, executable=built.executable)
        self._owned, self._loaded = False, None
        return program

    # what the stages are made of

    @cached_property
    def profiler(self) -> MeasuredProfiler:
        """Times of rKernels, measured or estimated. More are measured when a policy requests them."""
        estimates = EstimatingProfiler(self.device.spec)
        if self._budget_s <= 0:
            return MeasuredProfiler(self.profiled.times, estimates)
        return MeasuredProfiler(self.profiled.times, estimates, self._prices)

    @cached_property
    def problem(self) -> Problem:
        """The policy's input."""
        graph, kernels = self.profiled.candidates.optimized.graph, self.profiled.candidates.kernels
        return Problem(
            graph,
            self.device.spec,
            kernels,
            self.profiler,
            offer=self._offered,
            has_room=self.device.has_room,
            tell=self.trace.logger_at(CHOICES),
        )

    @cached_property
    def _prover(self) -> Prover:
        return Prover(self.device, self._check, self._progress, self._judge.still if self._judge else nullcontext)

    def _begun_judge(self) -> ModelReference:
        """Return the judge, which computes the model's outputs in the background; start it on the first call."""
        if self._judge is None:
            self._judge = ModelReference(self._graph, self.device.spec, self.device.verdicts(), self._check)
        return self._judge

    def _still(self) -> AbstractContextManager[None]:
        """Pause all background work, while something is measured."""
        return self._prover.still()

    def _verified(self, name: str, graph: Graph) -> None:
        """Check the graph after the pass `name`, or after all passes (""). Its ports must be unchanged."""
        try:
            verify_graph(graph, self._graph)
        except VerificationError as error:
            error.add_note(f"after the pass {name!r}" if name else "after all passes")
            raise

    def _found(
        self, graph: Graph, known: Container[Operation] = (), num_veus: int | None = None
    ) -> dict[Operation, list[RKernel]]:
        """Return rKernels of all plugins for the operations of a graph that are not `known`.

        Raises DeviceError naming all operations without any.
        """
        names = {op.operation: op.name for op in reversed(graph.operators)}  # of the first operator of each
        operations = list(dict.fromkeys(op.operation for op in graph.operators if op.operation not in known))
        spec, tuning = self.device.spec, self.optimized.tuning
        if num_veus:
            spec = replace(spec, num_veus=num_veus)
        found = generated(operations, lambda operation: self.registry.rkernels(operation, spec, tuning))
        if spec.numerics == "strict":
            found = {operation: [k for k in kernels if k.faithful] for operation, kernels in found.items()}
        lacking = {operation.kind: names[operation] for operation, kernels in reversed(found.items()) if not kernels}
        if lacking:
            listed = ", ".join(f"{kind} (node {name!r})" for kind, name in sorted(lacking.items()))
            strict = ", with numerics='strict'," if spec.numerics == "strict" else ""
            raise DeviceError(
                f"vDevice {spec.name!r}{strict} has no rKernel for: {listed}",
                hint=f"a plugin's rammer_rkernels can offer some in {' or '.join(spec.languages)}",
            )
        return found

    def _usable(self, kernels: Kernels) -> dict[Operation, Sequence[RKernel]]:
        """Return the rKernels that the compiler accepts, that pass their tests, and whose values fit into registers.

        Without a budget, only rKernels that a plan uses are tested, later. `_notes` name the others.
        """
        device, budget_s, progress = self.device, self._budget_s, self._progress
        kept = kernels if self._verify else as_unproven(kernels)
        if budget_s > 0:
            kept, refused = drop_refused(kept, device, budget_s, progress)
            self._notes += refused
            if self._check:
                kept, wrong = drop_wrong(kept, device, self._check, progress)
                self._notes += wrong
        kept, spilled = drop_spilled(kept, device, budget_s, progress)
        self._notes += spilled
        return dict(kept)

    def _measured(self, kernels: Kernels) -> Mapping[RKernel, float]:
        """Return µs per rTask of each rKernel; empty without a budget."""
        every = [k for options in kernels.values() for k in options]
        if self._budget_s <= 0:
            return {}
        return self.device.rkernels_us(every, budget_s=self._budget_s, progress=self._progress)

    def _offered(self, other: Graph, veus: int) -> Kernels:
        """Return rKernels for another graph of the same meaning.

        New operations get their own, for `veus` vEUs, measured now.
        """
        kept = self._usable(self._found(other, known={**self._kernels, **self._made}, num_veus=veus))
        with self._still():
            self.profiler.times |= self._measured(kept)
        self._made.update(kept)
        return self._made

    def _prices(self, times: Mapping[RKernel, float]) -> Mapping[RKernel, Price]:
        """Return prices by where operands are; empty if that is not measured, as estimates would only add up."""
        with self._still():
            states = self.device.rkernels_states_us(list(times), budget_s=self._budget_s, progress=self._progress)
        return {kernel: fit(kernel, self.device.spec, us, states.get(kernel)) for kernel, us in times.items() if states}

    def _planned(self, problem: Problem) -> Planned:
        with self._clock("schedule"):
            plan = self.policy.schedule(problem)
        self._kernels |= {o: kernels for o, kernels in self._made.items() if o not in self._kernels}
        return Planned(self.profiled, plan, dict(self._kernels), dict(self.profiler.times), tuple(self._notes))

    def _proven(self, planned: Planned) -> Proven:
        optimized, profiler, prover, plan = self.optimized, self.profiler, self._prover, planned.plan
        with self._clock("prove"):  # the plan's rKernels; plan again if some are rejected
            while self._verify and (changed := prover.check(self._kernels, plan.kernels)):
                kept, standing = changed
                self._kernels = dict(kept)
                profiler.times |= {new: profiler.times[k] for k, new in standing.items() if k in profiler.times}
                stands = with_replacements(plan, self._kernels, standing)
                plan = stands or self._planned(replace(self.problem, candidates=self._kernels)).plan
        with self._clock("verify"):  # before memory and prices, which need a plan with all rTasks
            if self._verify and plan.graph is not optimized.graph:
                self._verified("", plan.graph)
            evidence = verify_schedule(plan) if self._verify else None
        used = list(dict.fromkeys(plan.kernels))
        plan = replace(plan, rtask_us={k: profiler.rtask_us(k) for k in used})
        with self._clock("memory"):
            state = {*optimized.state, *optimized.state.values()}
            plan = in_memory(plan, state, evidence.order if evidence else None)
        with self._clock("price"):
            plan = replace(plan, prices=profiler.prices(used) or {}, offers=self._offers(plan.graph))
        boxes = shortened(Dependencies(plan.graph, plan.kernels).bounded(), "inputs are taken as boxes")
        plan = _noted(plan, *optimized.notes, *prover.notes, *self._notes, *_imported(plan), *boxes)
        for note in plan.notes:
            self.trace.say(CHOICES, note)
        timeline = self.problem.timelines.of(plan)
        self.trace.plan(plan, timeline)
        with self._clock("verify"):
            if self._verify:
                evidence = evidence if plan.programs is planned.plan.programs else None
                verify_plan(plan, evidence)
        return Proven(planned, plan, timeline, evidence)

    def _offers(self, graph: Graph) -> dict[Operation, tuple[Offer, ...]]:
        """Return the candidates of each operation of a plan's graph with their prices, without measuring anything."""
        known = replace(self.problem, graph=graph, candidates=self._kernels, profiler=self.profiler.as_measured())
        prices = PriceTable(known)
        operations = dict.fromkeys(op.operation for op in graph.operators)
        return {operation: prices.offers(operation) for operation in operations if self._kernels.get(operation)}

    def _built(self, proven: Proven, judge: ModelReference) -> tuple[Built, Fault | None]:
        """Return the built program, and what a run has shown to be wrong with it, or None."""
        optimized, plan, evidence, device = self.optimized, proven.plan, proven.evidence, self.device
        with self._clock("build"):
            image = device.build(plan, progress=self._progress)
            image = replace(image, state=optimized.state, in_place=optimized.in_place)
        with self._clock("image"):
            built = image.plan or plan
            if evidence and built.memory is not plan.memory:  # a backend may place tensors itself
                evidence = verify_schedule(built)
                verify_plan(built, evidence)
            if evidence and (unknown := verify_image(image, built, device)):
                self.trace.say(CHOICES, unknown)
                image = replace(image, plan=_noted(built, unknown))
        executable = device.load(image)
        checked, wrong = "not run: RAMMER_CHECK=0", None
        with self._clock("run"):
            if self._check:
                seconds = budget(cpu_s() - self._began_s)
                checked, wrong = run_once(executable, image, judge, device.verdicts(), seconds, every=self._check > 1)
        graph, model = optimized.graph, optimized.model
        if graph.inputs != model.inputs or graph.outputs != model.outputs:
            image = replace(image, signature=ports_of(model))
        weight_bytes = sum(a.nbytes for a in image.weights.values())
        report = make_report(image.plan or plan, proven.timeline, weight_bytes, self._clock.seconds, checked)
        return Built(proven, image, executable, report), wrong


def in_memory(
    plan: ExecutionPlan, unshared: Collection[TensorId] = (), order: HappensBefore | None = None
) -> ExecutionPlan:
    """Return the plan with every tensor placed. Owners in `unshared` share no bytes, like ports in the caller's memory.

    `order`: the plan's order, if known.
    """
    if plan.memory and not unshared:
        return plan
    direct = direct_ports(plan.graph, plan.spec.direct_bytes)
    scratch, messages, spec = bool(plan.memory and plan.memory.in_scratch), dict[TensorId, int](), plan.spec
    if spec.cluster and len(plan.programs) == 1:
        plan, messages = with_messages(plan)
        order, scratch = None, True
    below = min(messages.values(), default=spec.scratch_bytes + BOX_BYTES) - BOX_BYTES
    placed = replace(plan, spec=replace(spec, scratch_bytes=below))
    apart = {*unshared, *direct}
    memory = plan_memory(placed, unshared=apart, scratch=scratch, happens_before=order)
    if spec.is_core and memory.arena_bytes > spec.num_veus * spec.l2.nbytes:  # pieces share more, and take time
        memory = plan_memory(placed, unshared=apart, scratch=scratch, least_piece=WORTH_BYTES, happens_before=order)
    return replace(plan, memory=replace(memory, messages=messages))


def _noted(plan: ExecutionPlan, *notes: str) -> ExecutionPlan:
    return replace(plan, notes=(*plan.notes, *notes))


def _imported(plan: ExecutionPlan) -> list[str]:
    """Return a note that names the rKernels that were imported from records."""
    names = sorted({k.name for k in plan.kernels if isinstance(k.body, ForeignSource) and k.schedule})
    return [f"imported rKernels: {', '.join(names)}"] if names else []
