"""Stages of a compilation for a spec alone: what tests of kernels, policies and plans share. Nothing is measured."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from rammer.compiler import Compilation, CompileOptions
from rammer.compiler.stages import Optimized
from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.operator import Operation
from rammer.ir.plan import ExecutionPlan
from rammer.plugins import PluginRegistry
from rammer.scheduler.policy import Problem
from rammer.scheduler.policy_options import tuning_of
from rammer.vdevice.base import Image, VDevice

REGISTRY = PluginRegistry(third_party=False)


class SpecOnly(VDevice):
    """A vDevice that plans, and runs nothing."""

    def __init__(self, spec: VDeviceSpec) -> None:
        self.spec = spec

    def load(self, image: Image) -> NoReturn:
        raise AssertionError("a spec runs no image")


def stages(graph: Graph, spec: VDeviceSpec, policy: str = "wavefront") -> Compilation:
    """The compilation of a graph, by estimates; `.planned` is its last stage."""
    how = CompileOptions(tune_seconds=0)
    return Compilation(graph, SpecOnly(spec), REGISTRY.policy(policy), how, registry=REGISTRY)


def operations(graph: Graph, spec: VDeviceSpec) -> list[Operation]:
    """The distinct operations of a graph after all passes."""
    return list(dict.fromkeys(op.operation for op in stages(graph, spec).optimized.graph.operators))


def problem_of(graph: Graph, spec: VDeviceSpec, policy: str, *, offer: bool = False) -> Problem:
    """The problem of a graph that is optimized already; with `offer`, the policy may make operators of its own."""
    found = stages(graph, spec, policy)
    tuning = tuning_of(found.policy, graph, spec)
    problem = found.enter(Optimized(graph, graph, {}, frozenset(), tuning)).problem
    return problem if offer else replace(problem, offer=None)


def planned(graph: Graph, spec: VDeviceSpec, policy: str, *, offer: bool = False) -> ExecutionPlan:
    """The policy's plan of a graph that is optimized already."""
    return REGISTRY.policy(policy).schedule(problem_of(graph, spec, policy, offer=offer))
