"""The nest builder on hand-made expressions: fused stages, and schedules that do not fit."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from itertools import pairwise

import pytest
from kernel_harness import SLOW_SPEC, check_compiled, compile_all
from kernel_harness import operation as registered

from rammer.errors import LoweringError
from rammer.ir.expr import Call, Const, Load, Range, Scalar, Select, Stage, TensorExpr
from rammer.ir.index import Index, var
from rammer.ir.operator import Operation
from rammer.ir.tensor import Digit, DType, Layout, TensorType, channel_blocked
from rammer.ir.tile import Alloc, Body, For, If, Kind, Scope, TileProgram
from rammer.kernels import candidates
from rammer.kernels.lower import draft, finished
from rammer.kernels.normal import fused
from rammer.kernels.schedule import At, Loop, Schedule, group
from rammer.vdevice.cpu.codegen.emit import emit
from rammer.vdevice.ctext.cfamily import CFamilyPrinter
from rammer.vdevice.simt.codegen.mma import SM_80

BLOCKED = channel_blocked(4, 16)
n, o, c, h, w, r, s = map(var, "nochwrs")


def call(fn: str, *args: Scalar) -> Scalar:
    return Call(fn, args)


def operation(
    kind: str,
    inputs: dict[str, TensorType],
    *stages: Stage,
    static: tuple[str, ...] = (),
    outputs: tuple[str, ...] = ("out",),
    layout: object = None,
) -> Operation:
    types = {s.name: TensorType(s.shape, s.dtype, layout) for s in stages}  # type: ignore[arg-type]
    expr = TensorExpr(kind, tuple(inputs.items()), stages, tuple((x, types[x]) for x in outputs))
    return Operation(kind, (), expr, tuple(name in static for name in inputs))


def conv_add_relu(layout: object, prologue: bool) -> Operation:
    """relu(conv(x) + bias + residual), with relu(x) on load if `prologue`."""
    size, channels, outs = 9, 20, 40
    x: Scalar = Load("x", (n, c, h - 1, w - 1))
    x = call("max", x, Const(0.0)) if prologue else x
    padded = Select((Range(h - 1, 0, size), Range(w - 1, 0, size)), x, Const(0.0))
    axes = (("n", 1), ("o", outs), ("h", size), ("w", size))
    body = Load("xp", (n, c, h + r, w + s)) * Load("k", (o, c, r, s))
    total = Load("sum", (n, o, h, w)) + Load("bias", (o,)) + Load("y", (n, o, h, w))
    block = {"layout": layout} if layout else {}
    return operation(
        "conv_add_relu",
        {
            "x": TensorType((1, channels, size, size), **block),  # type: ignore[arg-type]
            "k": TensorType((outs, channels, 3, 3)),
            "bias": TensorType((outs,)),
            "y": TensorType((1, outs, size, size), **block),  # type: ignore[arg-type]
        },
        Stage("xp", (("n", 1), ("c", channels), ("h", size + 2), ("w", size + 2)), padded),
        Stage("sum", axes, body, (("c", channels), ("r", 3), ("s", 3))),
        Stage("out", axes, call("max", total, Const(0.0))),
        static=("k", "bias"),
        layout=layout,
    )


def matmul_softmax() -> Operation:
    """softmax(a b) along rows: a product, two row reductions, a costly stage that is read twice."""
    i, j, k = map(var, "ijk")
    axes, row, col = (("i", 13), ("j", 37)), (("i", 13),), (("j", 37),)
    return operation(
        "matmul_softmax",
        {"a": TensorType((13, 20)), "b": TensorType((20, 37))},
        Stage("p", axes, Load("a", (i, k)) * Load("b", (k, j)), (("k", 20),)),
        Stage("top", row, Load("p", (i, j)), col, "max"),
        Stage("e", axes, call("exp", Load("p", (i, j)) - Load("top", (i,)))),
        Stage("total", row, Load("e", (i, j)), col),
        Stage("out", axes, Load("e", (i, j)) / Load("total", (i,))),
        static=("b",),
    )


def conv_pool() -> Operation:
    """A maximum of neighbours over a product: the product is computed per task, with its halo."""
    i, j, k, q = map(var, "ijkq")
    return operation(
        "matmul_pool",
        {"a": TensorType((20, 12)), "b": TensorType((12, 24))},
        Stage("p", (("i", 20), ("j", 24)), Load("a", (i, k)) * Load("b", (k, j)), (("k", 12),)),
        Stage("out", (("i", 9), ("j", 24)), Load("p", (i * 2 + q, j)), (("q", 3),), "max"),
        static=("b",),
    )


def two_outputs() -> Operation:
    i, j = var("i"), var("j")
    axes = (("i", 7), ("j", 50))
    return operation(
        "sum_and_product",
        {"a": TensorType((7, 50)), "b": TensorType((50,))},
        Stage("first", axes, Load("a", (i, j)) + Load("b", (j,))),
        Stage("out", axes, Load("first", (i, j)) * Load("b", (j,))),
        outputs=("first", "out"),
    )


CASES = {
    "conv-add-relu": conv_add_relu(None, False),
    "conv-add-relu-blocked": conv_add_relu(BLOCKED, False),
    "relu-conv-add-relu": conv_add_relu(BLOCKED, True),
    "matmul-softmax": matmul_softmax(),
    "matmul-pool": conv_pool(),
    "two-outputs": two_outputs(),
}


@pytest.fixture(scope="module")
def built():
    return compile_all({name: (op, candidates(op, SLOW_SPEC)) for name, op in CASES.items()}, check=True)


@pytest.mark.parametrize("name", CASES)
def test_fused_stages(built, name: str) -> None:
    check_compiled(built, name)


def test_no_guard_is_left_inside_a_register_block() -> None:
    for op in CASES.values():
        for kernel in candidates(op, SLOW_SPEC):
            lines = CFamilyPrinter(kernel.body, 16).body(kernel.body.body, 0)  # type: ignore[arg-type]
            for line, after in pairwise(lines):
                assert not ("#pragma unroll" in line and "if (" in after)


POINT = operation(
    "copy", {"x": TensorType((8, 20))}, Stage("out", (("i", 8), ("j", 20)), Load("x", (var("i"), var("j"))))
)


@pytest.mark.parametrize(
    ("x", "out", "window", "pads"),
    [
        ((1, 12, 27, 27), 1, 4, (3, 2, 3, 2)),
        ((2, 12, 46, 46), 4, 4, (3, 4, 3, 4)),
        ((1, 6, 16, 16), 3, 7, (1, 3, 6, 2)),
    ],
)
def test_pieces_of_padding_are_not_multiplied_by_channels(
    x: tuple[int, ...], out: int, window: int, pads: tuple[int, ...]
) -> None:
    """Clang took 5 to 12 s for 600 to 1900 statements, with sums that lay in memory as some lanes were alone."""
    blocked = channel_blocked(4, 16) if x[1] == 12 else None
    types = TensorType(x, layout=blocked), TensorType((out, x[1], window, window))
    for kernel in candidates(registered("conv", *types, static=("w",), pads=pads), SLOW_SPEC):
        assert isinstance(kernel.body, TileProgram)
        assert _statements(kernel.body.body) <= 550  # clang takes 0.5 to 0.7 s for 533, with sums in registers
        in_memory = re.findall(r"float out_acc\[(\d+)\]", emit(kernel, SLOW_SPEC).text)
        assert all(int(size) <= SLOW_SPEC.lanes for size in in_memory)  # the channels of one vector, of 12 of 16 lanes


def _statements(body: Body) -> int:
    """How many there are after unrolling."""
    total = 0
    for s in body:
        match s:
            case For(_, start, stop, kind, inner):
                total += _statements(inner) * (stop - start if kind is Kind.UNROLLED else 1)
            case Alloc(_, inner) | If(_, inner):
                total += _statements(inner)
            case _:
                total += 1
    return total


def lowered(op: Operation, *loops: Loop, keep: tuple[str, ...] = (), at: tuple[At, ...] = (), threads: int = 1):
    """The tile program, with nests for the stages in `keep`."""
    schedule = Schedule("made", loops, at, threads=threads)
    return finished(draft(op.expr, schedule, fused(op.expr, {"out", *keep})))


@pytest.mark.parametrize("loop", [Loop("j", 16), Loop(group("j"), 16, Kind.THREAD)])
def test_an_axis_walked_in_steps_is_refused(loop: Loop) -> None:
    threads = -(-20 // 16) if loop.kind is Kind.THREAD else 1
    with pytest.raises(LoweringError, match=re.escape(f"axis {loop.axis!r} is walked in steps of 16")) as caught:
        lowered(POINT, Loop("i"), loop, threads=threads)
    assert f"add Loop({loop.axis!r})" in caught.value.hint


@pytest.mark.parametrize("axis", ["k", group("ik")])
def test_an_unknown_axis_is_refused(axis: str) -> None:
    with pytest.raises(LoweringError, match="no axis 'k'; it has i, j"):
        lowered(POINT, Loop("i"), Loop("j"), Loop(axis))


def test_a_task_digit_inside_another_digit_is_refused() -> None:
    with pytest.raises(LoweringError, match="task digit"):
        lowered(POINT, Loop("i"), Loop("j", 16), Loop("j", 1, Kind.TASK))


@pytest.mark.parametrize("threads", [1, 10])
def test_other_threads_than_the_schedule_says_are_refused(threads: int) -> None:
    with pytest.raises(LoweringError, match=f"thread loops make 20 threads, not {threads}"):
        lowered(POINT, Loop("i"), Loop("j", 1, Kind.THREAD), threads=threads)


def test_a_stage_without_a_place_is_refused() -> None:
    with pytest.raises(LoweringError, match="read at other positions"):
        lowered(CASES["matmul-softmax"], Loop("i"), Loop("j"))


def test_a_place_for_what_is_no_stage_is_refused() -> None:
    """What places a stage, and what fuses it into its reader, must agree."""
    conv = CASES["conv-add-relu"]
    loops = tuple(map(Loop, "nohwcrs"))
    with pytest.raises(LoweringError, match=r"no stages \['xp'\]") as caught:
        lowered(conv, *loops, at=(At("xp", 0),))
    assert "out" in caught.value.hint


def test_a_function_without_c_text_is_refused() -> None:
    wrong = operation(
        "wrong",
        {"x": TensorType((8,), DType.I32)},
        Stage("out", (("i", 8),), call("tanh", Load("x", (var("i"),))), dtype=DType.I32),
    )
    program = lowered(wrong, Loop("i"))
    with pytest.raises(LoweringError, match="no C text for the function 'tanh'"):
        CFamilyPrinter(program, 16).body(program.body, 0)


def test_an_empty_axis_makes_an_empty_body() -> None:
    empty = operation(
        "empty", {"x": TensorType((0, 20))}, Stage("out", (("i", 0), ("j", 20)), Load("x", (var("i"), var("j"))))
    )
    (kernel,) = candidates(empty, SLOW_SPEC)
    assert kernel.num_rtasks == 1 and kernel.body.body == ()  # type: ignore[union-attr]
    assert kernel.box(0)["i"] == (0, 0)
    assert Index() == Index(0)


def test_schedules_that_differ_have_different_texts() -> None:
    """What was measured and proven is kept by these texts; the name and the packing are kept beside them."""
    stage = At("sum", 0, (Loop("i", 4),))
    base = Schedule("x", (Loop("i", 4), Loop("j")), (stage,))
    loops = [replace(base, loops=(Loop("i", 4, kind), Loop("j"))) for kind in Kind]
    loops += [replace(base, loops=(Loop("i", 8), Loop("j"))), replace(base, loops=(Loop("j"), Loop("i", 4)))]
    changes = {
        "stage": "max", "depth": 1, "loops": (), "scope": Scope.REGISTER, "order": (1, 0), "inside": "max",
        "gap": 1, "pad": 1, "instruction": SM_80[0], "layout": Layout((Digit(0),)),
    }  # fmt: skip
    assert changes.keys() == {f.name for f in fields(At)}
    placed = [replace(base, stages=(replace(stage, **{name: value}),)) for name, value in changes.items()]  # type: ignore[arg-type]
    others = [replace(base, threads=2), replace(base, instruction=SM_80[0])]
    different = dict.fromkeys((base, *loops, *placed, *others))
    assert len({str(s) for s in different}) == len(different)
