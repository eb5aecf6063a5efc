"""Policy "graphturbo": choose how much of each operator to run at once, so that intermediate tensors stay resident."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal, NamedTuple

from rammer.cost.price import fit
from rammer.cost.residency import levels
from rammer.ir.analysis.dependency import Dependencies
from rammer.ir.analysis.storage import direct_ports
from rammer.ir.device import SyncModel, VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import TaskUid
from rammer.planner.memory import plan_memory
from rammer.planner.pieces import WORTH_BYTES
from rammer.scheduler.assembly import Assembly
from rammer.scheduler.draft import Draft
from rammer.scheduler.graphturbo.cut import Cut, distinct, fine_options, least, near_memories, parts_note
from rammer.scheduler.graphturbo.grouping import grouped
from rammer.scheduler.graphturbo.instances import Instance, instances
from rammer.scheduler.graphturbo.network import Network, network_of
from rammer.scheduler.graphturbo.scratchpad import Memories
from rammer.scheduler.graphturbo.search import ORDERS, Paper, by_images, priced, searched
from rammer.scheduler.graphturbo.split import Splitter
from rammer.scheduler.graphturbo.strips import draw, laid_out, least_work
from rammer.scheduler.graphturbo.tradeoffs import Tiles, reconciled
from rammer.scheduler.judge import PlanSelector
from rammer.scheduler.policies.wavefront import WavefrontPolicy
from rammer.scheduler.policy import Problem, images_of
from rammer.scheduler.policy_options import Wishes, described
from rammer.scheduler.select import Assignment, Market, count, select_veu
from rammer.scheduler.timeline import simulate

MOST_LAYERS = 600  # that are searched: time grows with layers times cuts
MOST_STEPS = 4_000  # of the search, from each start; with 16,000 ResNet-50 and MobileNet-v2 had the same plans
INSTANCES = (8, 64)  # times as many rTasks as vEUs, for instances
BEHIND = 2  # instances that may run at the same time: memory of those before them is free


class _Judged(NamedTuple):
    """A plan and its estimated time in µs."""

    us: float
    plan: ExecutionPlan


@dataclass
class GraphTurboPolicy:
    """Split groups of operators into instances that fit into memory close to their vEUs.

    Groups and orders are found by simulation, for each level of such memory: the vEUs' own and shared caches. The best
    ones become plans, and the fastest plan wins, by measured prices or else at the spec's rates. With `search` it is
    also compared with wavefront's plan. The plan is one rProgram; tensors are placed in memory piece by piece.

    Paper: GraphTurbo (OSDI'23) §3.
    """

    name = "graphturbo"

    rules: Literal["search", "paper", "images", "parts"] = field(
        default="search",
        metadata={
            "search": "cuts, if they pay, by what is moved, with weights",
            "paper": "groups by Algorithm 2 with its rules i and ii, each cut along one axis by Algorithm 1",
            "images": "by search for the last near memory alone, and each image of a batch by itself",
            "parts": "no operator's rTasks are cut: groups in parts alone, or wavefront's plan",
        },
    )
    order: Literal["moved", "breadth", "depth"] = field(
        default="moved",
        metadata={
            "moved": "instances breadth first or depth first, whichever moves less",
            "breadth": "all instances of a group before those of the next",
            "depth": "the readers of an instance as soon as they can run (Algorithm 3)",
        },
    )
    near: Literal["scratch", "off"] = field(
        default="scratch",
        metadata={
            "scratch": "a result that one vEU alone touches stays in its scratch",
            "off": "results lie where all vEUs see them",
        },
    )
    binding: Literal["cheaper", "none"] = field(
        default="cheaper",
        metadata={
            "cheaper": "plans in which a vEU has some images for itself are compared, too, but not by `paper`",
            "none": "the rTasks of an instance go where they start first",
        },
    )
    parts: Literal["cheaper", "none"] = field(
        default="cheaper",
        metadata={
            "cheaper": "plans in which groups are computed in parts, of rows, by operators of their own are compared, "
            "too, but not by `paper`",
            "none": "operators stay whole",
        },
    )
    uncut: bool = True  # whether `search` compares wavefront's plan, too; not an option: `auto` has that plan

    def wishes(self, graph: Graph, spec: VDeviceSpec) -> Wishes:
        """Return the rKernels and layouts that it needs: split where groups, and so tensors, are split."""
        if self.rules == "images":
            of_each = -(-images_of(graph) // spec.num_veus)
            return Wishes(images_apart=True, finer=(of_each,) if of_each else ())
        if self.rules == "parts":
            return Wishes(images_apart=True)
        return Wishes(images_apart=True, finer=INSTANCES)

    def schedule(self, problem: Problem) -> ExecutionPlan:
        market = Market(problem)
        if self.rules != "paper" and (tiles := Tiles.of(problem.spec)):
            return reconciled(problem, market, tiles, self._whole(problem), described(self, self.name))
        drawn = []
        network = network_of(problem.graph, problem.candidates)
        laid = laid_out(problem, market) if self.parts == "cheaper" and self.rules != "paper" else None
        for cut in self._cuts(problem, network) if self.rules != "parts" else ():
            options, factors = fine_options(problem, market, network, cut.groups, cut.splits)
            kernels = least(options, factors, cut, problem.spec)
            drawn.append(_judged(problem, self._drawn(problem, market, cut, kernels)))
            if laid and (in_parts := cut.in_parts(laid.found)):
                mine = {numbers[0]: kernels[n] for n, numbers in enumerate(laid.found.numbers)} | least_work(laid)
                drawn.append(_judged(problem, self._drawn(laid.problem, laid.market, in_parts, mine)))
        if laid:
            plan = draw(laid, described(self, self.name), (parts_note(laid.found),))
            drawn.append(_judged(problem, self._in_memory(plan)))
        cut_plan = min(drawn, key=lambda judged: judged.us, default=None)
        if cut_plan and (self.rules != "search" or not self.uncut):
            return cut_plan.plan
        whole = self._in_memory(self._whole(problem))
        return self._preferred(problem, cut_plan, whole) if cut_plan else whole

    def _preferred(self, problem: Problem, cut: _Judged, whole: ExecutionPlan) -> ExecutionPlan:
        """Return the plan of a cut, or of the whole network: the faster one."""
        if not problem.profiler.prices(whole.kernels):
            return min(cut, _judged(problem, whole), key=lambda judged: judged.us).plan
        judge = PlanSelector(problem)
        known, other = judge.believed(whole), judge.believed(cut.plan)
        return other.plan if judge.prefers(other, known) else known.plan

    def _drawn(self, problem: Problem, market: Market, cut: Cut, kernels: Mapping[int, RKernel]) -> ExecutionPlan:
        """Build the plan of a cut, with memory."""
        found, producers = instances(cut.groups, cut.splits, kernels, Dependencies(problem.graph, kernels))
        order = [(found[n], cut.veu_of(found[n], problem.spec.num_veus)) for n in ORDERS[cut.order](producers)]
        return self._in_memory(
            _draw(problem, market, kernels, order, described(self, self.name), _notes(cut, len(found)))
        )

    def _in_memory(self, plan: ExecutionPlan) -> ExecutionPlan:
        """Place the tensors of a plan, in scratch where the device allows it and they fit."""
        alone = direct_ports(plan.graph, plan.spec.direct_bytes)
        near = self.near == "scratch"
        return replace(plan, memory=plan_memory(plan, alone=alone, least_piece=WORTH_BYTES, near=near))

    def _whole(self, problem: Problem) -> ExecutionPlan:
        """Return the plan of a network that is not split: wavefront's."""
        plan = WavefrontPolicy().schedule(problem.usual)
        notes = ("groups: not cut: wavefront's plan", *plan.notes)
        return replace(plan, policy=f"{plan.policy} (chosen by {described(self, self.name)})", notes=notes)

    def _cuts(self, problem: Problem, network: Network) -> list[Cut]:
        """Return cuts for each local memory: by the paper's rules along one axis and as a grid, and by search.

        With `rules` "images", only those by search for the last local memory; with "paper", only those by rules.
        """
        orders = [name for name in ORDERS if self.order in ("moved", name)]
        memories = near_memories(problem.spec)
        if self.rules == "images":
            memories = dict(list(memories.items())[-1:])
        found: list[Cut] = []
        for at, (name, room) in enumerate(memories.items()):
            for grid in (False, True) if self.rules != "images" else ():
                splitters = [Splitter(network, m.cores, m.near, grid=grid) for m in list(memories.values())[at:]]
                groups = grouped(network, splitters[0])
                splits = [next((s for near in splitters if (s := near.best(group))), None) for group in groups]
                paper = priced(network, groups, splits, room, orders)
                found.append(Cut(f"for {name}", groups, splits, paper.order))
        if self.rules != "paper" and network.layers:
            papers = self._searched(network, memories, orders)
            found += [Cut(what, p.groups, p.splits, p.order, bound) for what, p, bound in papers]
        return distinct(found)

    def _searched(
        self, network: Network, memories: Mapping[str, Memories], orders: Sequence[str]
    ) -> Iterator[tuple[str, Paper, bool]]:
        """Yield a description, a simulated plan, and whether each of its instances runs on one vEU.

        If so, that many instances run at the same time and share memory. Networks of more than MOST_LAYERS are only
        split into images.
        """
        last, room = list(memories.items())[-1]
        small = len(network.layers) <= MOST_LAYERS
        for name, memory in memories.items() if small else ():
            yield f"for {name}", searched(network, memory, orders, recomputed=inf, most_steps=MOST_STEPS), False
        if self.binding == "none" or room.cores < 2:
            return
        share = room._replace(near=room.near // room.cores, shared=room.shared // room.cores)
        images = by_images(network, share)
        if any(split and split.factor >= room.cores for split in images.splits):
            yield "each on a vEU", images, True
            if small:
                paper = searched(network, share, orders, recomputed=inf, most_steps=MOST_STEPS)
                yield f"for {last}, each on a vEU", paper, True


def _draw(
    problem: Problem,
    market: Market,
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
    draft = Draft(problem, market)
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
            needs = draft.needs_of({operator: rtasks}, assembly)[operator]
            for rtask, need in zip(rtasks.tolist(), needs, strict=True):
                place = select_veu(assembly, need) if veu is None else Assignment(veu, 0.0, "bound")
                if place.veu in late:
                    need = assembly.needs_also(need, behind)
                    late.discard(place.veu)
                assembly.place(TaskUid(operator, rtask), place.veu, draft.rtask_us(operator), need)
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


def _notes(cut: Cut, num_instances: int) -> tuple[str, ...]:
    factors = [split.factor if split else 1 for split in cut.splits]
    return (
        f"groups: {len(cut.groups)}, cut into {num_instances} instances {cut.what}, {cut.order} first",
        f"instances by group: {', '.join(map(str, factors[:16]))}{', …' if len(factors) > 16 else ''}",
    )
