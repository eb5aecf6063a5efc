"""The kit on HIP whose waves have 32 threads; tests/conformance/test_builtin.py has those of 64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rammer.plugins import PluginRegistry
from rammer.testing import VDeviceConformance
from rammer.vdevice.base import VDevice


class TestRocmWave32(VDeviceConformance):
    vdevice = "rocm"
    emulated = True

    @pytest.fixture(scope="class")
    @classmethod
    def opened(cls, registry: PluginRegistry) -> Iterator[VDevice]:
        vdevice = registry.open("rocm", arch="gfx1100", device="emulator:4")
        assert vdevice.spec.subgroup_size == 32
        yield vdevice
