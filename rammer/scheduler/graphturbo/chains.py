"""Chains of rTasks that hand results on inside of one vEU's scratch: which tensors stay there, and at what price.

Where a vEU's scratch outlives its rTasks, rTasks that touch the same piece of a result may form a chain, which one vEU
runs from its first to its last rTask. Paper: GraphTurbo §4.1, what instances of a core hand on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.pieces import arguments
from rammer.ir.tensor import TensorId
from rammer.scheduler.select import Option

Numbers = NDArray[np.int64]
MOST_RTASKS = 1 << 14  # of operators that are joined: what joining costs grows with them
TRIED = 14  # rKernels of an operator that are tried with each of its reader's, those of the least time: all, as a rule

Kernels = Mapping[int, RKernel]


class Shares(NamedTuple):
    """How rTasks of an operator fall to vEUs: in so many chains, at most so many of one."""

    chains: int
    longest: int


class Device(NamedTuple):
    """What chains spare and cost there."""

    veus: int
    far_us: float  # of a byte that all vEUs move at once, what it takes one of them
    barrier_us: float
    room: int  # bytes of scratch

    @staticmethod
    def of(spec: VDeviceSpec) -> Device | None:
        """None where nothing can stay in scratch."""
        scratch = spec.level(spec.resident)
        far = next((m for m in spec.memory if m.managed == "cache"), None)
        if scratch is None or far is None:
            return None
        far_us = spec.byte_us(far, spec.num_veus) - spec.byte_us(scratch, spec.num_veus)
        return Device(spec.num_veus, max(far_us, 0.0), spec.barrier_us, spec.scratch_bytes)

    def rounds_us(self, shares: Shares, us: float, factor: int) -> float:
        """Of an operator, cut into `factor` instances one after the other, whose rTasks take `us` each."""
        return factor * -(-shares.chains // (factor * self.veus)) * shares.longest * us


class Priced(NamedTuple):
    """What it takes to let an owner of memory stay: the chains of all operators that it joins."""

    labels: dict[int, Numbers]
    more_us: float  # where chains keep vEUs from sharing work evenly
    spared_us: float


class Chains:
    """rTasks of operators, joined tensor by tensor. `stays`: owners of memory that chains keep to themselves.

    `us`: of an rTask of each operator; `factors`: into how many instances each is cut.
    """

    def __init__(
        self, graph: Graph, kernels: Kernels, us: Mapping[int, float], factors: Mapping[int, int], device: Device
    ) -> None:
        self._graph, self._kernels, self._us, self._factors, self._device = graph, kernels, us, factors, device
        ends = np.cumsum([0, *(kernel.num_rtasks for kernel in kernels.values())]).tolist()
        self._labels = {n: np.arange(*span) for n, span in zip(kernels, pairwise(ends), strict=True)}
        self._joined: dict[int, tuple[int, ...]] = {n: (n,) for n in kernels}  # operators whose rTasks share chains
        self.stays: set[TensorId] = set()

    def label(self, operator: int) -> Numbers:
        """For each rTask of an operator, its chain."""
        return self._labels[operator]

    @property
    def us(self) -> float:
        """Of all operators, one after the other."""
        return sum(self._us_of(n, labels) for n, labels in self._labels.items())

    def price(self, owner: TensorId, touching: Sequence[int]) -> Priced | None:
        """What it takes to let an owner stay that these operators touch; None if there is no room for it."""
        rows = _rows(self._graph, self._kernels, owner, touching)
        together = sorted({m for n in touching for m in self._joined[n]})
        if not len(rows) or sum(len(self._labels[n]) for n in together) > MOST_RTASKS:
            return None
        pieces, largest = _pieces(rows)
        scratch = max(self._kernels[n].scratch_bytes for n in touching)
        if largest * self._graph.types[owner].element_bytes + scratch > self._device.room:
            return None
        found = self._merged(together, rows, pieces)
        more_us = sum(self._us_of(n, found[n]) - self._us_of(n, self._labels[n]) for n in together)
        return Priced(found, more_us, self._spared_us(owner, rows, touching))

    def join(self, owner: TensorId, touching: Sequence[int]) -> None:
        """Let an owner stay in scratch, if that pays."""
        priced = self.price(owner, touching)
        if priced and priced.more_us <= priced.spared_us:
            self._labels |= priced.labels
            self._joined |= dict.fromkeys(priced.labels, tuple(priced.labels))
            self.stays.add(owner)

    def _merged(self, together: Sequence[int], rows: Numbers, pieces: Numbers) -> dict[int, Numbers]:
        """The labels of some operators, where rTasks that touch one piece have the same."""
        begin = dict(zip(together, np.cumsum([0, *(len(self._labels[n]) for n in together)]).tolist(), strict=False))
        old = np.concatenate([self._labels[n] for n in together])
        names, which = np.unique(old, return_inverse=True)
        chain = which[np.array([begin[n] for n in rows[:, 0].tolist()]) + rows[:, 1]]
        new = np.arange(len(names))
        while True:
            least = np.full(int(pieces.max()) + 1, len(names))
            np.minimum.at(least, pieces, new[chain])
            after = new.copy()
            np.minimum.at(after, chain, least[pieces])
            if (after == new).all():
                break
            new = after
        labels = names[new[which]]
        return {n: labels[begin[n] : begin[n] + len(self._labels[n])] for n in together}

    def _us_of(self, operator: int, labels: Numbers) -> float:
        if not len(labels):
            return 0.0
        return self._device.rounds_us(_shares(labels), self._us[operator], self._factors[operator])

    def _spared_us(self, owner: TensorId, rows: Numbers, touching: Sequence[int]) -> float:
        """Microseconds of a vEU: bytes that do not leave it, and a barrier where readers wait for nothing else."""
        nbytes = float((rows[:, 3] - rows[:, 2]).sum()) * self._graph.types[owner].element_bytes
        graph = self._graph
        alone = True
        for n in touching:
            roots = {graph.storage(t).root for t in graph.operators[n].inputs}
            if owner in roots:
                given = {*graph.inputs, *graph.constants, *self.stays, owner}
                alone &= roots <= given
        return nbytes / self._device.veus * self._device.far_us + alone * self._device.barrier_us


def _shares(labels: Numbers) -> Shares:
    _, counts = np.unique(labels, return_counts=True)
    return Shares(len(counts), int(counts.max()))


def _rows(graph: Graph, kernels: Kernels, owner: TensorId, touching: Sequence[int]) -> Numbers:
    """[n, 4]: operator, rTask, and between which elements of an owner of memory it touches it; by element."""
    found = [np.zeros((0, 4), np.int64)]
    for n in touching:
        for _, root, hull in arguments(graph, kernels, n):
            if root == owner:
                some = np.flatnonzero(hull[:, 1] > hull[:, 0])
                found.append(np.column_stack((np.full(len(some), n), some, hull[some])))
    rows = np.concatenate(found)
    return rows[np.argsort(rows[:, 2], kind="stable")]


def _pieces(rows: Numbers) -> tuple[Numbers, int]:
    """For each row the piece that it touches, between elements that no rTask touches together; the largest's size."""
    reach = np.maximum.accumulate(rows[:, 3])
    begins = np.append(True, rows[1:, 2] >= reach[:-1])
    at = np.flatnonzero(begins)
    ends = reach[np.append(at[1:], len(rows)) - 1]
    return np.cumsum(begins) - 1, int((ends - rows[at, 2]).max())


