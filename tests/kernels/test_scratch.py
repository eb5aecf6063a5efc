"""Whatever the extents, some rKernel fits the least scratch that a vEU may have, and computes the expression."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from kernel_harness import SPEC, check_compiled, compile_all, operation

from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.ir.operator import Operation, Operations, attributes
from rammer.ir.ops import OPS
from rammer.ir.tensor import DType, TensorType, channel_blocked
from rammer.kernels import candidates
from rammer.passes.fusion.compose import Member, compose

LEAST = 64 << 10  # bytes of scratch of a CPU's vEU, however small its caches


def least(lanes: int, num_veus: int) -> VDeviceSpec:
    """A CPU with small caches, so slow that everything is cut into tasks."""
    caches = (MemoryLevel("L1", 32 << 10, "veu", 500.0), MemoryLevel("L2", 2 * LEAST, "veu", 250.0))
    return replace(
        SPEC,
        lanes=lanes,
        registers=32 if lanes == 16 else 16,
        num_veus=num_veus,
        scratch_bytes=LEAST,
        memory=caches,
        clock_ghz=1e-5,
    )


def t(*shape: int, dtype: DType = DType.F32) -> TensorType:
    return TensorType(shape, dtype)


def lstm(batch: int, hidden: int, dtype: DType = DType.F32) -> Operation:
    state = t(batch, hidden, dtype=dtype)
    gates, weights = t(batch, 4, hidden, dtype=dtype), t(4, hidden, hidden, dtype=dtype)
    return operation("lstm_cell", gates, state, state, weights, static=("r",))


def gru(batch: int, hidden: int, late: bool, dtype: DType = DType.F32) -> Operation:
    gates, weights = t(batch, 3, hidden, dtype=dtype), t(3, hidden, hidden, dtype=dtype)
    state = t(batch, hidden, dtype=dtype)
    return operation("gru_cell", gates, state, weights, static=("r",), linear_before_reset=late)


def shown(axis: int, *shape: int) -> Operation:
    """A softmax and what follows it, both of them outputs."""
    made = Operations(OPS)
    first = made.define("softmax", (t(*shape),), attributes(axis=axis))
    members = (Member(first, ((-1, 0),)), Member(made.define("relu", (t(*shape),)), ((0, 0),)))
    outputs = ((0, 0), (1, 0))
    return made.wrap("softmax+relu", (members, outputs), lambda: compose(members, outputs))


ROWS = (
    *((1, 21, 224, 224), (1, 2, 512, 512), (1, 80, 3000), (1, 12, 512, 512), (200_000,), (3, 200_000), (200_000, 3)),
    *((3, 70_000, 20), (2, 3, 5, 7, 11), (1, 1, 1, 1, 100_003), (4, 9000)),
)


def rows() -> Iterator[Operation]:
    """Everything that reads an axis more than once, along every axis."""
    for shape in ROWS:
        for axis in range(len(shape)):
            for dtype in (DType.F32, DType.F64, DType.BF16):
                yield operation("softmax", t(*shape, dtype=dtype), axis=axis)
            yield operation("log_softmax", t(*shape), axis=axis)
            yield operation("layer_norm", t(*shape), t(*shape[axis:]), axis=axis)
            yield operation("arg_max", t(*shape), axis=axis)
            for fn in ("sum", "l2", "log_sum_exp"):
                yield operation("reduce", t(*shape), fn=fn, axes=(axis,), keepdims=True)


def products() -> Iterator[Operation]:
    for batch in (1, 3, 33, 128, 256):
        for hidden in (40, 256, 512, 1000, 2048):
            for dtype in (DType.F32, DType.F64):
                yield lstm(batch, hidden, dtype)
                yield gru(batch, hidden, True, dtype)
                yield gru(batch, hidden, False, dtype)
    yield gru(3, 3500, False)
    yield gru(3, 20_000, True)
    yield lstm(3, 20_000)
    for m, k, n in ((1, 4096, 4096), (512, 512, 512), (7, 100_003, 3), (100_003, 7, 3), (3, 7, 100_003)):
        for dtype in (DType.F32, DType.F64):
            yield operation("matmul", t(m, k, dtype=dtype), t(k, n, dtype=dtype), static=("b",))
            yield operation("matmul", t(m, k, dtype=dtype), t(k, n, dtype=dtype))


def windows() -> Iterator[Operation]:
    for channels, size, window in ((3, 224, 7), (64, 56, 3), (512, 14, 3), (2048, 7, 1), (256, 56, 3)):
        weights, pads = t(64, channels, window, window), (window // 2,) * 4
        for dtype in (DType.F32, DType.F64):
            x, w = t(1, channels, size, size, dtype=dtype), replace(weights, dtype=dtype)
            yield operation("conv", x, w, pads=pads)
            yield operation("conv", x, w, static=("w",), pads=pads)
        yield operation("lrn", t(1, channels, size, size), size=5)
    for channels, size in ((64, 56), (512, 14), (256, 56)):
        blocked = channel_blocked(4, 16)
        x = TensorType((1, channels, size, size), layout=blocked)
        yield operation("conv", x, t(64, channels, 3, 3), static=("w",), pads=(1,) * 4, out_layout=blocked)


@pytest.mark.parametrize(("lanes", "num_veus"), [(16, 2), (4, 8), (8, 1)])
@pytest.mark.parametrize("family", [rows, products, windows], ids=lambda f: f.__name__)
def test_every_candidate_fits(family, lanes: int, num_veus: int) -> None:
    spec = least(lanes, num_veus)
    for op in family():
        for kernel in candidates(op, spec):
            assert kernel.scratch_bytes <= LEAST, f"{kernel.name} of {op.kind} {op.inputs}"


RUN = {
    "softmax-middle": operation("softmax", t(1, 21, 60, 60), axis=1),
    "softmax-few": operation("softmax", t(1, 2, 100, 60), axis=1),
    "softmax-long-middle": operation("softmax", t(1, 3, 3001, 17), axis=2),
    "softmax-longer": operation("softmax", t(2, 40_001), axis=1),
    "softmax-longer-f64": operation("softmax", t(20_001, dtype=DType.F64), axis=0),
    "softmax-five": operation("softmax", t(2, 3, 31, 7, 11), axis=2),
    "softmax-shown": shown(1, 1, 21, 21, 30),
    "softmax-shown-columns": shown(0, 9, 5, 60),
    "log_softmax-columns": operation("log_softmax", t(3001, 3), axis=0),
    "layer_norm-longer": operation("layer_norm", t(2, 40_001), t(40_001), t(40_001), axis=1),
    "layer_norm-two": operation("layer_norm", t(3, 130, 301), t(130, 301), axis=1),
    "log_sum_exp": operation("reduce", t(21, 70, 70), fn="log_sum_exp", axes=(0,), keepdims=False),
    "log_sum_exp-outer": operation("reduce", t(5, 3000, 7), fn="log_sum_exp", axes=(0, 2), keepdims=False),
    "arg_max-outer": operation("arg_max", t(21, 150, 150), axis=0),
    "arg_max-middle": operation("arg_max", t(9, 50, 64), axis=1),
    "lstm-rows": lstm(70, 128),
    "lstm-rows-f64": lstm(37, 72, DType.F64),
    "gru-rows": gru(70, 136, False),
    "gru-rows-late": gru(97, 128, True),
    "lstm-units": lstm(2, 1500),
}


@pytest.fixture(scope="module")
def built():
    tight = replace(least(16, 3), scratch_bytes=6 << 10)
    kernels = {name: (op, candidates(op, tight)) for name, op in RUN.items()}
    assert all(k.scratch_bytes <= tight.scratch_bytes for _, found in kernels.values() for k in found)
    return compile_all(kernels, check=True)


@pytest.mark.parametrize("name", RUN)
def test_pieces_add_up_to_the_whole(built, name: str) -> None:
    check_compiled(built, name, rtol=1e-4)
