"""Every operator of every type it takes, at awkward shapes: every arch's compiler takes it, and it computes right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from kernel_harness import SLOW_SPEC, check_compiled, compile_all, operation

from rammer.errors import TypeMismatch
from rammer.ir.operator import Operation
from rammer.ir.ops import OPS
from rammer.ir.tensor import DType, TensorType
from rammer.ir.verify.kernel import prove
from rammer.kernels import candidates
from rammer.vdevice.cpu.codegen.compile import KernelCompiler, arch_flags
from rammer.vdevice.cpu.codegen.emit import emit, translation_unit
from rammer.vdevice.cpu.device import CpuVDevice
from rammer.vdevice.cpu.host import ARCHES, host
from rammer.vdevice.toolchain import INCLUDE, c_compiler, run

SHAPES = ((3, 37), (), (1,), (0,), (3, 0, 5), (1, 1, 1, 1, 1), (2, 1, 1, 1), (131,), (2, 3, 5, 7, 11), (70_001,))
IMAGES = ((1, 3, 9, 23), (2, 1, 1, 1), (1, 17, 1, 131), (3, 2, 5, 7, 11), (1, 5, 41))
PRODUCTS = (
    *(((7, 31), (31, 37)), ((1, 1), (1, 1)), ((3, 0), (0, 4)), ((0, 3), (3, 4)), ((13,), (13, 131)), ((131,), (131,))),
    *(((1, 3001), (3001, 3)), ((2, 1, 5, 8), (3, 8, 17)), ((1, 1, 1, 7, 1), (1, 19))),
)
CELLS = ((1, 1), (2, 7), (3, 33), (9, 16))
SPECIAL = {"clip": {"low": -1.0, "high": 2.0}, "leaky_relu": {"alpha": 0.1}, "elu": {"alpha": 0.5}}
SPECIAL |= {"selu": {"alpha": 1.5, "gamma": 1.1}, "hard_sigmoid": {"alpha": 0.2, "beta": 0.5}}
SPECIAL |= {"probe_spin": {"rounds": 3}, "order": {"count": 1}, "last_equal": {"count": 1}}
WITH_ATTRIBUTES = {
    *(
        "accumulate",
        "arg_max",
        "arg_min",
        "average_pool",
        "batch_norm",
        "bit_cast",
        "block_matmul",
        "cast",
        "concat",
        "conv",
        "exchange",
        "merge",
        "expand",
        "fold",
        "gather",
        "gather_elements",
        "gather_nd",
        "gru_cell",
    ),
    *("input_transform", "layer_norm", "log_softmax", "lrn", "lstm_cell", "matmul", "max_pool", "output_transform"),
    *("pad", "prelu", "probe_fill", "reduce", "resample", "descend"),
    *(
        "reshape",
        "resample_evenly",
        "round_blocks",
        "scatter",
        "slice",
        "stretch",
        "softmax",
        "transpose",
        "unfold",
        "unpack_bits",
        "unpack_blocks",
        "update",
    ),
    *("view_as_complex", "where"),
}
BINARY = {
    *("bit_and", "bit_or", "bit_xor", "shift_left", "shift_right"),
    *("add", "and", "div", "equal", "fmod", "greater", "greater_equal", "less", "less_equal", "max", "min", "mod"),
    *("mul", "or", "pow", "sub", "xor"),
}
FUNCTIONS = ("sum", "mean", "max", "min", "prod", "sum_square", "l1", "l2", "log_sum", "log_sum_exp")


def operations(dtype: DType) -> Iterator[Operation]:
    """Every operator at every awkward shape, with operands of a type; those of a kind come one after another."""

    def t(*shape: int, dtype: DType = dtype) -> TensorType:
        return TensorType(shape, dtype)

    def made(kind: str, *types: TensorType, static: tuple[str, ...] = (), **attrs: object) -> Iterator[Operation]:
        try:
            yield operation(kind, *types, static=static, **attrs)
        except TypeMismatch:
            return

    for kind in sorted(OPS.keys() - WITH_ATTRIBUTES):
        for shape in SHAPES:
            if kind in BINARY:
                yield from made(kind, t(*shape), t(*shape))
                yield from made(kind, t(*shape), t(*shape[-1:]))
                yield from made(kind, t(*shape[:-1], 1), t(*shape))
            else:
                yield from made(kind, t(*shape), **SPECIAL.get(kind, {}))
    for steps in (1, 2, 4):
        yield from made("exchange", t(3, *(2,) * steps, 7), steps=steps)
    yield from made("merge", t(3, 4, 14), steps=2, keep=True)
    yield from made("merge", t(3, 1, 24), steps=3, levels=3)
    yield from made("descend", t(3, 7), t(3, 5, dtype=DType.I32), t(9, 4, dtype=DType.I32), t(9))
    for shape in SHAPES:
        for target in DType:
            yield from made("cast", t(*shape), dtype=target)
            yield from made("bit_cast", t(*shape), dtype=target)
        yield from made("where", t(*shape[-1:], dtype=DType.BOOL), t(*shape), t())
        yield from made("prelu", t(*shape), t(*shape[-1:]))
        yield from made("batch_norm", t(*shape), *(t(*shape[1:2] or (1,)),) * 4)
        yield from made("expand", t(*shape), shape=(2, *shape))
        yield from made("reshape", t(*shape), shape=shape[::-1])
        yield from made("view_as_complex", t(*shape, 2))
        yield from made("probe_fill", shape=shape, value=1, dtype=dtype)
        rank = len(shape)
        yield from made("transpose", t(*shape), perm=tuple(range(rank))[::-1])
        steps = tuple(-1 if n % 2 else 2 for n in range(rank))
        part = tuple(e if n % 2 else -(-e // 2) for n, e in enumerate(shape))
        starts = tuple(max(e - 1, 0) if n % 2 else 0 for n, e in enumerate(shape))
        yield from made("slice", t(*shape), starts=starts, steps=steps, shape=part)
        for mode in ("constant", "reflect", "edge", "wrap"):
            yield from made("pad", t(*shape), pads=(1,) * rank + (2,) * rank, mode=mode)
        if rank:
            yield from made("gather_nd", t(*shape), t(7, rank, dtype=DType.I64))
        for axis in range(rank):
            yield from made("concat", t(*shape), t(*shape), t(*shape), axis=axis)
            yield from made("gather", t(*shape), t(2, 3, dtype=DType.I64), axis=axis)
            yield from made("gather", t(*shape), t(dtype=DType.I32), axis=axis)
            yield from made("gather_elements", t(*shape), t(*shape, dtype=DType.I64), axis=axis)
            for fn, reverse in (("sum", False), ("prod", True)):
                yield from made("accumulate", t(*shape), fn=fn, axis=axis, skipped=1, reverse=reverse)
            yield from made("resample", t(*shape), t(7, 2), t(7, 2, dtype=DType.I64), axis=axis)
            for kind in ("softmax", "log_softmax"):
                yield from made(kind, t(*shape), axis=axis)
            yield from made("layer_norm", t(*shape), t(*shape[axis:]), t(*shape[axis:]), axis=axis)
            for last in (False, True):
                yield from made("arg_max", t(*shape), axis=axis, keepdims=last, select_last_index=last)
                yield from made("arg_min", t(*shape), axis=axis, keepdims=last, select_last_index=last)
        for fn in FUNCTIONS:
            for axes in {(0,), (rank - 1,), tuple(range(rank)), (1, 2), (0, 2)}:
                if len(set(axes)) == len(axes) and all(0 <= a < rank for a in axes):
                    yield from made("reduce", t(*shape), fn=fn, axes=axes, keepdims=len(axes) == 1)
    places = (t(3, 5, 1, dtype=DType.I32), (0, -1, 2), "elements"), (t(3, dtype=DType.I64), (0, -1, 2), "circular")
    for at, moves, how in places:
        for width in (1, 70):
            yield from made("update", t(4, 6, width), t(3, 5, width), at, moves=moves, how=how)
            yield from made("scatter", t(3, 6, width), t(3, 5, width), at, moves=moves, how=how)
    yield from made("fold", t(2, 3, 2, 3, 5, 7), dilations=(2, 1))
    yield from made("stretch", t(4, 9), axis=1, size=17, first=1, step=1, by=2)
    yield from made("resample_evenly", t(4, 19), t(33, 3), axis=1, first=1, step=1, by=2)
    read = {"tile": (2, 1), "strides": (1, 2), "pads": (1, 0), "positions": (3, 4)}
    yield from made("input_transform", t(2, 3, 7, 9), t(3, 3), t(1, 1), **read)
    yield from made("output_transform", t(2, 15, 3, 4), t(2, 3), t(1, 1), shape=(5, 4))
    for few in (DType.I4, DType.U2):
        yield from made("unpack_bits", t(3, 9), dtype=few, extent=17 if few is DType.I4 else 35)
    for rows in ((), (1,), (3, 5)):
        yield from made("round_blocks", t(*rows, 96), block=32)
        for bits in (2, 4, 8):
            weights = t(96 * bits // 32, 33, dtype=DType.I32), t(3, 33)
            yield from made("block_matmul", t(*rows, 96), *weights, bits=bits, block=32)
    yield from made("unpack_blocks", t(12, 33, dtype=DType.I32), t(3, 33), bits=4, block=32)
    for a, b in PRODUCTS:
        yield from made("matmul", t(*a), t(*b))
        yield from made("matmul", t(*a), t(*b), static=("b",))
    for shape in IMAGES:
        rank, channels = len(shape) - 2, shape[1]
        window = {"kernel": (3,) * rank, "pads": (1,) * 2 * rank}
        for strides in ((1,) * rank, (2,) * rank):
            yield from made("max_pool", t(*shape), strides=strides, **window)
            yield from made("max_pool", t(*shape), strides=strides, indices=True, **window)
            yield from made("average_pool", t(*shape), strides=strides, **window)
            yield from made("unfold", t(*shape), strides=strides, **window)
            for static in ((), ("w", "bias")):
                weights = {"static": static, "strides": strides, "pads": (1,) * 2 * rank}
                yield from made("conv", t(*shape), t(5, channels, *(3,) * rank), t(5), **weights)
                yield from made("conv", t(*shape), t(channels, 1, *(3,) * rank), t(channels), group=channels, **weights)
        yield from made("conv", t(*shape), t(3, channels, *(1,) * rank), t(3), static=("w",))
        yield from made("lrn", t(*shape), size=3)
    for batch, hidden in CELLS:
        state = t(batch, hidden)
        yield from made("lstm_cell", t(batch, 4, hidden), state, state, t(4, hidden, hidden), static=("r",))
        for late in (False, True):
            x, r = t(batch, 3, hidden), t(3, hidden, hidden)
            yield from made("gru_cell", x, state, r, static=("r",), linear_before_reset=late)


def sample(dtype: DType, every: int) -> list[Operation]:
    """The first operation of each kind, and some of the others."""
    kinds = groupby(sorted(operations(dtype), key=lambda op: op.kind), key=lambda op: op.kind)
    return [op for _, group in kinds for op in list(group)[::every]]


def check_text(arch: str, cases: Sequence[Operation], folder: Path) -> None:
    """What is printed for an arch is C: the compiler's front end takes it, whatever machine it runs on."""
    target = ARCHES[arch]
    spec = replace(
        SLOW_SPEC, arch=arch, lanes=target.lanes, registers=target.registers, instructions=target.instructions
    )
    texts = [emit(k, spec) for op in cases for k in candidates(op, spec)]
    if target.machine == "wasm32":  # its C has no float16; see test_cpu_export.py
        texts = [emitted for emitted in texts if "_Float16" not in emitted.text]
    text = translation_unit(texts, spec)
    (folder / "kernels.c").write_text(text)
    compiler = c_compiler()
    flags = ("-S", "-emit-llvm", "-Xclang", "-disable-llvm-passes", "-w", "-nostdlibinc", "-isystem", str(INCLUDE))
    flags = (*flags, *arch_flags(arch, compiler.family, host()))
    run([*compiler.command, *flags, "kernels.c", "-o", "kernels.ll"], folder=str(folder), timeout_s=300)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
