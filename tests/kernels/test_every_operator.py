"""Every operator of the registry, at even and odd shapes and types: all candidates against the expression's meaning."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cpus import runnable
from kernel_harness import SLOW_SPEC, Built, check_compiled, compile_all, operation

from rammer.ir.operator import Operation
from rammer.ir.ops import OPS
from rammer.ir.tensor import DType, Layout, TensorType, channel_blocked
from rammer.kernels import candidates

FLOAT_UNARY = [
    "neg",
    "abs",
    "sign",
    "floor",
    "ceil",
    "round",
    "sqrt",
    "exp",
    "log",
    "sin",
    "cos",
    "asin",
    "acos",
    "atan",
    "erf",
    "tanh",
    "sigmoid",
    "reciprocal",
    "hard_swish",
    "softplus",
    "softsign",
    "mish",
    "relu",
]
SPECS = {
    "x86-64-avx512": SLOW_SPEC,
    "x86-64-avx2": replace(SLOW_SPEC, arch=runnable("x86-64-avx2"), lanes=8, registers=16),
    "aarch64-neon": replace(SLOW_SPEC, arch=runnable("aarch64-neon"), lanes=4),
}


def t(*shape: int, dtype: DType = DType.F32, layout: Layout | None = None) -> TensorType:
    return TensorType(shape, dtype, layout)


def places(*shape: int) -> TensorType:
    return TensorType(shape, DType.I64)


def cases(lanes: int) -> dict[str, Operation]:
    """Operations by name, with channels in blocks of `lanes`."""
    found: dict[str, Operation] = {}
    block = channel_blocked(4, lanes)

    def add(name: str, kind: str, *types: TensorType, **more: object) -> None:
        found[name] = operation(kind, *types, **more)  # type: ignore[arg-type]

    for kind in FLOAT_UNARY:
        add(kind, kind, t(3, 7, 5))
    for kind in ("tanh", "exp", "relu"):
        for dtype in (DType.F16, DType.BF16, DType.F64):
            add(f"{kind}-{dtype}", kind, t(5, 37, dtype=dtype))
    for kind in ["add", "sub", "mul", "div", "mod", "fmod", "pow", "max", "min"]:
        if kind != "mod":
            add(kind, kind, t(4, 1, 33), t(3, 1))
        for dtype in (DType.I32, DType.I64, DType.I8, DType.U8, DType.U16, DType.U32, DType.U64):
            add(f"{kind}-{dtype}", kind, t(5, 17, dtype=dtype), t(17, dtype=dtype))
    for kind in ["equal", "less", "less_equal", "greater", "greater_equal"]:
        add(kind, kind, t(40), t(3, 40))
        add(f"{kind}-int", kind, t(40, dtype=DType.I64), t(1, dtype=DType.I64))
    for kind in ["and", "or", "xor"]:
        add(kind, kind, t(20, dtype=DType.BOOL), t(2, 20, dtype=DType.BOOL))
    for dtype in (DType.I32, DType.I64, DType.I16, DType.U8):
        for kind in ("bit_and", "bit_or", "bit_xor", "shift_left", "shift_right"):
            add(f"{kind}-{dtype}", kind, t(4, 1, 33, dtype=dtype), t(3, 1, dtype=dtype))
        add(f"bit_not-{dtype}", "bit_not", t(5, 17, dtype=dtype))
    for source, target in (("float32", "int32"), ("float64", "int64"), ("float16", "int16"), ("bfloat16", "int16")):
        for one, other in ((DType(source), DType(target)), (DType(target), DType(source))):
            add(f"bit_cast-{one}-{other}", "bit_cast", t(3, 19, dtype=one), dtype=other)
    narrow = [d for d in DType if d.bits <= 8 and d is not DType.BOOL]
    for one, other in ((one, other) for one in narrow for other in narrow if one.bits == other.bits):
        add(f"bit_cast-{one}-{other}", "bit_cast", t(3, 19, dtype=one), dtype=other)
    for whole, part in ((DType.C64, DType.F32), (DType.C128, DType.F64)):
        add(f"view_as_real-{whole}", "view_as_real", t(3, 19, dtype=whole))
        add(f"view_as_complex-{part}", "view_as_complex", t(3, 19, 2, dtype=part))
    add("not", "not", t(20, dtype=DType.BOOL))
    add("is_nan", "is_nan", t(20))
    add("is_inf", "is_inf", t(20))
    add("scalar", "add", t(), t())
    add("empty", "add", t(0, 3), t(0, 3))
    add("where", "where", t(7, 1, dtype=DType.BOOL), t(7, 20), t(1))
    for source in (DType.F32, DType.I64, DType.BOOL, DType.F16, DType.U8):
        for target in (DType.F32, DType.I32, DType.F64, DType.BOOL, DType.BF16, DType.U8):
            add(f"cast-{source}-{target}", "cast", t(3, 19, dtype=source), dtype=target)
    add("gelu", "gelu", t(3, 50))
    add("gelu-tanh", "gelu", t(3, 50), approximate="tanh")
    add("clip", "clip", t(50), low=-0.5, high=0.5)
    add("leaky_relu", "leaky_relu", t(50), alpha=0.1)
    add("elu", "elu", t(50), alpha=0.5)
    for exponent in (3.0, -1.5, 0.75, 2.3):
        add(f"power {exponent}", "power", t(50), exponent=exponent)
    add("selu", "selu", t(50), alpha=1.5, gamma=1.1)
    add("hard_sigmoid", "hard_sigmoid", t(50), alpha=0.2, beta=0.5)
    add("prelu", "prelu", t(2, 5, 9), t(5, 1))
    add(
        "batch_norm", "batch_norm", t(2, 18, 5, 3), *(t(18),) * 4, static=("scale", "bias", "mean", "var"), epsilon=1e-5
    )
    add("matmul", "matmul", t(20, 30), t(30, 50), static=("b",))
    add("matmul-dynamic", "matmul", t(2, 9, 30), t(2, 30, 45))
    add("matmul-transposed", "matmul", t(2, 30, 9), t(7, 30), trans_a=True, trans_b=True)
    add("matmul-vector", "matmul", t(30), t(30, 45), static=("b",))
    add("matmul-dot", "matmul", t(300), t(300))
    add("matmul-batch", "matmul", t(2, 1, 5, 8), t(3, 8, 40))
    add("matmul-f64", "matmul", t(5, 8, dtype=DType.F64), t(8, 20, dtype=DType.F64))
    add("matmul-f16", "matmul", t(5, 8, dtype=DType.F16), t(8, 20, dtype=DType.F16), static=("b",))
    add("matmul-bf16", "matmul", t(5, 8, dtype=DType.BF16), t(8, 20, dtype=DType.BF16))
    add("matmul-i32", "matmul", t(5, 8, dtype=DType.I32), t(8, 20, dtype=DType.I32))
    add("matmul-empty", "matmul", t(5, 0), t(0, 20))
    add("matmul-one", "matmul", t(1, 1), t(1, 1))
    same = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    add("conv", "conv", t(1, 20, 9, 11), t(24, 20, 3, 3), t(24), static=("w", "bias"), **same)
    add("conv-dynamic", "conv", t(2, 3, 9, 11), t(5, 3, 3, 3), **same)
    add(
        "conv-7x7",
        "conv",
        t(1, 3, 30, 26),
        t(32, 3, 7, 7),
        t(32),
        static=("w", "bias"),
        strides=(2, 2),
        pads=(3, 3, 3, 3),
    )
    add("conv-1x1", "conv", t(1, 40, 7, 7), t(33, 40, 1, 1), t(33), static=("w", "bias"))
    turns = {"group": 4, "shuffled": 4}
    add("conv-shuffled", "conv", t(1, 80, 9, 9), t(80, 20, 1, 1), t(80), static=("w", "bias"), **turns)
    add("conv-shuffled-odd", "conv", t(3, 72, 7, 5), t(40, 18, 3, 3), static=("w",), pads=(1, 1, 1, 1), **turns)
    add("conv-group", "conv", t(1, 32, 9, 9), t(64, 8, 3, 3), static=("w",), pads=(1, 1, 1, 1), group=4)
    add(
        "conv-depthwise",
        "conv",
        t(1, 24, 9, 19),
        t(24, 1, 3, 3),
        t(24),
        static=("w", "bias"),
        pads=(1, 1, 1, 1),
        group=24,
    )
    add("conv-1d", "conv", t(2, 6, 40), t(8, 6, 5), static=("w",), pads=(2, 2), dilations=(1,))
    add("conv-3d", "conv", t(1, 3, 5, 6, 7), t(8, 3, 2, 3, 2), static=("w",), dilations=(1, 2, 1))
    for odd in (32, 20):
        x, w = t(1, odd, 9, 11, layout=block), t(48, odd, 3, 3)
        add(f"conv-blocked-{odd}", "conv", x, w, t(48), static=("w", "bias"), out_layout=block, **same)
    add("conv-blocked-1x1", "conv", t(1, 32, 7, 7, layout=block), t(64, 32, 1, 1), static=("w",), out_layout=block)
    add(
        "conv-blocked-out",
        "conv",
        t(1, 32, 7, 7, layout=block),
        t(40, 32, 1, 1),
        t(40),
        static=("w", "bias"),
        out_layout=block,
    )
    add(
        "conv-first",
        "conv",
        t(1, 3, 30, 26),
        t(32, 3, 7, 7),
        static=("w",),
        out_layout=block,
        strides=(2, 2),
        pads=(3, 3, 3, 3),
    )
    add(
        "conv-blocked-group",
        "conv",
        t(1, 64, 8, 8, layout=block),
        t(64, 16, 3, 3),
        static=("w",),
        out_layout=block,
        pads=(1, 1, 1, 1),
        group=4,
    )
    add(
        "conv-blocked-depthwise",
        "conv",
        t(1, 40, 9, 9, layout=block),
        t(40, 1, 3, 3),
        t(40),
        static=("w", "bias"),
        out_layout=block,
        pads=(1, 1, 1, 1),
        group=40,
    )
    x = t(1, 11, 9, 13, layout=block)  # less than a block
    few = {"out_layout": block, "pads": (1, 1, 1, 1), "group": 11}
    add("conv-blocked-few", "conv", x, t(11, 11, 1, 1), t(11), static=("w", "bias"), out_layout=block)
    add("conv-blocked-few-depthwise", "conv", x, t(11, 1, 3, 3), static=("w",), **few)
    for channels, narrow, stride in ((64, 4, 1), (24, 4, 1), (48, 8, 2)):  # several groups in one vector
        add(
            f"conv-blocked-groups-of-{narrow}-{channels}",
            "conv",
            t(1, channels, 9, 13, layout=block),
            t(channels, narrow, 3, 3),
            t(channels),
            static=("w", "bias"),
            out_layout=block,
            strides=(stride, stride),
            pads=(1, 1, 1, 1),
            group=channels // narrow,
        )
    pool = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    add("max_pool", "max_pool", t(1, 5, 14, 15), **pool)
    edge = {"kernel": (2, 2), "strides": (1, 1), "pads": (0, 0, 1, 1)}
    add("max_pool-edge", "max_pool", t(1, 3, 32, 32), **edge)  # the last vector of a row has one lane in the padding
    add("reshape-empty", "reshape", t(0, 3, 4), shape=(3, 4, 0))
    add("max_pool-indices", "max_pool", t(1, 5, 14, 15), indices=True, **pool)
    add("max_pool-blocked", "max_pool", t(1, 20, 14, 15, layout=block), out_layout=block, **pool)
    add("max_pool-u8", "max_pool", t(1, 5, 14, 15, dtype=DType.U8), **pool)
    add("average_pool", "average_pool", t(1, 5, 14, 15), count_include_pad=False, **pool)
    add("average_pool-blocked", "average_pool", t(1, 20, 7, 7, layout=block), out_layout=block, kernel=(7, 7))
    add("average_pool-ceil", "average_pool", t(1, 3, 14, 15), count_include_pad=True, ceil_extra=(1, 1), **pool)
    add("unfold", "unfold", t(2, 5, 9, 11, dtype=DType.U8), kernel=(3, 2), pads=(1, 0, 2, 1), value=7)
    add("lrn", "lrn", t(1, 12, 5, 6), size=5)
    add("lrn-blocked", "lrn", t(1, 32, 5, 6, layout=block), size=5, out_layout=block)
    first, last = (t(5, 5), t(3, 3)), (t(3, 5), t(2, 3))
    read = {"tile": (3, 2), "strides": (2, 1), "pads": (1, 2), "positions": (4, 5)}
    add("input_transform", "input_transform", t(2, 3, 21, 11), *first, static=("rows", "columns"), **read)
    add("output_transform", "output_transform", t(2, 60, 3, 4), *last, static=("rows", "columns"), shape=(8, 7))
    x, many = t(1, 32, 21, 11, layout=block), t(1, 480, 3, 4, layout=block)
    add("input_transform-blocked", "input_transform", x, *first, static=("rows", "columns"), out_layout=block, **read)
    shaped = {"static": ("rows", "columns"), "out_layout": block, "shape": (8, 7)}
    add("output_transform-blocked", "output_transform", many, *last, **shaped)
    for fn in ["sum", "mean", "max", "min", "prod", "sum_square", "l1", "l2", "log_sum_exp"]:
        add(f"reduce-{fn}", "reduce", t(3, 4, 70), fn=fn, axes=(2,), keepdims=True)
        add(f"reduce-{fn}-middle", "reduce", t(3, 21, 20), fn=fn, axes=(1,), keepdims=False)
    for extent, reverse in ((8, False), (5, True)):
        add(f"accumulate-{extent}", "accumulate", t(3, extent, 20), fn="sum", axis=1, reverse=reverse)
    add("accumulate-rows", "accumulate", t(3, 21, 7), fn="prod", axis=2, skipped=1)
    add("reduce-all", "reduce", t(3, 4, 20), fn="sum", axes=(0, 1, 2), keepdims=False)
    add("reduce-none", "reduce", t(3, 0, 20), fn="sum", axes=(1,), keepdims=False)
    add("reduce-int", "reduce", t(3, 40, dtype=DType.I64), fn="max", axes=(1,), keepdims=False)
    add("arg_max", "arg_max", t(5, 40), axis=1, keepdims=True)
    add("arg_min", "arg_min", t(5, 40), axis=0, keepdims=False, select_last_index=True)
    add("rank", "rank", t(3, 100), largest=True)
    add("rank-least-int", "rank", t(5, 37, dtype=DType.I64), largest=False)
    add("exchange", "exchange", t(3, 2, 2, 37, dtype=DType.I64), steps=2)
    add("exchange-floats", "exchange", t(2, 2, 2, 2, 5), steps=3)
    add("merge", "merge", t(3, 4, 74, dtype=DType.I64), steps=2)
    add("merge-smaller-halves", "merge", t(3, 8, 10), steps=4, keep=True)
    add("merge-columns-of-one", "merge", t(5, 1, 136, dtype=DType.I64), steps=3, levels=3)
    add("order", "order", t(3, 100, dtype=DType.I32), count=21)
    add("update", "update", t(3, 2, 9, 17), t(3, 2, 5, 17), places(3), moves=(0, 1, -1, 3), how="circular")
    add("update-one", "update", t(64, 9, 16), t(64, 1, 16), places(64), moves=(0, -1, 2), how="circular")
    rows = places(9, 2)  # several of one place: the last one stays
    add("update-rows", "update", t(6, 7, 21), t(9, 21), rows, moves=(-1, -2, 1), how="vectors")
    some = t(3, 5, 1, dtype=DType.I32)
    add("update-elements", "update", t(4, 6, 70), t(3, 5, 70), some, moves=(0, -1, 2), how="elements")
    add("update-scalar", "update", t(6, dtype=DType.I8), t(dtype=DType.I8), places(1), moves=(-1,), how="vectors")
    add("fold", "fold", t(2, 3, 3, 2, 9, 21), dilations=(1, 2))
    add("fold-lines", "fold", t(1, 4, 3, 70), dilations=(1,))
    add("stretch", "stretch", t(3, 5, 21), axis=2, size=41, first=1, step=1, by=2)
    add("stretch-rows", "stretch", t(3, 21, 7), axis=1, size=29, first=2, step=2, by=3)
    add("resample_evenly", "resample_evenly", t(3, 5, 22), t(41, 2), axis=2, first=1, step=1, by=2)
    add("resample_evenly-rows", "resample_evenly", t(3, 22, 37), t(29, 3), axis=1, first=1, step=2, by=3)
    add("scatter-rows", "scatter", t(6, 7, 21), t(9, 21), rows, moves=(-1, -2, 1), how="vectors")
    for fn, dtype in (("add", DType.F32), ("max", DType.I64)):
        given = t(6, 7, 21, dtype=dtype), t(9, 21, dtype=dtype), rows
        add(f"scatter-rows-{fn}", "scatter", *given, moves=(-1, -2, 1), how="vectors", combine=fn)
    lines = t(4, 5, 70, dtype=DType.I32)
    summed = {"how": "elements", "combine": "mul"}
    add("update-mul", "update", t(4, 6, 70), t(4, 5, 70), lines, moves=(0, -1, 2), **summed)
    add("scatter-elements", "scatter", t(4, 6, 70), t(4, 5, 70), lines, moves=(0, -1, 2), how="elements")
    add("scatter-lines", "scatter", t(75, 33), t(75, 29), t(75, 29, dtype=DType.I32), moves=(0, -1), how="chosen")
    add(
        "scatter-one",
        "scatter",
        t(70, dtype=DType.BOOL),
        t(9, dtype=DType.BOOL),
        places(9, 1),
        moves=(-1,),
        how="vectors",
    )
    add("last_equal", "last_equal", t(3, 37, dtype=DType.I32), count=70)
    for missing in (False, True):
        nodes = t(9, 5, dtype=DType.I32), t(31, 4, dtype=DType.I32), t(31)
        add(f"descend-{missing}", "descend", t(9, 7), *nodes, missing=missing)
    static = ("words", "scales", "zeros")
    for how, bits, size, zeros in (("", 4, 32, 0), ("-two", 2, 16, 3), ("-eight", 8, 32, 0), ("-zeros", 4, 16, 6)):
        weights = t(192 * bits // 32, 33, dtype=DType.I32), t(192 // size, 33)
        more = (t(zeros, 33, dtype=DType.U8),) if zeros else ()
        add(f"block_matmul{how}", "block_matmul", t(5, 192), *weights, *more, static=static, bits=bits, block=size)
        add(f"unpack_blocks{how}", "unpack_blocks", *weights, *more, static=static, bits=bits, block=size)
    weights = t(24, 70, dtype=DType.I32), t(6, 70), t(3, 70, dtype=DType.U8)
    add("block_matmul-narrow", "block_matmul", t(2, 5, 192), *weights, static=static, bits=4, block=32, narrow=True)
    add("round_blocks", "round_blocks", t(5, 96), block=32)
    add("unpack_bits", "unpack_bits", t(5, 20, dtype=DType.U8), dtype=DType.I4, extent=39)
    add("softmax", "softmax", t(5, 100), axis=1)
    add("softmax-middle", "softmax", t(2, 11, 20), axis=1)
    add("softmax-f16", "softmax", t(2, 40, dtype=DType.F16), axis=1)
    add("log_softmax", "log_softmax", t(5, 50), axis=-1)
    add("layer_norm", "layer_norm", t(4, 6, 48), t(48), t(48), axis=-1, epsilon=1e-5)
    add("layer_norm-two", "layer_norm", t(4, 6, 10), t(6, 10), axis=1)
    add("transpose", "transpose", t(3, 40, 20), perm=(2, 0, 1))
    for dtype in (DType.I8, DType.F16, DType.I32, DType.I64):
        add(f"transpose-{dtype.value}", "transpose", t(37, 70, dtype=dtype), perm=(1, 0))
    add("transpose-to-blocked", "transpose", t(1, 7, 9, 32), perm=(0, 3, 1, 2), out_layout=block)
    add("reshape", "reshape", t(6, 20), shape=(5, 24))
    add("reshape-block", "reshape", t(1, 32, 4, 4, layout=block), shape=(1, 512))
    add("slice", "slice", t(9, 40), starts=(8, 1), steps=(-2, 3), shape=(4, 12))
    add("concat", "concat", t(2, 10), t(2, 0), t(2, 23), axis=1)
    add(
        "concat-blocked",
        "concat",
        t(1, 16, 5, 5, layout=block),
        t(1, 32, 5, 5, layout=block),
        axis=1,
        out_layout=block,
    )
    add("concat-i64", "concat", t(2, 10, dtype=DType.I64), t(5, 10, dtype=DType.I64), axis=0)
    for mode in ["constant", "reflect", "edge", "wrap"]:
        add(f"pad-{mode}", "pad", t(5, 40), pads=(1, 3, 2, 4), mode=mode)
    add("gather", "gather", t(9, 40), t(4, 3, dtype=DType.I64), axis=0)
    for dtype in (DType.U8, DType.I8):  # several vectors of bytes at once, and the rest
        add(f"gather-{dtype}", "gather", t(256, dtype=dtype), t(5, 77, dtype=dtype), axis=0)
        add(f"clip-{dtype}", "clip", t(5, 133, dtype=dtype), low=3, high=50)
        add(f"less-{dtype}", "less", t(5, 133, dtype=dtype), t(5, 133, dtype=dtype))
        add(f"where-{dtype}", "where", t(5, 133, dtype=DType.BOOL), *(t(5, 133, dtype=dtype),) * 2)
    for kind in ("and", "or", "xor"):
        add(f"{kind}-many", kind, t(5, 133, dtype=DType.BOOL), t(5, 133, dtype=DType.BOOL))
    add("gather_elements", "gather_elements", t(9, 40), t(4, 35, dtype=DType.I64), axis=0)
    add("gather_elements-inner", "gather_elements", t(9, 40), t(9, 7, dtype=DType.I32), axis=1)
    add("gather_nd", "gather_nd", t(9, 7, 40), t(3, 2, 2, dtype=DType.I64))
    add("gather_nd-batch", "gather_nd", t(3, 9, 7, 20), t(3, 4, 1, dtype=DType.I32), batch_dims=1)
    taps = t(70, 4), t(70, 4, dtype=DType.I64)
    for name, x, axis in (("rows", t(3, 9, 40), 1), ("inner", t(3, 40), 1)):
        add(f"resample-{name}", "resample", x, *taps, static=("weights", "places"), axis=axis)
    wide = {"static": ("weights", "places"), "axis": 2, "out_layout": block}
    add("resample-blocked", "resample", t(1, 32, 9, 6, layout=block), *taps, **wide)
    add("gather-inner", "gather", t(9, 40), t(4, dtype=DType.I32), axis=1)
    add("expand", "expand", t(3, 1), shape=(2, 3, 40))
    add("lstm_cell", "lstm_cell", t(1, 4, 40), t(1, 40), t(1, 40), t(4, 40, 40), static=("r",))
    add(
        "lstm_cell-b3",
        "lstm_cell",
        t(3, 4, 64),
        t(3, 64),
        t(3, 64),
        t(4, 64, 64),
        t(3, 64),
        static=("r", "p"),
        clip=0.5,
    )
    add("lstm_cell-b24", "lstm_cell", t(24, 4, 48), t(24, 48), t(24, 48), t(4, 48, 48), static=("r",))
    add("gru_cell-b27", "gru_cell", t(27, 3, 40), t(27, 40), t(3, 40, 40), static=("r",), linear_before_reset=True)
    add("gru_cell", "gru_cell", t(2, 3, 48), t(2, 48), t(3, 48, 48), t(3, 48), static=("r",), linear_before_reset=True)
    add("gru_cell-reset", "gru_cell", t(2, 3, 48), t(2, 48), t(3, 48, 48), static=("r",), linear_before_reset=False)
    whole = t(4, 48, 48, dtype=DType.I8)
    add("lstm_cell-bytes", "lstm_cell", t(3, 4, 48), t(3, 48), t(3, 48), whole, t(4, 48), static=("r", "rs"))
    whole = t(3, 40, 40, dtype=DType.I8)
    add("gru_cell-bytes", "gru_cell", t(2, 3, 40), t(2, 40), whole, t(3, 40), static=("r", "rs"))
    for name, (depth, attrs) in {"": (20, {}), "-depthwise": (1, {"group": 48})}.items():
        x, w = t(1, depth * attrs.get("group", 1), 9, 11), t(48, depth, 3, 3, dtype=DType.I8)
        add(f"conv-bytes{name}", "conv", x, w, pads=(1,) * 4, dtype=DType.F32, static=("w",), **attrs)
    add("probe_fill", "probe_fill", shape=(3, 4), value=2.5)
    add("probe_sum", "probe_sum", t(3, 4), t(3, 4))
    add("probe_spin", "probe_spin", t(40), rounds=3)
    return found


CASES = cases(SLOW_SPEC.lanes)


@pytest.fixture(
    scope="module", params=[pytest.param(a, marks=[pytest.mark.slow] * (a == "aarch64-neon")) for a in SPECS]
)
def built(request: pytest.FixtureRequest) -> Built:
    spec = SPECS[request.param]
    found = {name: (op, candidates(op, spec)) for name, op in cases(spec.lanes).items()}
    return compile_all(found, spec, check=True)


@pytest.mark.parametrize("name", CASES)
def test_candidates_compute_the_expression(built: Built, name: str) -> None:
    check_compiled(built, name)


def test_every_kind_is_covered() -> None:
    assert {op.kind for op in CASES.values()} == set(OPS)


def test_cells_of_many_rows_step_on_by_themselves() -> None:
    """Rows are cut, so that an rTask needs no state but its own; few rows leave the units to be cut."""
    for name, axis in (("lstm_cell-b24", "b"), ("gru_cell-b27", "b"), ("lstm_cell-b3", "j")):
        first = candidates(CASES[name], SLOW_SPEC)[0]
        assert first.num_rtasks > 1
        cut = [a for a, (low, high) in first.box(0).items() if high - low < dict(first.operation.expr.root.axes)[a]]
        assert cut == [axis], name
