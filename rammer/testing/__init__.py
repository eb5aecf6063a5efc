"""Test plugins: the conformance kit of the package `rammer-testing`, and the commands of its tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rammer_testing.conformance import PolicyConformance, RKernelConformance, VDeviceConformance

__all__ = ["PolicyConformance", "RKernelConformance", "VDeviceConformance"]


def __getattr__(name: str) -> Any:
    """Import the kit on first access: it needs pytest, and the commands of this package do not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rammer.testing.tools import conformance

    return getattr(conformance(), name)
