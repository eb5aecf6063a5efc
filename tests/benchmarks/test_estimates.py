"""Estimates of rTasks stay as close to an H200's times as they were when they were fitted. Nothing is compiled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.gpu import estimates
from benchmarks.gpu.estimates import Measured
from rammer.cost.estimate import estimated_us
from rammer.ir.device import VDeviceSpec
from rammer.ir.operator import Operations, attributes
from rammer.ir.ops import OPS
from rammer.ir.tensor import TensorType
from rammer.kernels import candidates

ROWS = estimates.read()
MOST = 0.165  # mean |measured / estimate - 1| of the programs; 0.157 when it was fitted


def off(rows: list[Measured], **other: float) -> float:
    specs: dict[str, VDeviceSpec] = {p: replace(estimates.spec_of(p), **other) for p in {row.program for row in rows}}
    found = estimates.errors(rows, np.array([row.estimated_us(specs[row.program]) for row in rows]))
    return float(np.mean([*found.values()]))


def test_the_mean_error_of_measured_rtasks() -> None:
    assert len({row.program for row in ROWS}) == 42 and off(ROWS) < MOST


@pytest.mark.parametrize("constant", ["start_us", "sync_us", "clock_ghz"])
def test_each_constant_is_needed(constant: str) -> None:
    """Half of it, or twice as much, makes estimates worse."""
    own = getattr(estimates.spec_of(ROWS[0].program), constant)
    assert all(off(ROWS, **{constant: own * times}) > off(ROWS) for times in (0.5, 2.0))


def test_models_that_were_not_fitted_are_as_close() -> None:
    assert np.mean([*estimates.held_out(ROWS).values()]) < MOST + 0.01


def test_stored_counts_give_the_estimate_of_the_rkernel() -> None:
    """Also that of one whose constants are resident."""
    spec = estimates.spec_of("")
    types = TensorType((1, 256)), TensorType((256, 512))
    operation = replace(Operations(OPS).define("matmul", types, attributes()), static=(False, True))
    for kernel in candidates(operation, spec):
        stored = estimates.counted(kernel, spec)
        for resident in (False, True):
            names = frozenset(stored["static"] if resident else ())
            found = estimates._of_json(stored["work"], frozenset(stored["stored"]))
            row = Measured("", "", "", 1, 0, 0, stored["threads"], stored["nbytes"], stored["arguments"], names, found)
            assert row.estimated_us(spec) == pytest.approx(estimated_us(kernel, spec, resident), rel=1e-3)


def test_the_command_prints_programs_and_operators() -> None:
    said = CliRunner().invoke(estimates.main, ["today_vit_tiny", "--held-out", "--most", "1"])
    assert said.exit_code == 0 and "mean of 5 programs" in said.output and "layer_norm" in said.output, said.output
