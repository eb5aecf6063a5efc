"""Winograd convolutions: right at any shape and epilogues, within the dependencies, offered only where they pay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cpus import MadeUp, runnable
from kernel_harness import (
    SLOW_SPEC,
    SPEC,
    Runner,
    check_compiled,
    compile_all,
    operation,
    random_inputs,
)

from rammer.ir.analysis.dependency import reads
from rammer.ir.analysis.intervals import expand
from rammer.ir.device import VDeviceSpec
from rammer.ir.expr import Call, Const, Load, Stage
from rammer.ir.index import var
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.semantics.evaluate import evaluate_expr
from rammer.ir.tensor import TensorType, channel_blocked
from rammer.ir.tile import TileProgram
from rammer.ir.verify.kernel import prove
from rammer.kernels import candidates, winograd
from rammer.kernels.problem import KernelProblem
from rammer.kernels.vectors import winograd_schedule

SMALL_CACHES = replace(SLOW_SPEC, scratch_bytes=256 << 10)  # so small that channels are summed piece by piece
NARROW = replace(SLOW_SPEC, arch=runnable("x86-64-avx2"), lanes=8, registers=16)


def conv(
    channels: int,
    outs: int,
    height: int,
    width: int,
    *,
    kernel: tuple[int, int] = (3, 3),
    strides: tuple[int, int] = (1, 1),
    group: int = 1,
    pad: int = 1,
    batch: int = 1,
    lanes: int = 16,
    residual: bool = False,
    bias: bool = True,
) -> Operation:
    blocked = channel_blocked(4, lanes)
    x = TensorType((batch, channels, height, width), layout=blocked)
    types = [x, TensorType((outs, channels // group, *kernel))] + [TensorType((outs,))] * bias
    attrs = {"strides": strides, "pads": (pad,) * 4, "group": group}
    made = operation("conv", *types, static=("w", "bias"), out_layout=blocked, **attrs)
    return with_residual(made) if residual else made


def with_residual(op: Operation) -> Operation:
    """relu(conv + r), as the fusion pass makes it."""
    expr = op.expr
    ((out, kind),) = expr.outputs
    own = tuple(var(a) for a, _ in expr.root.axes)
    total = Stage("total", expr.root.axes, Call("max", (Load(out, own) + Load("r", own), Const(0.0))))
    expr = replace(expr, inputs=(*expr.inputs, ("r", kind)), stages=(*expr.stages, total), outputs=(("total", kind),))
    return replace(op, expr=expr, static=(*op.static, False))


def kernels(op: Operation, spec: VDeviceSpec = SLOW_SPEC) -> list[RKernel]:
    """All Winograd kernels of an operation, whether or not they pay."""
    problem = KernelProblem.of(op, spec, flat=False)
    return [form.problem.kernel(form.schedule) for form in winograd_schedule.schedules(problem)]


CASES = {
    "even": conv(64, 64, 16, 16, residual=True),
    "odd": conv(32, 64, 13, 7, residual=True, bias=False),
    "no-padding": conv(32, 32, 11, 10, pad=0),
    "wide-padding": conv(32, 32, 9, 6, pad=2),
    "groups": conv(128, 128, 14, 14, group=4),
    "groups-few-tiles": conv(64, 128, 6, 6, group=2, batch=2, residual=True),
    "5x5": conv(32, 32, 12, 11, kernel=(5, 5), pad=2, residual=True),
    "3x5-groups": conv(64, 64, 9, 10, kernel=(3, 5), group=2),
    "7x7-stride": conv(32, 32, 17, 19, kernel=(7, 7), strides=(2, 2), pad=3),
    "11x6-stride": conv(32, 32, 30, 13, kernel=(11, 6), strides=(2, 1), pad=4),
    "tail-channels": conv(40, 56, 9, 9),
}


@pytest.fixture(scope="module")
def built():  # type: ignore[no-untyped-def]
    found = {name: (op, kernels(op)) for name, op in CASES.items()}
    found["pieces"] = (op := conv(128, 64, 12, 12, residual=True), kernels(op, SMALL_CACHES))
    return compile_all(found, check=True)


@pytest.mark.parametrize("name", [*CASES, "pieces"])
def test_values_and_boxes(built, name: str) -> None:  # type: ignore[no-untyped-def]
    check_compiled(built, name)


def test_narrow_vectors() -> None:
    op = conv(32, 48, 10, 9, lanes=8)
    check_compiled(compile_all({"narrow": (op, kernels(op, NARROW))}, NARROW, check=True), "narrow")


@pytest.mark.parametrize(
    ("cpu", "op"),
    [
        (MadeUp("x86-64-avx512", 2, 1024), conv(32, 32, 21, 37, kernel=(11, 21), strides=(2, 1), pad=5)),
        (MadeUp("x86-64-avx512", 3, 512), conv(96, 96, 19, 11, kernel=(6, 5), group=2, pad=3, residual=True)),
        (MadeUp("x86-64-avx2", 3, 256), conv(24, 40, 10, 23, kernel=(3, 11), lanes=8, batch=2)),
    ],
    ids=["11x21", "groups", "rest"],
)
def test_parts_of_channels_where_a_row_has_several_pieces(cpu: MadeUp, op: Operation) -> None:
    problem = KernelProblem.of(op, replace(cpu.spec, clock_ghz=1e-5), flat=False)
    found = winograd.convolution(problem)
    assert found is not None and found.columns.pieces > 1
    forms = winograd_schedule.forms(problem)
    entries = {dict(f.problem.expr.stage("xm").reduce)["cc"]: f for f in forms}
    assert min(entries) < found.depth * found.columns.pieces  # parts, of a few channels each
    assert min(entries) % (problem.lanes * found.columns.pieces) == 0
    form = entries[min(entries)]
    kernel = form.problem.kernel(form.schedule)
    assert kernel.scratch_bytes <= cpu.spec.scratch_bytes
    check_compiled(compile_all({"parts": (op, [kernel])}, problem.spec, check=True), "parts")


def test_offered_for_long_filters_where_all_channels_fit_no_scratch() -> None:
    """The second convolution of DeepSpeech2, either way around: weights of all channels take 516 KB."""
    spec = MadeUp("x86-64-avx512", 8, 1024).spec
    for shape, filters in (((150, 86), (21, 11)), ((86, 150), (11, 21))):
        op = conv(32, 32, *shape, kernel=filters, strides=(2, 1), pad=10)
        forms = winograd_schedule.schedules(KernelProblem.of(op, spec, flat=False))
        offered = [f.problem.kernel(f.schedule) for f in forms]
        assert offered and all(kernel.scratch_bytes <= spec.scratch_bytes for kernel in offered)
        assert not prove(replace(offered[0], form=forms[0].problem.expr))  # of hundreds of thousands of terms


@pytest.mark.parametrize("name", CASES)
def test_reads_only_what_the_dependencies_say(built, name: str) -> None:  # type: ignore[no-untyped-def]
    op, found = built.kernels[name]
    inputs = random_inputs(op)
    for kernel, symbol in found:
        runner = Runner(kernel, built.library, symbol, inputs)
        clean = runner.arrays[0].copy()
        wanted = runner.run()[0].copy()
        for task in sorted({0, kernel.num_rtasks // 2, kernel.num_rtasks - 1}):
            runner.arrays[0][...] = np.nan
            seen = expand(reads(kernel, 0, task))
            runner.arrays[0][seen] = clean[seen]
            runner.outputs[0][...] = np.nan
            runner(task)
            box = kernel.box(task)
            inside = tuple(slice(*box[a]) for a, _ in op.expr.root.axes)
            np.testing.assert_array_equal(runner.results()[0][inside], wanted[inside])


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("name", ["odd", "groups-few-tiles", "5x5", "7x7-stride"])
def test_rewriting_keeps_the_meaning(name: str, m: int) -> None:
    op = CASES[name]
    problem = KernelProblem.of(op, SPEC, flat=False)
    found = winograd.convolution(problem)
    assert found is not None
    inputs = random_inputs(op)
    (wanted,) = evaluate_expr(op.expr, inputs)
    (got,) = evaluate_expr(winograd.rewritten(problem, found, m, found.depth), inputs)
    np.testing.assert_allclose(got, wanted, atol=1e-5 * np.abs(wanted).max())


def test_offered_where_it_pays_alone_where_that_is_certain() -> None:
    def kinds(op: Operation) -> set[str]:
        return {k.name.split("_")[0] for k in candidates(op, SPEC)}

    large = conv(256, 256, 16, 16, group=4)
    assert kinds(large) == {"winograd"}
    assert kinds(conv(112, 224, 13, 13)) == {"winograd", "conv"}
    assert kinds(conv(64, 64, 4, 4)) == {"conv"}
    scratch_only = replace(SPEC, memory=tuple(replace(level, managed="scratch") for level in SPEC.memory))
    direct = replace(SPEC, no_winograd=True)
    for op, spec in ((conv(64, 64, 4, 4), SPEC), (large, scratch_only), (large, direct)):
        assert {k.form for k in candidates(op, spec)} == {None}


@pytest.mark.parametrize("room", [256 << 10, 1 << 20])
def test_scratch_fits(room: int) -> None:
    for op in (conv(1024, 1024, 32, 32, group=16), conv(256, 256, 14, 14), conv(64, 64, 56, 56, batch=4)):
        found = kernels(op, replace(SPEC, scratch_bytes=room))
        assert found and all(isinstance(k.body, TileProgram) and k.scratch_bytes <= room for k in found)


def test_forms_that_multiply_as_often_are_not_tried() -> None:
    """3x3 taps in steps of two are four pieces, which multiply as often together; 5x5 taps save some."""
    assert winograd_schedule.kernels(KernelProblem.of(conv(64, 64, 56, 56), SPEC))[0]
    assert not winograd_schedule.kernels(KernelProblem.of(conv(64, 64, 56, 56, strides=(2, 2)), SPEC))[0]
    for taps, saves in ((3, False), (5, True)):
        op = conv(64, 64, 56, 56, kernel=(taps, taps), strides=(2, 2))
        found = winograd.convolution(KernelProblem.of(op, SPEC, flat=False))
        assert found and winograd_schedule._saves_products(found) == saves


@pytest.mark.parametrize("veus", [2, 3])
def test_register_blocks_end_with_their_group(veus: int) -> None:
    """Three vectors do not divide 64 outputs of a group of 192: the last block read channels of two groups."""
    cpu = MadeUp("x86-64-avx2", veus, 1024)
    op = conv(384, 384, 12, 12, group=2, lanes=8)
    forms = winograd_schedule.forms(KernelProblem.of(op, cpu.spec, flat=False))
    assert any(form.schedule.name.startswith("winograd_f4_") and "strips" in form.schedule.name for form in forms)
