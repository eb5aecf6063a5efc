"""The kit on every built-in vDevice and policy."""

from __future__ import annotations

from typing import ClassVar

from rammer.testing import PolicyConformance, VDeviceConformance


class TestInterpreter(VDeviceConformance):
    vdevice = "interpreter"
    device = 4
    unsupported: ClassVar = {"test_profile_*": "its times would mean nothing"}


class TestCpu(VDeviceConformance):
    vdevice = "cpu"
    device = 2


class TestCpuAvx2(VDeviceConformance):
    vdevice = "cpu"
    device = 4
    arch = "x86-64-avx2@here"


class TestCpuAvx512Oversubscribed(VDeviceConformance):
    """More vEUs than most machines have cores."""

    vdevice = "cpu"
    device = 8
    arch = "x86-64-avx512@here"


class TestCpuAmx(VDeviceConformance):
    vdevice = "cpu"
    device = 2
    arch = "x86-64-amx@here"


class TestCuda(VDeviceConformance):
    """A real GPU; skipped with the reason where there is none."""

    vdevice = "cuda"


class TestCudaEmulator(VDeviceConformance):
    """The text for a GPU on the host: blocks take turns in one OS thread."""

    vdevice = "cuda"
    device = "emulator:4"
    emulated = True


class TestRocmEmulator(VDeviceConformance):
    """The text for an AMD GPU on the host, with waves of 64 threads."""

    vdevice = "rocm"
    device = "emulator:4"
    emulated = True


class TestSequential(PolicyConformance):
    policy = "sequential"


class TestRoundRobin(PolicyConformance):
    policy = "round_robin"


class TestWavefront(PolicyConformance):
    policy = "wavefront"


class TestAlgorithm1(PolicyConformance):
    policy = "wavefront:beyond=off"


class TestGlobalBarriers(PolicyConformance):
    policy = "wavefront:sync=global"


class TestRammerBaseK(PolicyConformance):
    policy = "sequential:kernels=selected"


class TestStationary(PolicyConformance):
    policy = "stationary"