def own_results(graph: Graph, kernels: Kernels) -> Iterator[tuple[TensorId, list[int]]]:
    """Yield memory owners that no caller sees and no foreign text touches, with the operators that touch each."""
    seen = {graph.storage(t).root for t in (*graph.inputs, *graph.outputs, *graph.constants)}
    touching: dict[TensorId, list[int]] = {}
    for n, op in enumerate(graph.operators):
        roots = dict.fromkeys(graph.storage(t).root for t in (*op.outputs, *op.inputs))
        if isinstance(kernels[n].body, ForeignSource) or op.operation.expr.into:
            seen |= roots.keys()
        for root in roots:
            touching.setdefault(root, []).append(n)
    return ((owner, some) for owner, some in touching.items() if owner not in seen)


def chained(
    graph: Graph,
    kernels: Kernels,
    us: Mapping[int, float],
    factors: Mapping[int, int],
    device: Device,
) -> Chains:
    """Join the rTasks of a graph with these rKernels, memory owner by memory owner, where that pays."""
    found = Chains(graph, kernels, us, factors, device)
    for owner, touching in own_results(graph, kernels):
        found.join(owner, touching)
    return found


def kernels_for_chains(
    graph: Graph,
    options: Mapping[int, Sequence[Option]],
    factors: Mapping[int, int],
    device: Device,
) -> dict[int, RKernel]:
    """An rKernel for each operator; of a writer and its only reader those that together take least, if the result
    stays.
    """

    def apart_us(n: int, option: Option) -> tuple[float, int]:
        shares = Shares(option.kernel.num_rtasks, 1)
        return device.rounds_us(shares, option.rtask_us, factors[n]), shares.chains

    ranked = {n: sorted(options[n], key=lambda o: apart_us(n, o))[:TRIED] for n in range(len(graph.operators))}
    known: dict[tuple[object, ...], tuple[Option, Option] | None] = {}
    fixed: set[int] = set()
    for owner, touching in own_results(graph, {n: some[0].kernel for n, some in ranked.items()}):
        if len(touching) == 2 and touching[1] not in fixed:
            writer, reader = touching
            key = (*(o.kernel for n in touching for o in ranked[n]), factors[writer], factors[reader])
            if key not in known:
                known[key] = _best_pair(graph, owner, ranked, writer, reader, factors, device)
            if (pair := known[key]) is not None:
                ranked |= {writer: [pair[0]], reader: [pair[1]]}
                fixed |= {writer, reader}
    return {n: some[0].kernel for n, some in ranked.items()}


