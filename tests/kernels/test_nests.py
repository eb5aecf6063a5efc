"""Nests that cases of an rTask's number have in common: printed once, and as right as when each case had its own."""

from __future__ import annotations

import re

import pytest
from kernel_harness import SLOW_SPEC, SPEC, check_compiled, compile_all, operation

from rammer.ir.operator import Operation
from rammer.ir.tensor import TensorType, channel_blocked
from rammer.kernels import candidates
from rammer.vdevice.cpu.codegen.emit import emit, function
from rammer.vdevice.cpu.codegen.nests import NestPrinter
from rammer.vdevice.cpu.codegen.prefetch import prefetched
from rammer.vdevice.cpu.codegen.printer import CpuPrinter


def row(channels: int, length: int, size: int, step: int, blocked: bool) -> Operation:
    layout = channel_blocked(3, 16) if blocked else None
    kinds = (TensorType((1, channels, length), layout=layout), TensorType((channels, channels, size)))
    pad = step * (size - 1) // 2
    return operation("conv", *kinds, static=("w",), out_layout=layout, pads=(pad, pad), dilations=(step,))


def image(height: int, width: int) -> Operation:
    blocked = channel_blocked(4, 16)
    kinds = (TensorType((1, 32, height, width), layout=blocked), TensorType((48, 32, 3, 3)))
    return operation("conv", *kinds, static=("w",), out_layout=blocked, pads=(1, 1, 1, 1))


CASES = {
    "row": row(8, 1003, 7, 1, blocked=False),
    "steps": row(8, 517, 11, 5, blocked=False),
    "blocked": row(32, 317, 7, 1, blocked=True),
    "narrow": row(32, 13, 11, 1, blocked=True),
    "image": image(27, 29),
    "flat": image(3, 61),
}


@pytest.mark.parametrize("name", CASES)
def test_all_tasks_are_right_and_touch_only_what_they_may(name: str) -> None:
    for spec in (SPEC, SLOW_SPEC):
        check_compiled(compile_all({name: (CASES[name], candidates(CASES[name], spec))}, spec, check=True), name)


@pytest.mark.parametrize("name", ["row", "steps", "blocked"])
def test_what_cases_have_in_common_is_printed_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long row has one nest, besides those at its two ends; and places in registers stay numbers of the text."""
    kernel = candidates(CASES[name], SLOW_SPEC)[-1]
    text = emit(kernel, SLOW_SPEC).text
    (called,) = set(re.findall(r"k_\w+_nest\d+", text))
    calls = text.count(f"{called}(") - 1
    assert calls > 1
    assert not re.search(r"_acc\[[^\]]*rammer_p", text)
    assert kernel.num_rtasks > 3
    monkeypatch.setattr(NestPrinter, "share", lambda *_: [])
    apart = function(CpuPrinter(prefetched(kernel.body, SLOW_SPEC), SLOW_SPEC.lanes)).text
    assert apart.count("splat(0.0f);") == text.count("splat(0.0f);") + calls - 1
