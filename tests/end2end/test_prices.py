"""Prices by where operands are, through compile, reports and saved programs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rammer
from rammer.frontend.builder import GraphBuilder
from rammer.ir.graph import Graph
from rammer.plugins import PluginRegistry
from rammer.scheduler.timeline import simulate


def network() -> Graph:
    net = GraphBuilder()
    x = net.input("x", (4, 256))
    for _ in range(3):
        weights = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32) / 16
        x = net.add("relu", net.add("matmul", x, net.constant(weights)))
    net.output(x)
    return net.build()


def test_a_measured_plan_says_from_where_its_operands_come(tmp_path: Path) -> None:
    with rammer.compile(network(), "cpu", device=2) as program:
        plan, report = program.plan, program.report()
        assert set(plan.prices) == set(plan.kernels)
        for kernel, price in plan.prices.items():
            assert 0 < price.warm_us <= plan.rtask_us[kernel]
        timeline = simulate(plan)
        assert report.moved == timeline.moved and report.estimated_us == timeline.total_us
        operands = sum(
            t.nbytes for k in plan.kernels for t in (*k.input_types(), *k.operation.outputs)
        )  # each at least once
        assert sum(report.moved.values()) >= 0.99 * operands
        assert "operands, estimated" in str(report)
        program.save(tmp_path / "p.rammer")
    with rammer.load(tmp_path / "p.rammer") as loaded:
        assert loaded.report().moved == report.moved


def test_where_nothing_is_measured_nothing_is_followed() -> None:
    with rammer.compile(network(), "cpu", device=2, tune_seconds=0) as program:
        assert not program.plan.prices and not program.report().moved
    with rammer.compile(network(), "interpreter") as program:
        assert not program.plan.prices and "MiB from" not in str(program.report())


def test_compile_changes_no_vdevice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another precision is another vDevice: the one that was opened is as it was, and so is what it compiles then."""
    registry = PluginRegistry()
    device = registry.open("cpu", arch="x86-64-amx@here", device=2)
    monkeypatch.setattr(registry, "open", lambda *_, **__: device)
    monkeypatch.setattr(type(device), "close", lambda self: None)
    before = dict(vars(device))
    for precision in ("bf16", None):
        with rammer.compile(network(), "cpu", precision=precision, tune_seconds=0, registry=registry) as program:
            assert program.plan.spec == replace(before["spec"], precision=precision or "fp32")
        assert {name: vars(device)[name] for name in before} == before  # it may know more: its compiler