def _best_pair(
    graph: Graph,
    owner: TensorId,
    ranked: Mapping[int, Sequence[Option]],
    writer: int,
    reader: int,
    factors: Mapping[int, int],
    device: Device,
) -> tuple[Option, Option] | None:
    """The rKernels of a writer and a reader that take least if the result stays; None if apart they take less."""
    found, least = None, inf
    for one in ranked[writer]:
        for other in ranked[reader]:
            us = {writer: one.rtask_us, reader: other.rtask_us}
            pair = Chains(graph, {writer: one.kernel, reader: other.kernel}, us, factors, device)
            least = min(least, pair.us)
            priced = pair.price(owner, (writer, reader))
            if priced and (total := pair.us + priced.more_us - priced.spared_us) < least:
                found, least = (one, other), total
    return found


def in_chains(
    graph: Graph, rtasks: Mapping[int, Numbers], chains: Chains | None
) -> Iterator[tuple[int, Numbers, list[int]]]:
    """An instance's rTasks in an order to run them: operators with some of their rTasks, and the chain of each.

    Neighbours whose results stay run chain by chain, so that few pieces are in scratch at once; else operator by
    operator. Without `chains`, there are none.
    """
    if chains is None:
        yield from ((n, some, []) for n, some in rtasks.items())
        return
    for run in _runs(graph, list(rtasks), chains.stays):
        labels = {n: chains.label(n)[rtasks[n]] for n in run}
        order = dict.fromkeys(np.concatenate(list(labels.values())).tolist())
        if len(run) == 1:
            yield run[0], rtasks[run[0]], labels[run[0]].tolist()
            continue
        for chain in order:
            for n in run:
                if len(some := rtasks[n][labels[n] == chain]):
                    yield n, some, [chain] * len(some)


def _runs(graph: Graph, operators: Sequence[int], stays: set[TensorId]) -> Iterator[list[int]]:
    """Operators in runs: each reads what stays of one before it in its run, and nothing else of them."""
    run: list[int] = []
    made: set[TensorId] = set()
    for n in operators:
        op = graph.operators[n]
        read = {graph.storage(t).root for t in op.inputs} & made
        if run and not (read and read <= stays):
            yield run
            run, made = [], set()
        run.append(n)
        made |= {graph.storage(t).root for t in op.outputs}
    if run:
        yield run
