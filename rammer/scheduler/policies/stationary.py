"""Keep recurrent weights in the vEUs' memory, and run each rTask where its weights are. Beyond the paper.

Known as: weight-stationary dataflow, persistent RNN.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import product
from typing import TypeAlias

from rammer.cost.weights import Weights, by_weights, recurrent_operators
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import TaskUid
from rammer.scheduler.assembly import Assembly, Needs, Placed
from rammer.scheduler.draft import Draft
from rammer.scheduler.policy import Problem, need_fine_sync
from rammer.scheduler.select import select_veu

Tile: TypeAlias = tuple[Weights, int, int]  # weights, number of rTasks, and the rTask whose part this is


class StationaryPolicy:
    """One rProgram, in which rTasks that read the same weights at every step are always on the same vEU.

    All recurrent operators are tiled into about the same number of rTasks, the number that balances the vEUs best over
    the whole program. Weight tiles are dealt to vEUs with free memory, largest load first. Where hand-overs inside a
    group of vEUs are cheap, each set of weights goes to one group, if one has room. Other rTasks go where they start
    first. Raises ScheduleError on a device with global synchronisation.
    """

    name = "stationary"

    def schedule(self, problem: Problem) -> ExecutionPlan:
        need_fine_sync(self.name, problem.spec)
        draft, groups = Draft(problem), recurrent_operators(problem.graph)
        fastest = {n: draft.prices.options(op.operation).fastest.kernel for n, op in enumerate(draft.graph.operators)}
        choices = [fastest | chosen for chosen in _tilings(problem, groups)] or [fastest]
        homes, kernels = min(
            ((_TileHomes(problem, groups, kernels), kernels) for kernels in choices),
            key=lambda found: found[0].bound_us,
        )
        draft.kernels.update(kernels)
        assembly, stayed = Assembly(problem.spec), 0
        for wave in problem.graph.wavefronts():
            tasks = sorted(
                draft.tasks(wave, assembly), key=lambda found: (homes.ready_us(found[0], found[1], assembly), found[0])
            )
            stayed += sum(homes.of(task) is not None for task, _ in tasks)
            draft.place((homes.placed(task, needs, assembly) for task, needs in tasks), assembly)
        programs = [] if assembly.is_empty else [assembly.build()]
        notes = (
            f"recurrent weights: {len(groups)} sets in {len(homes.veus)} tiles, the fullest vEU holds "
            f"{homes.most_bytes / 1024:.0f} KiB",
            f"rTasks at the vEU of their weights: {stayed} of {sum(k.num_rtasks for k in kernels.values())}",
        )
        return draft.finish(self.name, programs, assembly.time_us, notes)


def _tilings(problem: Problem, groups: Mapping[Weights, Sequence[int]]) -> Iterator[dict[int, RKernel]]:
    """Yield rKernels of the recurrent operators, for every number of rTasks that some candidate has.

    With groups of vEUs, operators that wait for others of their own set have one number, and the rest another one.
    """
    first = {n for numbers in groups.values() if _in_chain(problem, numbers) for n in numbers}
    options: dict[int, list[RKernel]] = {}
    for n in (n for numbers in groups.values() for n in numbers):
        candidates = problem.candidates.get(problem.graph.operators[n].operation, ())
        options[n] = sorted((k for k in candidates if k.fits(problem.spec)), key=lambda k: -k.num_rtasks)
    counts = sorted({k.num_rtasks for kernels in options.values() for k in kernels})
    for count, other in product(counts, counts) if problem.spec.cluster else zip(counts, counts, strict=True):
        yield {
            n: next((k for k in kernels if k.num_rtasks <= (count if n in first else other)), kernels[-1])
            for n, kernels in options.items()
            if kernels
        }


def _in_chain(problem: Problem, numbers: Sequence[int]) -> bool:
    """Check whether operators that share weights wait for each other."""
    mine = set(numbers)
    return any(mine & set(problem.graph.before[n]) for n in numbers)


class _TileHomes:
    """The vEU of each weight tile, for one choice of rKernels."""

    def __init__(self, problem: Problem, groups: Mapping[Weights, Sequence[int]], kernels: Mapping[int, RKernel]):
        self._problem = problem
        self._kernels = kernels
        self._draft = Draft(problem)
        self._draft.kernels.update(kernels)
        self._weights = {n: weights for weights, numbers in groups.items() for n in numbers}
        self._times_us: dict[tuple[RKernel, bool], float] = {}
        self.veus: dict[Tile, int] = {}
        self._resident: set[Tile] = set()
        self._groups: dict[Weights, int | None] = {}  # where a set of weights lies entirely
        loads_us, nbytes = self._deal(groups)
        self.most_bytes = max(nbytes, default=0)
        # A chain of operators waits for vEUs that are busy with others, for about the fullest vEU's load.
        self.bound_us = max(loads_us, default=0.0) + self._path_us()

    def of(self, task: TaskUid) -> int | None:
        """Return the vEU of an rTask's weights, or None if they have none."""
        return self.veus.get(self._tile(task))

    def ready_us(self, task: TaskUid, needs: Needs, assembly: Assembly) -> float:
        """Return when an rTask's operands are there; with groups of vEUs, at the vEU of its weights."""
        home = self.of(task) if self._problem.spec.cluster else None
        return needs.end_us if home is None else assembly.hand_over_us(home, needs)[1]

    def placed(self, task: TaskUid, needs: Needs, assembly: Assembly) -> Placed:
        """Return an rTask on the vEU of its weights, or else where it starts first."""
        home = self.of(task)
        return Placed(task, select_veu(assembly, needs).veu if home is None else home, self.rtask_us(task), needs)

    def rtask_us(self, task: TaskUid) -> float:
        """Return the rTask's µs, with its weights in its vEU's own memory if they are resident."""
        return self._tile_us(task.operator_id, self._tile(task) in self._resident)

    def _tile_us(self, operator: int, resident: bool) -> float:
        key = self._kernels[operator], resident
        if key not in self._times_us:
            us = self._draft.prices.rtask_us(self._kernels[operator])
            prices = by_weights(self._kernels[operator], us, self._problem.spec)
            self._times_us[key] = prices.resident_us if resident else prices.streamed_us
        return self._times_us[key]

    def _tile(self, task: TaskUid) -> Tile:
        n, rtask = task
        return self._weights.get(n, ()), self._kernels[n].num_rtasks, rtask

    def _deal(self, groups: Mapping[Weights, Sequence[int]]) -> tuple[list[float], list[int]]:
        """Assign tiles to vEUs, the largest loads first; return the load in µs and in bytes of every vEU."""
        spec, types = self._problem.spec, self._problem.graph.types
        own = (self._kernels[n].scratch_bytes for numbers in groups.values() for n in numbers)
        room = spec.scratch_bytes - max(own, default=0)  # rTasks of other operators use this memory in between
        tiles: dict[Tile, float] = {}
        streamed: dict[Tile, float] = {}  # µs of tiles whose weights are not resident
        for numbers in groups.values():
            for n in numbers:
                for r in range(self._kernels[n].num_rtasks):
                    tile = self._tile(TaskUid(n, r))
                    tiles[tile] = tiles.get(tile, 0.0) + self._tile_us(n, True)
                    streamed[tile] = streamed.get(tile, 0.0) + self._tile_us(n, False)
        loads_us, nbytes = [0.0] * spec.num_veus, [0] * spec.num_veus
        every, cluster = range(spec.num_veus), spec.cluster

        def deal(some: Iterable[Tile], veus: Iterable[int]) -> None:
            queue = sorted((loads_us[veu], veu) for veu in veus)
            for tile in sorted(some, key=lambda tile: -tiles[tile]):
                weights, count, _ = tile
                size, full = sum(types[t].nbytes for t in weights) // count, list[tuple[float, int]]()
                while queue and nbytes[queue[0][1]] + size > room:
                    full.append(heappop(queue))
                if queue:
                    self._resident.add(tile)
                else:
                    queue, full = full, []
                    heapify(queue)
                _, veu = heappop(queue)
                self.veus[tile] = veu
                nbytes[veu] += size if tile in self._resident else 0
                loads_us[veu] += tiles[tile] if tile in self._resident else streamed[tile]
                for entry in (*full, (loads_us[veu], veu)):
                    heappush(queue, entry)

        if cluster is None:
            deal(tiles, every)
            return loads_us, nbytes
        sets: dict[Weights, list[Tile]] = {}
        for tile in tiles:
            sets.setdefault(tile[0], []).append(tile)
        veus = [every[veu : veu + cluster.group] for veu in every[:: cluster.group]]
        for weights in sorted(
            sets, key=lambda w: (not _in_chain(self._problem, groups[w]), -sum(tiles[tile] for tile in sets[w]))
        ):
            size = sum(types[t].nbytes for t in weights)
            each = -(-size // len(sets[weights]))  # of a tile
            fits = [g for g in veus if sum((room - nbytes[veu]) // each for veu in g) >= len(sets[weights])]
            group = min(fits, key=lambda g: max(loads_us[veu] for veu in g), default=every)
            self._groups[weights] = group[0] // cluster.group if fits else None
            deal(sets[weights], group)
        return loads_us, nbytes

    def _path_us(self) -> float:
        """Return the µs of the longest chain of operators, each with a barrier and the rounds of its fullest vEU."""
        graph, spec = self._problem.graph, self._problem.spec
        shares = Counter((weights, count, veu) for (weights, count, _), veu in self.veus.items())
        rounds: dict[tuple[Weights, int], int] = {}
        for (weights, count, _), share in shares.items():
            rounds[weights, count] = max(rounds.get((weights, count), 0), share)
        ends: dict[int, float] = {}
        for wave in graph.wavefronts():
            for n in wave:
                count = self._kernels[n].num_rtasks
                times = rounds.get((self._weights.get(n, ()), count), -(-count // spec.num_veus))
                before = max((ends[m] + self._handover_us(m, n) for m in graph.before[n]), default=0.0)
                us = max(self.rtask_us(TaskUid(n, r)) for r in range(count))
                ends[n] = before + times * us
        return max(ends.values(), default=0.0)

    def _handover_us(self, a: int, b: int) -> float:
        """Return the cost of a hand-over between operators: less if their weights lie in one group."""
        cluster, (one, other) = self._problem.spec.cluster, (self._groups.get(self._weights.get(n, ())) for n in (a, b))
        return cluster.handover_us if cluster and one is not None and one == other else self._problem.spec.barrier_us
