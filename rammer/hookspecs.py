"""Declare the hooks that a plugin may implement. Their docstrings are the plugin author's manual."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from rammer.ir.device import VDeviceSpec
    from rammer.ir.kernel import RKernel, Tuning
    from rammer.ir.operator import Operation
    from rammer.scheduler.policy import Policy
    from rammer.vdevice.base import VDeviceEntry

hookspec = pluggy.HookspecMarker("rammer")
hookimpl = pluggy.HookimplMarker("rammer")


@hookspec
def rammer_vdevices() -> Iterable[VDeviceEntry]:
    """Return the vDevices of this plugin. Called on every start: import no driver, open nothing."""
    raise AssertionError("a hook specification is never called")


@hookspec(warn_on_impl_args={"finer": DeprecationWarning("rammer_rkernels: finer is tuning.task_multiples now")})
def rammer_rkernels(
    operation: Operation, spec: VDeviceSpec, tuning: Tuning, finer: tuple[int, ...]
) -> Iterable[RKernel]:
    """Return candidate rKernels of `operation` in any language of `spec.languages`.

    Put your first choice first: measured times decide, and on ties the first one wins. Built-in plugins come before
    others, and these by name. The parameter `tuning` may be left out. If `tuning.task_multiples` is set, further
    candidates with so many times the usual number of rTasks are wanted, for a policy that splits operators.
    The parameter `finer` is an old name of these.
    """
    raise AssertionError("a hook specification is never called")


@hookspec
def rammer_policies() -> Mapping[str, Callable[..., Policy]]:
    """Return scheduling policies by the name used in RAMMER_POLICY and compile(policy=…).

    Fields of a dataclass by `option` are options of the policy, with a description of each value.
    """
    raise AssertionError("a hook specification is never called")
