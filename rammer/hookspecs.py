"""The hooks a plugin may implement. Their docstrings are the plugin author's manual."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from rammer.ir.device import VDeviceSpec
    from rammer.ir.kernel import RKernel
    from rammer.ir.operator import Operation
    from rammer.scheduler.policy import Policy
    from rammer.vdevice.base import VDeviceEntry

hookspec = pluggy.HookspecMarker("rammer")
hookimpl = pluggy.HookimplMarker("rammer")


@hookspec
def rammer_vdevices() -> Iterable[VDeviceEntry]:
    """vDevices this plugin provides. Called on every start: import no driver, open nothing."""
    raise AssertionError("a hook specification is never called")


@hookspec
def rammer_rkernels(operation: Operation, spec: VDeviceSpec, finer: tuple[int, ...]) -> Iterable[RKernel]:
    """Candidate rKernels of `operation` in any language of `spec.languages`.

    Put first what you would choose: the profile decides, and of equals the first one wins. Built-in plugins come
    before others, and these by name. `finer` may be left out: how many times as many rTasks as usual further candidates
    shall have, for a policy that cuts operators into parts.
    """
    raise AssertionError("a hook specification is never called")


@hookspec
def rammer_policies() -> Mapping[str, Callable[..., Policy]]:
    """Scheduling policies by the name used in RAMMER_POLICY and compile(policy=…).

    Fields of a dataclass with metadata are options of the policy: the metadata say what each value means.
    """
    raise AssertionError("a hook specification is never called")
