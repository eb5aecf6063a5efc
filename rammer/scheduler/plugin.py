"""Announce the built-in policies, as a plugin does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module

from rammer.hookspecs import hookimpl
from rammer.scheduler.policy import Policy

POLICIES = {  # by name the module in this package, and its class
    "sequential": ("policies.sequential", "SequentialPolicy"),
    "round_robin": ("policies.round_robin", "RoundRobinPolicy"),
    "wavefront": ("policies.wavefront", "WavefrontPolicy"),
    "stationary": ("policies.stationary", "StationaryPolicy"),
    "graphturbo": ("graphturbo.policy", "GraphTurboPolicy"),
    "auto": ("policies.auto", "AutoPolicy"),
}


class _Policies(Mapping[str, Callable[..., Policy]]):
    """Policies by name, each imported on first use: a compilation needs one."""

    def __getitem__(self, name: str) -> Callable[..., Policy]:
        module, made = POLICIES[name]
        found: Callable[..., Policy] = getattr(import_module(f"rammer.scheduler.{module}"), made)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(POLICIES)

    def __len__(self) -> int:
        return len(POLICIES)


BUILT_IN: Mapping[str, Callable[..., Policy]] = _Policies()


@hookimpl
def rammer_policies() -> Mapping[str, Callable[..., Policy]]:
    return BUILT_IN
