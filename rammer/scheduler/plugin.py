"""The built-in policies, announced as any plugin's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rammer.hookspecs import hookimpl
from rammer.scheduler.auto import AutoPolicy
from rammer.scheduler.graphturbo.policy import GraphTurboPolicy
from rammer.scheduler.list_policy import ListPolicy
from rammer.scheduler.policy import Policy
from rammer.scheduler.round_robin import RoundRobinPolicy
from rammer.scheduler.sequential import SequentialPolicy
from rammer.scheduler.stationary import StationaryPolicy
from rammer.scheduler.wavefront import WavefrontPolicy


@hookimpl
def rammer_policies() -> Mapping[str, Callable[..., Policy]]:
    policies = (SequentialPolicy, RoundRobinPolicy, WavefrontPolicy, ListPolicy, StationaryPolicy, GraphTurboPolicy)
    return {p.name: p for p in (*policies, AutoPolicy)}
