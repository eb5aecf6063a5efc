"""Random operands and attributes: an operator either refuses them with TypeMismatch, or evaluates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_cases import express

from rammer.errors import InputError, TypeMismatch
from rammer.ir.expr import result_dtype
from rammer.ir.ops import OPS
from rammer.ir.semantics.evaluate import evaluate_expr
from rammer.ir.tensor import DType, TensorType

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
FEW = st.lists(st.integers(-2, 5), max_size=6).map(tuple)
WINDOW = {"strides": FEW, "pads": FEW, "dilations": FEW}
AXIS = {"axis": st.integers(-5, 5)}
NUMBER = st.none() | st.floats(-1e3, 1e3) | st.integers(-300, 300)

ARITY: dict[str, tuple[int, int]] = {  # the rest takes one operand
    **dict.fromkeys(("add", "mul", "max", "min", "and", "or", "xor", "concat", "probe_sum"), (1, 3)),
    **dict.fromkeys(("sub", "div", "mod", "fmod", "pow", "prelu", "matmul", "resample_evenly"), (2, 2)),
    **dict.fromkeys(("gather", "gather_elements", "gather_nd"), (2, 2)),
    **dict.fromkeys(("equal", "less", "less_equal", "greater", "greater_equal"), (2, 2)),
    **dict.fromkeys(("conv", "layer_norm"), (2, 3)),
    **dict.fromkeys(("where", "update", "scatter", "input_transform", "output_transform", "resample"), (3, 3)),
    "batch_norm": (5, 5),
    "lstm_cell": (4, 6),
    "gru_cell": (3, 5),
    "probe_fill": (0, 0),
    "block_matmul": (3, 4),
    "unpack_blocks": (2, 3),
    "descend": (4, 4),
}
EVEN = {"axis": st.integers(-3, 3), **{name: st.integers(-1, 3) for name in ("first", "step", "by")}}
MOVES = {
    "moves": FEW,
    "how": st.sampled_from(("elements", "vectors", "linear", "circular", "x")),
    "combine": st.sampled_from(("", "add", "max", "x")),
}
ATTRIBUTES: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "clip": {"low": NUMBER, "high": NUMBER},
    "cast": {"dtype": st.sampled_from(DType)},
    "bit_cast": {"dtype": st.sampled_from(DType)},
    "gelu": {"approximate": st.sampled_from(("none", "tanh", "exact"))},
    "matmul": {"trans_a": st.booleans(), "trans_b": st.booleans()},
    "block_matmul": {"bits": st.sampled_from((2, 3, 4, 8)), "block": st.integers(-1, 32), "narrow": st.booleans()},
    "unpack_blocks": {"bits": st.sampled_from((2, 3, 4, 8)), "block": st.integers(-1, 32)},
    "round_blocks": {"block": st.integers(-1, 5)},
    "unpack_bits": {"dtype": st.sampled_from(DType), "extent": st.integers(-1, 9)},
    "conv": {**WINDOW, "group": st.integers(-1, 4), "shuffled": st.integers(-1, 4)},
    "max_pool": {**WINDOW, "kernel": FEW, "indices": st.booleans(), "storage_order": st.integers(0, 1)},
    "average_pool": {**WINDOW, "kernel": FEW, "count_include_pad": st.booleans(), "ceil_extra": FEW},
    "fold": {"dilations": FEW},
    "unfold": {**WINDOW, "kernel": FEW, "value": st.integers(0, 1)},
    "input_transform": dict.fromkeys(("tile", "strides", "pads", "positions"), FEW),
    "output_transform": {"shape": FEW},
    "resample": AXIS,
    "lrn": {"size": st.integers(-1, 5)},
    "reduce": {
        "fn": st.sampled_from(("sum", "mean", "max", "min", "prod", "sum_square", "l1", "l2", "log_sum_exp", "x")),
        "axes": FEW,
        "keepdims": st.booleans(),
    },
    "accumulate": {
        **AXIS,
        "skipped": st.integers(-1, 4),
        "fn": st.sampled_from(("sum", "prod", "max")),
        "reverse": st.booleans(),
    },
    **{
        kind: {**AXIS, "keepdims": st.booleans(), "select_last_index": st.booleans()} for kind in ("arg_max", "arg_min")
    },
    "exchange": {"steps": st.integers(-1, 5)},
    "merge": {"steps": st.integers(-1, 5), "levels": st.integers(-1, 5), "keep": st.booleans()},
    "rank": {"largest": st.booleans()},
    "order": {"count": st.integers(-1, 4)},
    "last_equal": {"count": st.integers(-1, 4)},
    **dict.fromkeys(("softmax", "log_softmax", "layer_norm", "concat", "gather", "gather_elements"), AXIS),
    "gather_nd": {"batch_dims": st.integers(-1, 2)},
    **dict.fromkeys(("update", "scatter"), MOVES),
    "resample_evenly": EVEN,
    "stretch": EVEN | {"size": st.integers(-1, 5)},
    "transpose": {"perm": st.permutations(range(3)).map(tuple) | FEW},
    "reshape": {"shape": FEW},
    "slice": {"starts": FEW, "steps": FEW, "shape": FEW},
    "pad": {"pads": FEW, "mode": st.sampled_from(("constant", "reflect", "edge", "wrap")), "value": st.integers(0, 1)},
    "expand": {"shape": SHAPES},
    "probe_fill": {"shape": SHAPES, "value": st.integers(0, 9)},
    "probe_spin": {"rounds": st.integers(-1, 9)},
}


@pytest.mark.parametrize("kind", OPS)
@given(st.data())
@settings(max_examples=20)
def test_operands_are_refused_or_evaluated(kind: str, data: st.DataObject) -> None:
    count = data.draw(st.integers(*ARITY.get(kind, (1, 1))))
    like = TensorType(data.draw(SHAPES), data.draw(st.sampled_from((DType.F32, DType.F32, *DType))))
    other = st.builds(TensorType, SHAPES, st.sampled_from(DType)) | st.builds(TensorType, SHAPES, st.just(like.dtype))
    types = [like if n == 0 else data.draw(st.just(like) | other) for n in range(count)]
    attrs = {name: data.draw(values) for name, values in ATTRIBUTES.get(kind, {}).items()}
    try:
        expr = express(kind, *types, **attrs)
    except TypeMismatch as error:
        assert error.what.startswith(kind) and "\n" not in error.what
        return
    hash(expr)
    dtypes = {n: t.dtype for n, t in expr.inputs} | {s.name: s.dtype for s in expr.stages}
    assert all(result_dtype(s.body, dtypes) in (s.dtype, None) for s in expr.stages)
    rng = np.random.default_rng(0)
    inputs = {n: np.asarray(rng.integers(0, 3, t.shape)).astype(t.dtype.numpy) for n, t in expr.inputs}
    try:
        values = evaluate_expr(expr, inputs)
    except InputError:
        assert kind in ("gather", "gather_elements", "gather_nd", "scatter", "update", "descend")
        return
    assert [(v.shape, v.dtype) for v in values] == [(t.shape, t.dtype.numpy) for _, t in expr.outputs]