@pytest.mark.parametrize("registers", [4, 8, 16])
def test_cells_of_batches_fit_any_number_of_registers(registers: int, dtype: DType) -> None:
    """A Cortex-M4 has eight; a vector of doubles takes two."""
    spec = replace(SLOW_SPEC, lanes=4, registers=registers)
    for batch in (3, 8, 75):
        shapes = ((batch, 4, 40), (batch, 40), (batch, 40), (4, 40, 40))
        kernels = candidates(operation("lstm_cell", *(TensorType(s, dtype) for s in shapes), static=("r",)), spec)
        assert kernels and not any(prove(k) for k in kernels)


needs_zig = pytest.mark.skipif(c_compiler().family != "zig", reason="only ziglang compiles for every arch")


@needs_zig
@pytest.mark.parametrize(("arch", "dtype"), [*zip(ARCHES, DType, strict=False)])
def test_every_arch_takes_what_is_printed(arch: str, dtype: DType, tmp_path: Path) -> None:
    check_text(arch, sample(dtype, 12), tmp_path)


@needs_zig
@pytest.mark.slow
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("arch", ARCHES)
def test_every_arch_takes_all_that_is_printed(arch: str, dtype: DType, tmp_path: Path) -> None:
    check_text(arch, list(operations(dtype)), tmp_path)


