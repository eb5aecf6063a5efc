"""For plugin authors: the conformance kit, random graphs and plans."""

from rammer.testing.conformance import PolicyConformance, VDeviceConformance

__all__ = ["PolicyConformance", "VDeviceConformance"]
