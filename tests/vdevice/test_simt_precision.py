"""Products that may be rounded: through `compile`, run under the emulator."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import rammer
from rammer.errors import DeviceError
from rammer.frontend.builder import GraphBuilder
from rammer.ir.graph import Graph
from rammer.ir.tensor import Array
from rammer.ir.tile import Apply, TileProgram, statements
from rammer.plugins import PluginRegistry


def network() -> tuple[Graph, Array, Array]:
    """relu(x·a)·b in rows and columns that tiles overhang, its input, and its value in float64."""
    random = np.random.default_rng(0)
    x, a, b = (random.standard_normal(s).astype(np.float32) for s in ((72, 128), (128, 136), (136, 40)))
    net = GraphBuilder()
    hidden = net.add("relu", net.add("matmul", net.input("x", x.shape), net.constant(a)))
    net.output(net.add("matmul", hidden, net.constant(b)))
    return net.build(), x, np.maximum(x.astype(np.float64) @ a, 0) @ b


@pytest.mark.parametrize(
    ("target", "arch", "precision", "used", "low", "high"),
    [
        ("cuda", "sm_75", "fp32", False, 0, 1e-6),
        ("cuda", "sm_90", "fp32", True, 0, 1e-6),
        ("cuda", "sm_90", "tf32", True, 1e-5, 1e-3),
        ("cuda", "sm_90", "bf16", True, 1e-4, 1e-2),
        ("rocm", "gfx906", "fp32", False, 0, 1e-6),
        ("rocm", "gfx90a", "fp32", True, 0, 1e-6),
        ("rocm", "gfx942", "bf16", True, 1e-4, 1e-2),
        ("rocm", "gfx1201", "bf16", True, 1e-4, 1e-2),
    ],
)
def test_errors_are_those_of_the_precision(
    target: str, arch: str, precision: str, used: bool, low: float, high: float
) -> None:
    """Within what rounding of the operands explains, and not less: the unit was used."""
    graph, x, wanted = network()
    options = {"device": "emulator:3", "arch": arch, "precision": precision}
    with rammer.compile(graph, target, tune_seconds=0, **options) as program:  # type: ignore[arg-type]
        bodies = [k.body for k in program.plan.kernels]
        applied = [s for b in bodies if isinstance(b, TileProgram) for s in statements(b.body) if isinstance(s, Apply)]
        assert any(s.instruction.multiplies for s in applied) == used
        error = np.abs(program(x) - wanted).max() / np.abs(wanted).max()
    assert low <= error < high


def test_the_default_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _, _ = network()
    monkeypatch.setenv("RAMMER_PRECISION", "bf16")
    with rammer.compile(graph, "cuda", device="emulator:3", tune_seconds=0) as program:
        assert program.plan.spec.precision == "bf16"


@pytest.mark.parametrize(
    ("target", "options", "precision"),
    [
        ("cpu", {"arch": "x86-64-avx2"}, "tf32"),
        ("cuda", {"arch": "sm_75"}, "tf32"),
        ("rocm", {}, "bf16"),
        ("cuda", {}, "fp16"),
    ],
)
def test_a_vdevice_that_cannot_says_so(target: str, options: dict[str, str], precision: str) -> None:
    graph, _, _ = network()
    device = None if target == "cpu" else "emulator"
    with pytest.raises(DeviceError, match=f"does not compute in '{precision}', but in fp32"):
        rammer.compile(graph, target, device=device, precision=precision, **options)  # type: ignore[arg-type]


def test_compiling_leaves_the_vdevice_as_it_is() -> None:
    """A plugin may open one object again and again: the precision of one compilation is not that of the next."""
    registry = PluginRegistry(third_party=False)
    device = registry.open("cuda", device="emulator:2")
    spec = device.spec
    entry = rammer.VDeviceEntry("shared", open=lambda **_: device)
    registry.register(SimpleNamespace(rammer_vdevices=rammer.hookimpl(lambda: [entry])), "vendor")
    graph, x, _ = network()
    options = {"registry": registry, "tune_seconds": 0}
    with rammer.compile(graph, "shared", precision="bf16", **options) as rounded:  # type: ignore[arg-type]
        assert device.spec is spec
        with rammer.compile(graph, "shared", **options) as exact:  # type: ignore[arg-type]
            assert (rounded.plan.spec.precision, exact.plan.spec.precision) == ("bf16", "fp32")
            assert not np.array_equal(rounded(x), exact(x))
