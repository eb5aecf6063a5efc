"""rKernels tried out in a child process: what is wrong with one is said, and this process goes on."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rammer
from rammer.compiler import Compilation
from rammer.compiler.candidates import difference, drop_wrong
from rammer.errors import DeviceError
from rammer.frontend.builder import GraphBuilder
from rammer.hookspecs import hookimpl
from rammer.ir.expr import Call, Const, Load, rewrite
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operations, attributes
from rammer.ir.ops import OPS
from rammer.ir.semantics.evaluate import evaluate_defined, evaluate_graph
from rammer.ir.semantics.rounding import Bounded
from rammer.ir.tensor import TensorType
from rammer.ir.tile import For, Kind, Store, TileProgram
from rammer.kernels import candidates
from rammer.plugins import PluginRegistry
from rammer.vdevice.cpu.device import CpuVDevice
from rammer.vdevice.cpu.tune import check

F = TensorType


@pytest.fixture
def device(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> CpuVDevice:
    monkeypatch.setenv("RAMMER_CACHE_DIR", str(tmp_path / "cache"))
    return CpuVDevice(device=2)


def kernels_of(device: CpuVDevice, kind: str, *types: TensorType, **attrs: Any) -> list[RKernel]:
    return candidates(Operations(OPS).define(kind, types, attributes(**attrs)), device.spec)


def changed(node: Any, change: Any) -> Any:
    """A body with every store replaced by change(store)."""
    if isinstance(node, tuple):
        return tuple(changed(part, change) for part in node)
    if isinstance(node, Store):
        return change(node)
    for field in ("body", "then"):
        if hasattr(node, field):
            return replace(node, **{field: changed(getattr(node, field), change)})
    return node


def broken(kernel: RKernel, change: Any, name: str) -> RKernel:
    body = kernel.body
    assert isinstance(body, TileProgram)
    return replace(kernel, name=name, schedule=name, body=replace(body, body=changed(body.body, change)))


def inputs_of(kernel: RKernel) -> Any:
    with check.Seeds() as seeds:
        return check.sample(kernel.operation, kernel.input_types(), None, seeds).inputs


def other_value(store: Store) -> Store:
    return replace(store, value=Call("add", (store.value, store.value)))


def far_away(store: Store) -> Store:
    return replace(store, value=rewrite(store.value, lambda ld: Load(ld.tensor, (ld.index[0] + (1 << 40),))))


def just_past(store: Store) -> Store:
    """Reads less than a page behind the end."""
    return replace(store, value=rewrite(store.value, lambda ld: Load(ld.tensor, (ld.index[0] + 600,))))


def writes_past(store: Store) -> Store:
    return replace(store, index=store.index + 600)


@pytest.mark.parametrize(
    ("kind", "types", "attrs"),
    [
        ("softmax", (F((75, 29)),), {"axis": 1}),
        ("matmul", (F((37, 96)), F((96, 75))), {}),
        ("conv", (F((1, 20, 17, 29)), F((24, 20, 3, 3))), {"pads": (1, 1, 1, 1)}),
        ("gru_cell", (F((3, 3, 75)), F((3, 75)), F((3, 75, 75))), {"linear_before_reset": False}),
        ("gather", (F((40, 29)), F((7,), rammer.ir.tensor.DType.I64)), {"axis": 0}),
        ("log", (F((640, 3)),), {}),
        ("log", (F(()),), {}),
        ("matmul", (F((3, 0)), F((0, 5))), {}),
    ],
)
def test_sound_kernels_pass(device: CpuVDevice, kind: str, types: Any, attrs: Any) -> None:
    kernels = kernels_of(device, kind, *types, **attrs)
    assert kernels and not device.rkernels_wrong(kernels)
    assert not device.rkernels_wrong(kernels, every=frozenset(kernels))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (other_value, "should be"),
        (far_away, "SIGSEGV"),
        (just_past, "SIGSEGV|should be"),
        (writes_past, "SIGSEGV|not written"),
    ],
)
def test_wrong_kernels_are_named(device: CpuVDevice, change: Any, what: str) -> None:
    (good, *_) = kernels_of(device, "relu", F((75, 640)))
    bad = broken(good, change, "bad")
    found = device.rkernels_wrong([bad, good])
    assert set(found) == {bad}
    assert any(part in found[bad] for part in what.split("|"))
    with pytest.MonkeyPatch.context() as patch:  # from the cache, without another trial
        patch.setattr(check, "try_out", lambda tried: pytest.fail("tried again"))
        assert device.rkernels_wrong([bad, good]) == found


@pytest.mark.parametrize("change", [just_past, writes_past])
def test_one_vector_out_of_bounds_is_enough(device: CpuVDevice, change: Any) -> None:
    """Where all sampled values come from inside, too: a tensor of one rTask, that is moved by its own size."""
    (good, *_) = kernels_of(device, "relu", F((600,)))
    bad = broken(good, change, "bad")
    assert "SIGSEGV" in device.rkernels_wrong([bad, good])[bad]


def test_what_is_not_written_is_no_nan(device: CpuVDevice) -> None:
    (good, *_) = kernels_of(device, "log", F((64,)))
    nan = np.array([np.nan, np.nan])
    sample = check.Sample({}, np.zeros((2, 1), np.int64), [], (Bounded(nan, np.zeros(2)),))
    computed, left = np.float32(np.nan), np.array(-1, np.int32).view(np.float32)
    trial = check.KernelTrial(good, 0, sample, (0,), None)  # type: ignore[arg-type]
    assert "[0] is not written" in check._differs(trial, [np.array([computed, left])])


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64", "int16"])
def test_integers_that_hold_no_such_number_are_not_compared(device: CpuVDevice, dtype: str) -> None:
    """Roots of negative numbers, and what is too large: an integer of these is anything; all others must be right."""
    registry = PluginRegistry(third_party=False)
    for kind, scale in (("sqrt", 3.0), ("log", 1e12), ("identity", 3.0 * np.iinfo(dtype).max)):
        builder = GraphBuilder("floats")
        x = builder.add("max", builder.input("x", (75, 64)), builder.input("w", (75, 64)))  # negative: one in four
        y = builder.add("mul", x if kind == "identity" else builder.add(kind, x), builder.constant(np.float32(scale)))
        builder.output(builder.add("cast", y, dtype=rammer.ir.tensor.DType(dtype)), "y")
        graph = builder.build()
        (kernels,) = Compilation(graph, device, registry=registry).candidates.kernels.values()
        assert not device.rkernels_wrong(kernels, every=frozenset(kernels))
        bad = [broken(k, lambda s: replace(s, value=Call("add", (s.value, Const(1)))), "bad") for k in kernels]
        assert set(device.rkernels_wrong(bad)) == set(bad)
        given = dict.fromkeys("xw", np.linspace(-1.0, 1.0, 75 * 64, dtype=np.float32).reshape(75, 64))
        values, defined = evaluate_defined(lambda: evaluate_graph(graph, given))  # noqa: B023
        assert 0 < defined["y"].sum() < 75 * 64
        other = np.where(defined["y"], values["y"], values["y"] + 1)
        assert difference(other, values["y"]) and not difference(other, values["y"], defined["y"])
        assert difference(values["y"] + 1, values["y"], defined["y"])


def test_what_depends_on_such_integers_is_not_compared() -> None:
    builder = GraphBuilder("shown")
    whole = builder.add("cast", builder.add("sqrt", builder.input("x", (4,))), dtype=rammer.ir.tensor.DType.I32)
    builder.output(builder.add("greater", whole, builder.constant(np.int32(1))), "y")
    builder.output(builder.add("mul", whole, builder.constant(np.int32(0))), "z")
    given = {"x": np.array([-1.0, 0.0, 9.0, np.inf], np.float32)}
    _, defined = evaluate_defined(lambda: evaluate_graph(builder.build(), given))
    assert defined["y"].tolist() == [False, True, True, False]
    assert defined["z"].all()


def test_no_memory_is_no_fault_of_a_kernel(device: CpuVDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOMEM, "memory cannot be mapped")

    monkeypatch.setattr(check, "TrialMemory", refuse)
    (good, *_) = kernels_of(device, "relu", F((64,)))
    with pytest.raises(DeviceError, match="cannot be tried out: Cannot allocate memory"):
        device.rkernels_wrong([good])


def test_large_operations_are_tried_out(device: CpuVDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    (good, *_) = kernels_of(device, "relu", F((96, 1 << 20)))  # 384 MiB, twice
    bad = broken(good, other_value, "bad")
    assert set(device.rkernels_wrong([bad, good])) == {bad}
    assert not device.rkernels_untried([bad, good])
    monkeypatch.setattr(check, "MOST_MAPPED", 1 << 29)
    other = replace(bad, origin="another plugin")  # of which the cache knows nothing
    assert "0.8 GiB" in device.rkernels_untried([other])[other] and not device.rkernels_wrong([other])


def test_all_rtasks_are_run_where_they_may_write_so_much(device: CpuVDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = max(kernels_of(device, "matmul", F((256, 64)), F((64, 640))), key=lambda k: k.num_rtasks)
    every = frozenset([kernel])
    counts: list[int] = []

    def count(tried: list[check.KernelTrial]) -> dict[RKernel, str]:
        counts.extend(len(trial.rtasks) for trial in tried)
        return {}

    monkeypatch.setattr(check, "try_out", count)
    monkeypatch.setattr(check, "POINTS", 1)
    assert not device.rkernels_untried([kernel], every=every)
    device.rkernels_wrong([kernel], every=every)
    monkeypatch.setattr(check, "MOST_WRITTEN", 512 << 10)
    assert not device.rkernels_untried([kernel])
    assert "only some" in device.rkernels_untried([kernel], every=every)[kernel]
    again = replace(kernel, origin="another plugin")
    device.rkernels_wrong([again], every=frozenset([again]))
    assert counts == [kernel.num_rtasks, 1] and kernel.num_rtasks > 1


def test_what_is_not_tried_out_is_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("RAMMER_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(check, "MOST_MAPPED", 1 << 10)
    with rammer.compile(relu_graph(), "cpu", tune_seconds=0) as program:
        assert "it is not tried out, as its tensors take 0.0 GiB" in str(program.report())


def test_a_kernel_that_does_not_come_back_is_named(device: CpuVDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    (good, *_) = kernels_of(device, "relu", F((8,)))
    monkeypatch.setattr(check, "PATIENCE_S", 0.3)
    body = good.body
    assert isinstance(body, TileProgram)
    endless: Any = changed(body.body, lambda s: replace(s, value=Call("add", (Load(s.buffer, (s.index,)), s.value))))
    for n in range(3):
        endless = (For(f"again{n}", 0, 1 << 20, Kind.SERIAL, endless),)
    slow = replace(good, schedule="slow", body=replace(body, body=endless))
    assert "did not come back" in device.rkernels_wrong([slow])[slow]


class Offers:
    """A plugin whose rKernel computes something else."""

    def __init__(self, only: bool) -> None:
        self.only = only

    @hookimpl
    def rammer_rkernels(self, operation: Any, spec: Any) -> list[RKernel]:
        if operation.kind != "relu":
            return []
        good = candidates(operation, spec)
        return [broken(k, other_value, f"a_{k.name}") for k in good] + ([] if self.only else good)


def relu_graph() -> Graph:
    builder = GraphBuilder("relu")
    builder.output(builder.add("relu", builder.input("x", (75, 64))), "y")
    return builder.build()


def test_compiling_leaves_wrong_kernels_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("RAMMER_CACHE_DIR", str(tmp_path))
    registry = PluginRegistry(third_party=False)
    registry.register(Offers(only=False), "offers")
    monkeypatch.setenv("RAMMER_DISABLE_PLUGINS", "")
    with rammer.compile(relu_graph(), "cpu", registry=registry) as program:
        x = np.random.default_rng(0).standard_normal((75, 64)).astype(np.float32)
        np.testing.assert_array_equal(program.run({"x": x})["y"], np.maximum(x, 0))
        assert any("tried out" in note for note in str(program.report()).splitlines())


def test_no_kernel_is_right(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("RAMMER_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("rammer.vdevice.c_kernels.rammer_rkernels", lambda operation, spec: [])
    device = CpuVDevice(device=1)
    (good, *_) = kernels_of(device, "relu", F((75, 64)))
    bad = broken(good, other_value, "bad")
    with pytest.raises(DeviceError, match=r"relu .*: no rKernel .* is right: bad"):
        drop_wrong({good.operation: [bad]}, device, 1, lambda *_: None)


def test_differences_are_said() -> None:
    one = np.ones((2, 3), np.float32)
    assert not difference(one, one) and not difference(one + 1e-6, one)
    assert "[1, 2] is 2.0, not 1.0" in difference(np.array([[1, 1, 1], [1, 1, 2]], np.float32), one)
    assert "float64" in difference(one.astype(np.float64), one)
    nan = np.array([np.nan, 1.0], np.float32)
    assert not difference(nan, nan) and difference(nan, np.ones(2, np.float32))
