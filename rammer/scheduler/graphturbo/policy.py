"""Policy "graphturbo": choose how much of each operator to run at once, so that intermediate tensors stay resident."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from rammer.cost.price import fit
from rammer.cost.residency import levels
from rammer.ir.analysis.dependency import Dependencies
from rammer.ir.analysis.storage import direct_ports
from rammer.ir.device import SyncModel, VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel, Tuning
from rammer.ir.plan import ExecutionPlan
from rammer.planner.memory import plan_memory
from rammer.planner.pieces import WORTH_BYTES
from rammer.scheduler.assembly import Assembly
from rammer.scheduler.draft import Draft
from rammer.scheduler.graphturbo.cut import Cut, distinct, fine_options, least, local_memories, parts_note
from rammer.scheduler.graphturbo.grouping import grouped
from rammer.scheduler.graphturbo.images import by_images
from rammer.scheduler.graphturbo.instances import Instance, breadth_first, depth_first, instances
from rammer.scheduler.graphturbo.network import Network, network_of
from rammer.scheduler.graphturbo.split import Splitter
from rammer.scheduler.graphturbo.strips import build_plan, in_worthwhile_parts, least_work
from rammer.scheduler.graphturbo.tradeoffs import Tiles, reconciled
from rammer.scheduler.policies.wavefront import WavefrontPolicy
from rammer.scheduler.policy import Problem, images_of
from rammer.scheduler.policy_options import described, option
from rammer.scheduler.select import Assignment, PriceTable, count, select_veu
from rammer.scheduler.timeline import simulate

ORDERS: dict[str, Callable[[Sequence[set[int]]], list[int]]] = {"breadth": breadth_first, "depth": depth_first}
INSTANCES = (8, 64)  # times as many rTasks as vEUs, for instances
BEHIND = 2  # instances that may run at the same time: memory of those before them is free


class _Judged(NamedTuple):
    """A plan and its estimated time in µs."""

    us: float
    plan: ExecutionPlan


@dataclass
class GraphTurboPolicy:
    """Split groups of operators into instances that fit into memory close to their vEUs.

    Groups are found for each level of such memory: the vEUs' own and shared caches. The cheapest of their plans wins,
    by measured prices or else at the spec's rates. By default it is also compared with wavefront's plan. The plan is
    one rProgram; tensors are placed in memory piece by piece.

    Paper: GraphTurbo (OSDI'23) §3.
    """

    name = "graphturbo"

    rules: Literal["every", "paper", "images", "parts"] = option(
        every="the cheapest of all that follow, and of wavefront's plan",
        paper="groups by Algorithm 2 with its rules i and ii, each cut along one axis by Algorithm 1",
        images="each image of a batch on one vEU for as long as possible",
        parts="no operator's rTasks are cut: groups in parts alone, or wavefront's plan",
    )
    order: Literal["moved", "breadth", "depth"] = option(
        moved="instances breadth first or depth first, whichever is cheaper",
        breadth="all instances of a group before those of the next",
        depth="the readers of an instance as soon as they can run (Algorithm 3)",
    )
    results: Literal["scratch", "off"] = option(
        scratch="a result that one vEU alone touches stays in its scratch",
        off="results lie where all vEUs see them",
    )
    binding: Literal["cheaper", "none"] = option(
        cheaper="plans in which a vEU has some images for itself are compared, too, but not by `paper`",
        none="the rTasks of an instance go where they start first",
    )
    parts: Literal["cheaper", "none"] = option(
        cheaper="plans in which groups are computed in parts, of rows, by operators of their own are compared, "
        "too, but not by `paper`",
        none="operators stay whole",
    )
    uncut: bool = True  # whether `every` compares wavefront's plan, too; not an option: `auto` has that plan

    def tuning(self, graph: Graph, spec: VDeviceSpec) -> Tuning:
        """Return the rKernels and layouts that it needs: split where groups, and so tensors, are split."""
        if self.rules == "images":
            of_each = -(-images_of(graph) // spec.num_veus)
            return Tuning(per_image=True, task_multiples=(of_each,) if of_each else ())
        if self.rules == "parts":
            return Tuning(per_image=True)
        return Tuning(per_image=True, task_multiples=INSTANCES)

    def schedule(self, problem: Problem) -> ExecutionPlan:
        prices = PriceTable(problem)
        if self.rules != "paper" and (tiles := Tiles.of(problem.spec)):
            return reconciled(problem, prices, tiles, self._whole(problem), described(self, self.name))
        drawn: list[_Judged] = []
        network = network_of(problem.graph, problem.candidates)
        laid = in_worthwhile_parts(problem, prices) if self.parts == "cheaper" and self.rules != "paper" else None
        for cut in self._cuts(problem, network) if self.rules != "parts" else ():
            options, factors = fine_options(problem, prices, network, cut.groups, cut.splits)
            kernels = least(options, factors, cut, problem.spec)
            drawn += self._drawn(problem, prices, cut, kernels)
            if laid and (in_parts := cut.in_parts(laid.found)):
                mine = {numbers[0]: kernels[n] for n, numbers in enumerate(laid.found.numbers)} | least_work(laid)
                drawn += self._drawn(laid.problem, laid.prices, in_parts, mine)
        if laid:
            plan = build_plan(laid, described(self, self.name), (parts_note(laid.found),))
            drawn.append(_judged(problem, self._in_memory(plan)))
        cut_plan = min(drawn, key=lambda judged: judged.us, default=None)
        if cut_plan and (self.rules != "every" or not self.uncut):
            return cut_plan.plan
        whole = self._in_memory(self._whole(problem))
        if cut_plan and cut_plan.us * problem.profiler.noise < _judged(problem, whole).us:
            return cut_plan.plan
        return whole

    def _drawn(
        self, problem: Problem, prices: PriceTable, cut: Cut, kernels: Mapping[int, RKernel]
    ) -> Iterator[_Judged]:
        """Build the plans of a cut, with memory: one for each order of its instances."""
        found, producers = instances(cut.groups, cut.splits, kernels, Dependencies(problem.graph, kernels))
        orders: dict[tuple[int, ...], str] = {}
        for name in (name for name in ORDERS if self.order in ("moved", name)):
            orders.setdefault(tuple(ORDERS[name](producers)), name)
        for order, name in orders.items():
            placed = [(found[n], cut.veu_of(found[n], problem.spec.num_veus)) for n in order]
            plan = _draw(problem, prices, kernels, placed, described(self, self.name), _notes(cut, name, len(found)))
            yield _judged(problem, self._in_memory(plan))

    def _in_memory(self, plan: ExecutionPlan) -> ExecutionPlan:
        """Place the tensors of a plan, in scratch where the device allows it and they fit."""
        alone = direct_ports(plan.graph, plan.spec.direct_bytes)
        scratch = self.results == "scratch"
        return replace(plan, memory=plan_memory(plan, unshared=alone, least_piece=WORTH_BYTES, scratch=scratch))

    def _whole(self, problem: Problem) -> ExecutionPlan:
        """Return the plan of a network that is not split: wavefront's."""
        plan = WavefrontPolicy().schedule(problem.usual)
        notes = ("groups: not cut: wavefront's plan", *plan.notes)
        return replace(plan, policy=f"{plan.policy} (chosen by {described(self, self.name)})", notes=notes)

    def _cuts(self, problem: Problem, network: Network) -> list[Cut]:
        """Return the cuts of a network: for each local memory by the paper's rules, along one axis and as a grid.

        And images, where vEUs can have some each: that many instances run at the same time and share memory.
        """
        cores, rooms, found = problem.spec.num_veus, local_memories(problem.spec), list[Cut]()
        for at, name in enumerate(rooms) if self.rules != "images" else ():
            for grid in (False, True):
                splitters = [Splitter(network, cores, room, grid=grid) for room in list(rooms.values())[at:]]
                groups = grouped(network, splitters[0])
                splits = [next((s for splitter in splitters if (s := splitter.best(group))), None) for group in groups]
                found.append(Cut(f"for {name}", groups, splits))
        if self.rules != "paper" and self.binding != "none" and cores > 1 and network.layers:
            groups, splits = by_images(network, Splitter(network, cores, list(rooms.values())[-1] // cores))
            if any(split and split.factor >= cores for split in splits):
                found.append(Cut("each on a vEU", groups, splits, bound=True))
        return distinct(found)


def _draw(
    problem: Problem,
    prices: PriceTable,
    kernels: Mapping[int, RKernel],
    order: Sequence[tuple[Instance, int | None]],
    policy: str,
    notes: Sequence[str],
) -> ExecutionPlan:
    """Build the plan of instances in an order, each operator by operator; rTasks go where they start first.

    All rTasks of a bound instance go to its vEU. For others, no vEU starts an instance before all vEUs have finished
    the one `BEHIND` before it. So memory that an earlier instance no longer needs is free. On one vEU it is free
    anyway.
    """
    draft = Draft(problem, prices)
    draft.kernels.update(kernels)
    assembly = Assembly(problem.spec)
    reasons = []
    ends: list[Mapping[int, int]] = []  # the last slot of each lane, before each instance
    for instance, veu in order:
        ends.append(assembly.ends)
        known = veu is not None or problem.spec.sync is SyncModel.GLOBAL or len(ends) < BEHIND
        behind = {} if known else ends[-BEHIND]  # all slots up to the end of that instance
        late = set(range(problem.spec.num_veus)) if behind else set()
        for operator, rtasks in instance.rtasks.items():
            for task, need in draft.some_tasks({operator: rtasks}, assembly):
                place = select_veu(assembly, need) if veu is None else Assignment(veu, 0.0, "bound")
                if place.veu in late:
                    need = assembly.needs_at((*need.last, *behind.items()))
                    late.discard(place.veu)
                assembly.place(task, place.veu, draft.rtask_us(operator), need)
                reasons.append(place.reason)
    programs = [] if assembly.is_empty else [assembly.build()]
    return draft.finish(policy, programs, assembly.time_us, (*notes, f"vEUs by rTask: {count(reasons)}"))


def _judged(problem: Problem, plan: ExecutionPlan) -> _Judged:
    """Return a plan with its time by simulated cache contents; at the spec's rates if no prices were measured."""
    if not (levels(problem.spec) and plan.kernels):
        return _Judged(simulate(plan).total_us, plan)
    prices = problem.profiler.prices(plan.kernels)
    prices = prices or {kernel: fit(kernel, problem.spec, us, None) for kernel, us in plan.rtask_us.items()}
    return _Judged(problem.timelines.of(replace(plan, prices=prices)).total_us, plan)  # memoized for a judge


def _notes(cut: Cut, order: str, num_instances: int) -> tuple[str, ...]:
    factors = [split.factor if split else 1 for split in cut.splits]
    return (
        f"groups: {len(cut.groups)}, cut into {num_instances} instances {cut.what}, {order} first",
        f"instances by group: {', '.join(map(str, factors[:16]))}{', …' if len(factors) > 16 else ''}",
    )
