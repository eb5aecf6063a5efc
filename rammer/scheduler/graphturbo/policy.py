"""Policy "graphturbo": how much of each operator at once, so that what lies between operators stays near."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal, NamedTuple

from rammer.cost.price import fit, us_per_byte
from rammer.cost.residency import levels
from rammer.ir.dependency import Dependencies
from rammer.ir.device import SyncModel, VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.memory import direct_ports, plan_memory
from rammer.ir.pieces import WORTH_BYTES
from rammer.ir.plan import ExecutionPlan, Price
from rammer.ir.program import TaskUid
from rammer.ir.tensor import TensorId
from rammer.scheduler.assembly import Assembly
from rammer.scheduler.draft import Draft
from rammer.scheduler.graphturbo.chains import Chains, Device, chained, in_chains, kernels_for_chains
from rammer.scheduler.graphturbo.copies import groups_with_copies, with_copies, worth_copying
from rammer.scheduler.graphturbo.cut import Cut, distinct, fine_options, least, near_memories, parts_note
from rammer.scheduler.graphturbo.grouping import grouped
from rammer.scheduler.graphturbo.instances import Instance, instances
from rammer.scheduler.graphturbo.network import Network, network_of
from rammer.scheduler.graphturbo.scratchpad import Memories
from rammer.scheduler.graphturbo.search import ORDERS, Paper, by_images, priced, searched
from rammer.scheduler.graphturbo.split import Splitter
from rammer.scheduler.graphturbo.strips import draw, laid_out, least_work, stitched
from rammer.scheduler.graphturbo.tradeoffs import Tiles, reconciled
from rammer.scheduler.judge import Judge
from rammer.scheduler.policy import Problem, images_of
from rammer.scheduler.policy_options import Wishes, described
from rammer.scheduler.select import Assignment, Market, count, select_veu
from rammer.scheduler.timeline import simulate
from rammer.scheduler.wavefront import WavefrontPolicy

MOST_LAYERS = 600  # that are searched: what the search costs grows with their number, times that of cuts
MOST_STEPS = 4_000  # of the search, from each start; with 16,000 ResNet-50 and MobileNet-v2 had the same plans
BEHIND = 2  # instances: what the one before the last left has memory for the next, both may be worked on at once


class _Judged(NamedTuple):
    """A plan, and what it is believed to cost: altogether where prices were measured, else in moving bytes."""

    us: float
    plan: ExecutionPlan


@dataclass
class GraphTurboPolicy:
    """Operators are grouped, and groups cut into instances, so that an instance of a group fits near its vEUs.

    Groups and orders are found on paper, for each near memory, the vEUs' own and what they share. The best of them are
    drawn, and that plan is taken which costs least: by measured prices, or else in moving bytes. By `search` it is
    compared with wavefront's, too. All in one rProgram, in memory for pieces of tensors.

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
            "scratch": "what one vEU alone touches stays in its scratch, and chains of rTasks go to one vEU for that",
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
    parts: Literal["cheaper", "stitched", "none"] = field(
        default="cheaper",
        metadata={
            "cheaper": "plans in which groups are computed in parts, of rows, by operators of their own are compared, "
            "too, but not by `paper`",
            "stitched": "of each cut the plan, too, in which its groups are computed in its instances: all stages at "
            "the last one, on one vEU, in memory of their own (§4.1, §4.2)",
            "none": "operators stay whole",
        },
    )
    uncut: bool = True  # whether wavefront's plan is compared, too, by `search`; no option: `auto` has it already

    def wishes(self, graph: Graph, spec: VDeviceSpec) -> Wishes:
        """rKernels that are cut where groups are, and so tensors."""
        if self.rules == "images":
            of_each = -(-images_of(graph) // spec.num_veus)
            return Wishes(images_apart=True, finer=(of_each,) if of_each else ())
        if self.rules == "parts":
            return Wishes(images_apart=True)
        return Wishes(images_apart=True, finer=(8, 64))

    def schedule(self, problem: Problem) -> ExecutionPlan:
        market = Market(problem)
        if self.rules != "paper" and (tiles := Tiles.of(problem.spec)):
            return reconciled(problem, market, tiles, self._whole(problem), described(self, self.name))
        drawn = []
        network = network_of(problem.graph, problem.candidates)
        device = Device.of(problem.spec) if self.near == "scratch" else None
        laid = laid_out(problem, market) if self.parts == "cheaper" and self.rules != "paper" else None
        for cut in self._cuts(problem, network) if self.rules != "parts" else ():
            options, factors = fine_options(problem, market, network, cut.groups, cut.splits)
            kernels = least(options, factors, cut, problem.spec)
            plan = self._drawn(problem, market, cut, kernels, None)
            if device:
                plan = _in_memory(plan, True)
                kernels = kernels_for_chains(problem.graph, options, factors, device)
                in_chains = self._in_chains(problem, market, cut, kernels, factors, device)
                plan = _sooner(problem, plan, in_chains)
                plan = self._with_copies(problem, cut, plan, device if plan is in_chains else None)
            drawn.append(_judged(problem, plan))
            if laid and (in_parts := cut.in_parts(laid.found)):
                mine = {numbers[0]: kernels[n] for n, numbers in enumerate(laid.found.numbers)} | least_work(laid)
                drawn.append(_judged(problem, self._drawn(laid.problem, laid.market, in_parts, mine, None)))
            if self.parts == "stitched" and (laid_cut := stitched(problem, market, cut)):
                plan = draw(laid_cut, described(self, self.name), (f"stitched {cut.what}", parts_note(laid_cut.found)))
                drawn.append(_judged(laid_cut.problem, _in_memory(plan, False)))
        if laid:
            plan = draw(laid, described(self, self.name), (parts_note(laid.found),))
            drawn.append(_judged(problem, _in_memory(plan, False)))
        cut_plan = min(drawn, key=lambda judged: judged.us, default=None)
        if cut_plan and (self.rules != "search" or not self.uncut):
            return cut_plan.plan
        whole = _in_memory(self._whole(problem), device is not None)
        return self._preferred(problem, cut_plan, whole) if cut_plan else whole

    def _in_chains(
        self,
        problem: Problem,
        market: Market,
        cut: Cut,
        kernels: Mapping[int, RKernel],
        factors: Mapping[int, int],
        device: Device,
        apart: Collection[TensorId] = (),
    ) -> ExecutionPlan:
        """The plan of a cut in which rTasks that hand a result on in scratch form chains, in memory.

        Results that are `apart` lie where all vEUs see them.
        """
        us = {n: market.rtask_us(kernel) for n, kernel in kernels.items()}
        return self._drawn(problem, market, cut, kernels, chained(problem.graph, kernels, us, factors, device, apart))

    def _with_copies(self, problem: Problem, cut: Cut, known: ExecutionPlan, device: Device | None) -> ExecutionPlan:
        """The plan with copies of those results that stay in scratch if only their first reader reads them there, if it
        is sooner; else the known one. Its rTasks form chains if a device is given.
        """
        graph = problem.graph
        near = known.memory.near if known.memory else {}
        inner = {t for group in cut.groups for n in group.layers[:-1] for t in graph.operators[n].outputs}
        copied = [t for t in worth_copying(graph, dict(enumerate(known.kernels)), near) if t in inner]
        while copied:
            found = with_copies(graph, copied)
            other = problem.of(found.graph, problem.spec.num_veus)
            if other is None:
                return known
            groups = groups_with_copies(cut.groups, graph, found)
            more = cut._replace(groups=groups, what=f"{cut.what} with {len(copied)} copies")
            market, network = Market(other), network_of(found.graph, other.candidates)
            options, more_factors = fine_options(other, market, network, groups, cut.splits)
            kernels = least(options, more_factors, more, problem.spec)
            kernels |= {number: known.kernels[n] for n, number in enumerate(found.numbers)}
            if device:
                plan = self._in_chains(other, market, more, kernels, more_factors, device, found.written)
            else:
                plan = _in_memory(self._drawn(other, market, more, kernels, None), True)
            assert plan.memory is not None
            stay = [t for t in copied if t in plan.memory.near]
            if stay == copied:
                return _sooner(problem, known, plan)
            copied = stay
        return known

    def _preferred(self, problem: Problem, cut: _Judged, whole: ExecutionPlan) -> ExecutionPlan:
        """The plan of a cut or of the network as a whole: without measured prices whichever moves less, else whichever
        is estimated to be sooner.
        """
        if not problem.profiler.prices(whole.kernels):
            return min(cut, _judged(problem, whole), key=lambda judged: judged.us).plan
        judge = Judge(problem)
        known, other = judge.believed(whole), judge.believed(cut.plan)
        return other.plan if judge.prefers(other, known) else known.plan

    def _drawn(
        self,
        problem: Problem,
        market: Market,
        cut: Cut,
        kernels: Mapping[int, RKernel],
        chains: Chains | None,
    ) -> ExecutionPlan:
        """The plan of a cut, in memory."""
        found, producers = instances(cut.groups, cut.splits, kernels, Dependencies(problem.graph, kernels))
        order = [(found[n], cut.veu_of(found[n], problem.spec.num_veus)) for n in ORDERS[cut.order](producers)]
        plan = _draw(problem, market, kernels, order, described(self, self.name), _notes(cut, len(found)), chains)
        return _in_memory(plan, chains is not None)

    def _whole(self, problem: Problem) -> ExecutionPlan:
        """The plan of a network that is not cut: wavefront's."""
        plan = WavefrontPolicy().schedule(problem.usual)
        notes = ("groups: not cut: wavefront's plan", *plan.notes)
        return replace(plan, policy=f"{plan.policy} (chosen by {described(self, self.name)})", notes=notes)

    def _cuts(self, problem: Problem, network: Network) -> list[Cut]:
        """For each near memory: by the rules, along one axis and as a grid; and by search, if that is asked for.

        By `images`, for the last of them, by search alone.
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
        """Plans on paper, for what they are, and whether their instances have a vEU each.

        Of these so many are at work at once, and share what memory there is. Too large a network is cut into images
        alone.
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
    chains: Chains | None = None,
) -> ExecutionPlan:
    """The plan of instances one after the other, each operator by operator; rTasks go where they start first.

    All of an instance that has a vEU go there. A chain goes where its first rTask does; in an instance, operators whose
    results stay run chain by chain. vEUs are no further apart than `BEHIND` instances that share them, so that what an
    instance was done with is surely free then; on one vEU it is anyway.
    """
    draft = Draft(problem, market)
    draft.kernels.update(kernels)
    assembly = Assembly(problem.spec)
    reasons = []
    homes: dict[int, int] = {}  # vEU of each chain
    ends: list[Mapping[int, int]] = []  # of lanes, before each instance
    for instance, veu in order:
        ends.append(assembly.ends)
        known = veu is not None or problem.spec.sync is SyncModel.GLOBAL or len(ends) < BEHIND
        behind = {} if known else ends[-BEHIND]  # all before the end of that instance
        late = set(range(problem.spec.num_veus)) if behind else set()
        for operator, rtasks, home in in_chains(problem.graph, instance.rtasks, chains):
            needs = draft.needs_of({operator: rtasks}, assembly)[operator]
            for n, (rtask, need) in enumerate(zip(rtasks.tolist(), needs, strict=True)):
                if veu is not None:
                    place = Assignment(veu, 0.0, "bound")
                elif home and home[n] in homes:
                    place = Assignment(homes[home[n]], 0.0, "chain")
                else:
                    place = select_veu(assembly, need)
                if home:
                    homes.setdefault(home[n], place.veu)
                if place.veu in late:
                    need = assembly.needs_also(need, behind)
                    late.discard(place.veu)
                assembly.place(TaskUid(operator, rtask), place.veu, draft.rtask_us(operator), need)
                reasons.append(place.reason)
    programs = [] if assembly.is_empty else [assembly.build()]
    return draft.finish(policy, programs, assembly.time_us, (*notes, f"vEUs by rTask: {count(reasons)}"))