def check_values(dtype: DType, every: int) -> None:
    reads = ("gather", "gather_elements", "resample")  # of these, random places must exist
    found = [op for op in sample(dtype, every) if op.kind not in reads or op.inputs[0].shape[op.attr("axis")] > 5]
    found = [op for op in found if op.kind != "gather_nd" or min(op.inputs[0].shape) > 5]
    cases = {f"{n} {op.kind} {op.inputs} {op.attrs}": op for n, op in enumerate(found)}  # random indices reach 5
    built = compile_all({name: (op, candidates(op, SLOW_SPEC)) for name, op in cases.items()}, check=True)
    for name in cases:
        check_compiled(built, name)


@pytest.mark.parametrize("dtype", [DType.F64, DType.I64])
def test_every_operator_computes_wide_types(dtype: DType) -> None:
    check_values(dtype, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DType)
def test_every_operator_computes_every_type(dtype: DType) -> None:
    check_values(dtype, 7)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DType)
def test_no_kernel_takes_the_compiler_long(dtype: DType) -> None:
    device = CpuVDevice(device=2)
    kernels = [k for op in sample(dtype, 25) for k in candidates(op, device.spec)]
    assert not KernelCompiler(device.spec, host()).refused(kernels)


def test_a_window_of_float64_compiles_in_time() -> None:
    """Its 320 accumulators, one by one, took clang ten minutes."""
    x, w = TensorType((1, 3, 64, 64), DType.F64), TensorType((3, 3, 3, 3), DType.F64)
    device = CpuVDevice(device=2)
    kernels = candidates(operation("conv", x, w, pads=(1, 1, 1, 1)), device.spec)
    assert not KernelCompiler(device.spec, host()).refused(kernels)


def test_every_kind_is_covered() -> None:
    assert {op.kind for dtype in DType for op in operations(dtype)} == set(OPS)
