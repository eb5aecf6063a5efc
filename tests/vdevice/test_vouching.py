"""What caches vouch for: an rKernel's content, whoever offers it and whatever it is called."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rammer
from rammer import config, hookimpl
from rammer.errors import DeviceError
from rammer.frontend.builder import GraphBuilder
from rammer.ir.expr import Call, Const
from rammer.ir.graph import Graph
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.tensor import Digit, Layout
from rammer.ir.tile import For, Store, TaskDigit, TileProgram
from rammer.kernels import candidates
from rammer.plugins import PluginRegistry
from rammer.vdevice.cpu.device import CpuVDevice
from rammer.vdevice.profiles import recipe_keys

SIZE, TILE = 600, 75
RELU = """
void relu(char *const *args, char *scratch, long rtask, int *status) {
  float *y = (float *)args[0] + rtask * 75;
  const float *x = (const float *)args[1] + rtask * 75;
  for (int i = 0; i < 75; i++) y[i] = x[i] > 0 ? x[i] : %s;
}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[None]:
    with config.override(RAMMER_CACHE_DIR=str(tmp_path / "cache"), RAMMER_DISABLE_PLUGINS=""):
        yield


def relu_graph() -> Graph:
    builder = GraphBuilder("relu")
    builder.output(builder.add("relu", builder.input("x", (SIZE,))), "y")
    return builder.build()


class Offers:
    """A plugin with one rKernel for relu, always under the same name and schedule."""

    def __init__(self, wrong: bool, foreign: bool) -> None:
        self.wrong, self.foreign = wrong, foreign

    @hookimpl
    def rammer_rkernels(self, operation: Any, spec: Any) -> list[RKernel]:
        good = candidates(operation, spec)[0]
        if self.foreign:
            digits = (TaskDigit(operation.expr.root.axes[0][0], TILE, SIZE // TILE, 1),)
            body: Any = ForeignSource("c", "relu", RELU % ("1" if self.wrong else "0"), digits)
        else:
            body = doubled(good.body) if self.wrong else good.body
        return [replace(good, name="mine", body=body)]


def doubled(body: Any) -> Any:
    if isinstance(body, Store):
        return replace(body, value=Call("mul", (body.value, Const(2.0))))
    if isinstance(body, tuple):
        return tuple(map(doubled, body))
    return replace(body, body=doubled(body.body)) if isinstance(body, TileProgram | For) else body


def compiled(plugin: Offers, monkeypatch: pytest.MonkeyPatch, tune_seconds: float) -> rammer.Program:
    """With this plugin's rKernels, and no others."""
    registry = PluginRegistry(third_party=False)
    registry.register(plugin, "mine", "toys 1.0")
    own = registry.rkernels
    monkeypatch.setattr(registry, "rkernels", lambda *given: [k for k in own(*given) if k.origin])
    return rammer.compile(relu_graph(), "cpu", device=2, registry=registry, tune_seconds=tune_seconds)


@pytest.mark.parametrize("tune_seconds", [0, 1])
@pytest.mark.parametrize("foreign", [False, True])
def test_a_body_that_has_changed_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, foreign: bool, tune_seconds: float
) -> None:
    """Name, schedule, operation, packing and plugin are the same: an old entry does not vouch for it."""
    x = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)
    for _ in range(2):
        with compiled(Offers(False, foreign), monkeypatch, tune_seconds) as program:
            np.testing.assert_array_equal(program.run({"x": x})["y"], np.maximum(x, 0))
            notes = [note for note in program.plan.notes if "foreign" in note]
            assert notes == ["mine of plugin mine toys 1.0 is foreign text: tried out and not proven"] * foreign
        with pytest.raises(DeviceError, match=r"mine of plugin mine toys 1.0: tried out, .* should be"):
            compiled(Offers(True, foreign), monkeypatch, tune_seconds)


def test_a_foreign_text_that_is_not_tried_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with config.override(RAMMER_CHECK="0"), compiled(Offers(True, True), monkeypatch, 1) as program:
        assert "mine of plugin mine toys 1.0 is foreign text: not proven" in program.plan.notes


def test_everything_that_decides_a_kernel_is_in_its_key() -> None:
    device = CpuVDevice(device=2)
    operation = relu_graph().operators[0].operation
    first, *_ = candidates(operation, device.spec)
    registry = PluginRegistry(third_party=False)
    registry.register(Offers(False, True), "mine", "toys 1.0")
    foreign = registry.rkernels(operation, device.spec)[-1]
    layout = Layout((Digit(0, 8), Digit(0, 1, 8)))
    same = [first, replace(first, name="other", schedule="other"), replace(first)]
    others = [
        replace(first, body=doubled(first.body)),
        replace(first, packing=(("x", layout),)),
        replace(first, form=operation.expr),
        replace(first, pipeline_depth=2),
        replace(first, origin="mine 1.1"),
        foreign,
        replace(foreign, origin="mine toys 1.1"),
        replace(foreign, body=replace(foreign.body, text=RELU % 3)),
        replace(foreign, body=replace(foreign.body, scratch_bytes=64)),
    ]
    keys = recipe_keys([*same, *others], device.spec)
    assert len({keys[k] for k in same}) == 1
    assert len(set(keys.values())) == 1 + len(others)
    assert not {*keys.values()} & {*recipe_keys(keys, replace(device.spec, num_veus=3)).values()}


def test_foreign_rtasks_that_exchange_their_boxes_are_wrong() -> None:
    """All of them together write what is right; who reads one box waits for its own rTask alone."""
    device = CpuVDevice(device=2)
    (operation,) = {op.operation for op in relu_graph().operators}
    digits = (TaskDigit(operation.expr.root.axes[0][0], TILE, SIZE // TILE, 1),)
    good = candidates(operation, device.spec)[0]
    right, exchanged = (
        replace(good, body=ForeignSource("c", "relu", text, digits))
        for text in (RELU % "0", (RELU % "0").replace("+ rtask *", f"+ (rtask + 1) % {SIZE // TILE} *"))
    )
    found = device.rkernels_wrong([right, exchanged], every=frozenset((right, exchanged)))
    assert list(found) == [exchanged] and "is not written" in found[exchanged]