def _in_memory(plan: ExecutionPlan, near: bool) -> ExecutionPlan:
    alone = direct_ports(plan.graph, plan.spec.direct_bytes)
    return replace(plan, memory=plan_memory(plan, alone=alone, least_piece=WORTH_BYTES, near=near))


def _sooner(problem: Problem, plan: ExecutionPlan, other: ExecutionPlan) -> ExecutionPlan:
    """The plan that is believed to be done first, where operands lie considered."""

    def us(plan: ExecutionPlan) -> float:
        times = {k: problem.profiler.rtask_us(k) for k in plan.rtask_us}
        fitted = {k: fit(k, problem.spec, us, None) for k, us in times.items()}
        return simulate(replace(plan, prices=problem.profiler.prices(plan.kernels) or fitted)).total_us

    return plan if us(plan) <= us(other) else other


def _judged(problem: Problem, plan: ExecutionPlan) -> _Judged:
    """A plan with times by what caches hold: at the spec's rates if no prices were measured."""
    if not (levels(problem.spec) and plan.kernels):
        return _Judged(simulate(plan).total_us, plan)
    if prices := problem.profiler.prices(plan.kernels):
        return _Judged(problem.timelines.of(replace(plan, prices=prices)).total_us, plan)  # a judge may ask again
    timeline = simulate(replace(plan, prices={k: Price(us, 0.0, 0.0) for k, us in plan.rtask_us.items()}))
    rates = us_per_byte(problem.spec, problem.spec.num_veus)[0].tolist()
    return _Judged(sum(nbytes * us for nbytes, us in zip(timeline.moved.values(), rates, strict=True)), plan)


def _notes(cut: Cut, num_instances: int) -> tuple[str, ...]:
    factors = [split.factor if split else 1 for split in cut.splits]
    return (
        f"groups: {len(cut.groups)}, cut into {num_instances} instances {cut.what}, {cut.order} first",
        f"instances by group: {', '.join(map(str, factors[:16]))}{', …' if len(factors) > 16 else ''}",
    )
