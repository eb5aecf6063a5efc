"""Register the policy `list`; its module is imported when the policy is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rammer.plugin import Policy, hookimpl


@hookimpl
def rammer_policies() -> Mapping[str, Callable[[], Policy]]:
    """Return the policy by its name."""
    return {"list": _make}


def _make() -> Policy:
    from rammer_list_policy.policy import ListPolicy

    return ListPolicy()
