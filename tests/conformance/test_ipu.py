"""The kit on a few tiles of an IPU under the emulator, with a vEU per tile and with one per worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from rammer.plugins import PluginRegistry
from rammer.testing import VDeviceConformance
from rammer.vdevice.base import VDevice


class TestIpu(VDeviceConformance):
    vdevice = "ipu"
    arch: ClassVar = "gc2:8"
    unsupported: ClassVar = {"test_fine_*": "tiles synchronise globally (§4.2.2 of the paper)"}

    @pytest.fixture(scope="class")
    @classmethod
    def opened(cls, registry: PluginRegistry) -> Iterator[VDevice]:
        answer = registry.vdevices()["ipu"][1].probe()
        if not answer.ok:
            pytest.skip(answer.reason)
        yield registry.open("ipu", arch=cls.arch, device="emulator")


class TestIpuWorkers(TestIpu):
    arch: ClassVar = "gc200:2x6"
