"""Images of the CPU vDevice: what they hold, and what loading refuses."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from handmade import ADD, Net, chain, foreign, make_plan, memory, reference

from rammer import config
from rammer.errors import ArtifactError, DeviceError
from rammer.ir.kernel import ForeignSource
from rammer.ir.tensor import Array
from rammer.vdevice.base import Image
from rammer.vdevice.cpu.device import CpuVDevice
from rammer.vdevice.cpu.runtime.executable import CpuExecutable
from rammer.vdevice.cpu.runtime.table import TABLE


def check(executable: CpuExecutable) -> None:
    x = {"x": np.linspace(-3, 3, 64, dtype=np.float32)}
    graph = chain()
    np.testing.assert_allclose(executable.run(x)["t5"], reference(graph, x)["t5"], rtol=1e-5)
    executable.close()


@pytest.fixture(scope="module")
def image() -> Image:
    device = CpuVDevice(device=2)
    return device.build(make_plan(chain(), device.spec))


def test_loading_compiles_nothing(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMMER_CC", "/no/such/compiler")
    monkeypatch.setenv("RAMMER_CACHE_DIR", "/no/such/cache")
    executable = CpuVDevice().load(replace(image, plan=None))
    check(executable)


def test_unaligned_weights_are_moved(image: Image) -> None:
    def shifted(a: Array) -> Array:
        raw = np.zeros(a.nbytes + 4, np.uint8)
        raw[4:] = a.reshape(-1).view(np.uint8)
        return raw[4:].view(a.dtype).reshape(a.shape)

    executable = CpuVDevice().load(replace(image, weights={n: shifted(a) for n, a in image.weights.items()}))
    check(executable)


@pytest.mark.parametrize("at", [0, 3, 9, 200])
def test_a_damaged_table_is_refused(image: Image, at: int) -> None:
    data = bytearray(image.files[TABLE])
    data[at] ^= 0xFF
    with pytest.raises(ArtifactError, match=r"damaged|this is rammer"):
        CpuVDevice().load(replace(image, files={**image.files, TABLE: bytes(data)}))


def test_loading_survives_any_flipped_byte(image: Image) -> None:
    """It loads, or is refused; never another exception, never a signal."""
    data = image.files[TABLE]
    header = int.from_bytes(data[:8], "little") + 8
    random = np.random.default_rng(0)
    for at in [*random.integers(0, header, 150), *random.integers(header, len(data), 50)]:
        flipped = bytearray(data)
        flipped[at] ^= 1 << int(random.integers(0, 8))
        with suppress(ArtifactError, DeviceError):
            CpuVDevice().load(replace(image, files={**image.files, TABLE: bytes(flipped)})).close()


def test_a_table_that_is_cut_short_is_refused(image: Image) -> None:
    data = image.files[TABLE]
    for size in (0, 7, 50, len(data) // 2, len(data) - 1):
        with pytest.raises(ArtifactError, match="damaged"):
            CpuVDevice().load(replace(image, files={**image.files, TABLE: data[:size]}))


def test_missing_parts_are_named(image: Image) -> None:
    code = next(n for n in image.files if n.endswith(".so") and n != "runtime.so")
    files = {n: f for n, f in image.files.items() if n != code}
    with pytest.raises(ArtifactError, match="lacks its file"):
        CpuVDevice().load(replace(image, files=files))
    with pytest.raises(ArtifactError, match="lacks its constant"):
        CpuVDevice().load(replace(image, weights={}))


def test_another_version_and_another_machine_are_refused(image: Image) -> None:
    with pytest.raises(
        ArtifactError, match=r"built as 'cpu-abi0-x86-64' by rammer .*; this is rammer .*, which runs 'cpu-abi\d+-"
    ):
        CpuVDevice().load(replace(image, fingerprint="cpu-abi0-x86-64"))
    with pytest.raises(ArtifactError, match="'cuda'"):
        CpuVDevice().load(replace(image, target="cuda"))


def test_a_program_for_another_machine_compiles_but_does_not_run() -> None:
    """The device that compiled it keeps it, to be saved; another one does not even load it."""
    with config.override(RAMMER_CC=None):
        other = CpuVDevice(arch="aarch64-neon" if CpuVDevice().spec.arch.startswith("x86") else "x86-64")
        image = other.build(make_plan(chain(), other.spec))
    assert all(f[:4] == b"\x7fELF" for n, f in image.files.items() if n.endswith(".so"))
    kept = other.load(image)
    with pytest.raises(DeviceError, match=r"the program is for .*this machine is") as caught:
        kept.run({})
    assert f'arch="{other.spec.arch}@here" emulates it' in caught.value.hint
    with pytest.raises(ArtifactError, match=r"the program is for .*this machine is"):
        CpuVDevice().load(image)


def test_a_plan_without_memory_and_a_foreign_language_are_refused() -> None:
    device = CpuVDevice(device=1)
    plan = make_plan(chain(1), device.spec)
    with pytest.raises(DeviceError, match="no memory"):
        device.build(replace(plan, memory=None))
    body = plan.kernels[0].body
    assert isinstance(body, ForeignSource)
    body = replace(body, language="cuda")
    with pytest.raises(DeviceError, match="'cuda'"):
        device.build(replace(plan, kernels=(replace(plan.kernels[0], body=body),)))


def test_foreign_kernels_may_have_equal_names() -> None:
    """Two texts that both define `add` and a helper."""
    net = Net()
    small = net.op("add", "x", "x")
    graph = net.graph(small)
    plan = make_plan(graph, CpuVDevice(device=1).spec)
    operation = plan.kernels[0].operation
    doubled = "static int helper(void) { return 2; }\n" + ADD.replace("a[i] + b[i]", "helper() * (a[i] + b[i])")
    again = net.op("add", small, "x")
    graph = net.graph(small, again)
    kernels = (foreign(operation, doubled), foreign(operation, ADD))
    programs = make_plan(graph, CpuVDevice(device=1).spec).programs
    device = CpuVDevice(device=1)
    plan = replace(plan, graph=graph, kernels=kernels, programs=programs, memory=memory(graph))
    executable = device.load(device.build(plan))
    x = np.linspace(-3, 3, 64, dtype=np.float32)
    got = executable.run({"x": x})
    np.testing.assert_allclose(got[small], 4 * x, rtol=1e-6)
    np.testing.assert_allclose(got[again], 5 * x, rtol=1e-6)
    executable.close()
