"""Bad models of every class: each gives one ModelError that names the place, and never anything else."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper
from onnx_models import external, model, node, tensor, with_weight

from rammer.errors import ModelError
from rammer.frontend.onnx import Limits, load

F32 = np.float32
W = np.ones((2, 3), F32)


def changed(made: ModelProto, change: Callable[[ModelProto], Any]) -> ModelProto:
    change(made)
    return made


def conv(**attrs: Any) -> ModelProto:
    return model([node("Conv", ["x", "w"], **attrs)], {"x": (1, 4, 8, 8)}, constants={"w": np.ones((4, 4, 3, 3), F32)})


def pool(**attrs: Any) -> ModelProto:
    return model([node("MaxPool", **attrs)], {"x": (1, 4, 8, 8)})


def constant_input(op: str, shape: tuple[int, ...], *values: Any, **attrs: Any) -> ModelProto:
    names = [f"c{n}" for n in range(len(values))]
    return model(
        [node(op, ["x", *names], **attrs)], {"x": shape}, constants=dict(zip(names, map(np.array, values), strict=True))
    )


def of_complex(op: str, shape: tuple[int, ...], *values: Any, **attrs: Any) -> ModelProto:
    constants = {f"c{n}": np.asarray(value) for n, value in enumerate(values)}
    return model([node(op, ["x", *constants], **attrs)], {"x": ("complex64", shape)}, constants=constants, opset=26)


def regions(**attrs: Any) -> ModelProto:
    return model(
        [node("RoiAlign", ["x", "r", "b"], **attrs)], {"x": (1, 1, 4, 4), "r": (2, 4), "b": ("int64", (2,))}, opset=16
    )


def microsoft(op: str, operands: int, **attrs: Any) -> ModelProto:
    """An operand with scales and zero points; or several ones that do not fit each other."""
    shapes: dict[str, Any] = {
        f"x{n}": ("uint8" if n % 3 == 0 else "float32", (2, 3, n + 2, 4)) for n in range(operands)
    }
    if operands == 5:
        shapes |= {"x1": ("float32", ()), "x2": ("uint8", ()), "x3": ("float32", ()), "x4": ("uint8", ())}
    made = node(op, list(shapes), domain="com.microsoft", **attrs)
    return model([made], shapes, domains={"com.microsoft": 1})


def mel(bins: int, high: float = 4000.0) -> ModelProto:
    numbers = {"b": np.array(bins), "l": np.array(16), "r": np.array(8000), "f": F32(0), "t": F32(high)}
    return model([node("MelWeightMatrix", list(numbers))], {}, constants={k: np.asarray(v) for k, v in numbers.items()})


def runs(**attrs: Any) -> ModelProto:
    same = {
        "mode": "TF",
        "ngram_counts": [0],
        "ngram_indexes": [0, 1, 2],
        "pool_int64s": [1, 2, 3],
        "max_skip_count": 0,
    }
    lengths = {"min_gram_length": 1, "max_gram_length": 2}
    return model([node("TfIdfVectorizer", **(same | lengths | attrs))], {"x": ("int64", (4,))})


def recursive_function() -> ModelProto:
    body = [helper.make_node("F", ["a"], ["b"], domain="own")]
    function = helper.make_function(
        "own", "F", ["a"], ["b"], body, [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    )
    return model([node("F", domain="own")], {"x": (2,)}, functions=[function], domains={"own": 1})


def two_attributes() -> ModelProto:
    made = model([node("Softmax", axis=0)], {"x": (2,)})
    made.graph.node[0].attribute.append(helper.make_attribute("axis", 0))
    return made


def mistyped_attribute() -> ModelProto:
    made = model([node("Softmax")], {"x": (2,)})
    made.graph.node[0].attribute.append(AttributeProto(name="axis", type=AttributeProto.FLOAT, f=0.0))
    return made


def declared_output(code: int, shape: list[int]) -> ModelProto:
    made = model([node("Relu")], {"x": (2, 3)})
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", code, shape))
    return made


def calls_twice(levels: int, *, inside: str = "") -> ModelProto:
    """Functions that call the next one twice; `inside`: both calls are in the branches of an If."""

    def body(n: int) -> list[NodeProto]:
        calls = [
            helper.make_node(f"L{n + 1}", ["a"], ["t"], domain="own"),
            helper.make_node(f"L{n + 1}", ["t"], ["b"], domain="own"),
        ]
        if not inside:
            return calls
        result = [helper.make_value_info("b", helper.make_tensor_type_proto(TensorProto.FLOAT, None))]
        branch = helper.make_graph(calls, "branch", [], result)
        known = helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.BOOL, [], [True]))
        return [known, helper.make_node("If", ["c"], ["b"], then_branch=branch, else_branch=branch)]

    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    functions = [helper.make_function("own", f"L{n}", ["a"], ["b"], body(n), opsets) for n in range(levels)]
    functions.append(
        helper.make_function("own", f"L{levels}", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], opsets)
    )
    return model([node("L0", domain="own")], {"x": (2,)}, functions=functions, domains={"own": 1})


def scan(**attrs: Any) -> ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("a", "b")]
    body = helper.make_graph([helper.make_node("Relu", ["a"], ["b"])], "body", values[:1], values[1:])
    return model([node("Scan", num_scan_inputs=1, body=body, **attrs)], {"x": (2, 3)})


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    # the file
    "empty": (lambda: b"", "empty"),
    "garbage": (lambda: b"\xff" * 64, "not an ONNX model"),
    "truncated": (lambda: conv().SerializeToString()[:-20], "not an ONNX model"),
    "no graph": (lambda: ModelProto(ir_version=10, opset_import=[helper.make_opsetid("", 21)]), "no outputs"),
    # operator sets
    "no opset": (lambda: changed(conv(), lambda m: m.ClearField("opset_import")), "no operator set"),
    "opset of the future": (lambda: model([node("Relu")], {"x": (2,)}, opset=999), "opset 999; supported are"),
    "negative opset": (lambda: model([node("Relu")], {"x": (2,)}, opset=-1), "opset -1; supported are"),
    "two opsets": (
        lambda: changed(conv(), lambda m: m.opset_import.append(helper.make_opsetid("ai.onnx", 20))),
        "imports domain 'ai.onnx' twice",
    ),
    "unknown domain": (lambda: model([node("Relu", domain="evil")], {"x": (2,)}), r"domain 'evil'.*'n'"),
    "operator newer than the opset": (
        lambda: model([node("Gelu")], {"x": (2,)}, opset=13),
        r"Gelu \(not in opset 13\)",
    ),
    # the graph
    "cycle": (
        lambda: model([node("Relu", ["b"], ["a"], "p"), node("Relu", ["a"], ["b"], "q")], {"x": (2,)}, ["a"]),
        "cycle: (p -> q -> p|q -> p -> q)",
    ),
    "self-loop": (lambda: model([node("Relu", ["y"])], {"x": (2,)}), "cycle: n -> n"),
    "unknown input": (
        lambda: model([node("Relu", ["xx"])], {"x": (2,)}),
        "Relu 'n': input 'xx' is produced by no node",
    ),
    "unknown output": (lambda: model([node("Relu")], {"x": (2,)}, ["z"]), "output 'z' of the graph is produced by no"),
    "name produced twice": (
        lambda: model([node("Relu", name="a"), node("Abs", name="b")], {"x": (2,)}),
        "Abs 'b': output 'y' names another value",
    ),
    "output shadows an input": (lambda: model([node("Relu", outputs=["x"])], {"x": (2,)}), "'x' names another value"),
    "two inputs of a name": (
        lambda: changed(conv(), lambda m: m.graph.input.append(m.graph.input[0])),
        "two inputs are named 'x'",
    ),
    "initializer without a name": (
        lambda: changed(conv(), lambda m: m.graph.initializer.append(TensorProto())),
        "an initializer has no name",
    ),
    "too many inputs": (lambda: model([node("Relu", ["x", "x"])], {"x": (2,)}), "has 2 inputs; opset 14 says 1…1"),
    "too few inputs": (lambda: model([node("Conv")], {"x": (1, 4, 8, 8)}), "has 1 inputs"),
    "empty required input": (lambda: model([node("Add", ["x", ""])], {"x": (2,)}), r"input 1 \('B'\) is missing"),
    "too many outputs": (lambda: model([node("Relu", outputs=["y", "z"])], {"x": (2,)}), "has 2 outputs"),
    # inputs
    "negative extent": (lambda: model([node("Relu")], {"x": (-2,)}), "input 'x' has extent -2"),
    "symbolic extent": (
        lambda: model([node("Relu")], {"x": ("batch", 3)}),
        r"'x' is open along axis 0 \('batch'\)[\s\S]*pass dims=\{'batch': 1\}",
    ),
    "unknown element type": (
        lambda: changed(conv(), lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 99)),
        "unknown element type 99",
    ),
    "strings": (
        lambda: changed(conv(), lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", TensorProto.STRING)),
        r"input 0 \('X'\) has strings",
    ),
    # attributes and types
    "unknown attribute": (lambda: conv(stride=[1, 1]), "attribute 'stride' does not exist[\\s\\S]*'strides'"),
    "attribute twice": (two_attributes, "attribute 'axis' is given twice"),
    "mistyped attribute": (mistyped_attribute, "attribute 'axis' is FLOAT instead of INT"),
    "missing attribute": (lambda: pool(), "attribute 'kernel_shape' is missing"),
    "float times integer": (
        lambda: model([node("MatMul", ["x", "i"])], {"x": (2, 2), "i": ("int64", (2, 2))}),
        "MatMul 'n': input 1 .* is int64, another operand is float32",
    ),
    "type outside the standard": (lambda: model([node("Relu")], {"x": ("bool", (2,))}), "is bool, which opset 14"),
    "lying type": (lambda: declared_output(TensorProto.INT64, [2, 3]), "'y' is declared as int64 but is float32"),
    # geometry
    "group 0": (lambda: conv(group=0), "Conv 'n': 0 groups"),
    "group that does not divide": (lambda: conv(group=3), "3 groups"),
    "stride 0": (lambda: conv(strides=[0, 1]), "strides is .0, 1."),
    "negative dilation": (lambda: conv(dilations=[-1, 1]), "dilations is .-1, 1."),
    "negative pads": (lambda: conv(pads=[-1, 0, 0, 0]), "pads is .-1"),
    "kernel of another rank": (lambda: conv(kernel_shape=[3]), "kernel_shape is .3."),
    "kernel larger than the input": (lambda: pool(kernel_shape=[9, 9]), "a window of 9 does not fit"),
    "kernel 0": (lambda: pool(kernel_shape=[0, 2]), "kernel_shape is .0, 2."),
    "huge pads": (lambda: pool(kernel_shape=[2, 2], pads=[1 << 40] * 4), "pads is"),
    "pads as large as the window": (lambda: pool(kernel_shape=[2, 2], pads=[2, 2, 2, 2]), "as large as the window"),
    "perm that repeats": (lambda: model([node("Transpose", perm=[0, 0])], {"x": (2, 3)}), "no permutation"),
    "axis outside": (lambda: model([node("Concat", ["x", "x"], axis=7)], {"x": (2, 3)}), "axis 7 does not exist"),
    "axes twice": (lambda: constant_input("ReduceSum", (2, 3), [0, 0]), "name a dimension twice"),
    "shapes that do not broadcast": (
        lambda: model([node("Add", ["x", "w"])], {"x": (4,)}, constants={"w": W}),
        "Add 'n': .*broadcast",
    ),
    "matrices that do not fit": (
        lambda: model([node("MatMul", ["x", "w"])], {"x": (4, 5)}, constants={"w": W}),
        "MatMul 'n': .*float32.4×5.",
    ),
    "split that does not add up": (
        lambda: model(
            [node("Split", ["x", "s"], ["a", "b"])], {"x": (6,)}, ["a", "b"], constants={"s": np.array([1, 2])}
        ),
        "split .1, 2. does not divide",
    ),
    "reshape to another size": (lambda: constant_input("Reshape", (6,), [4, -1]), "cannot reshape"),
    "reshape with two unknowns": (lambda: constant_input("Reshape", (6,), [-1, -1]), "ambiguous"),
    "slice by step 0": (lambda: constant_input("Slice", (6,), [0], [3], [0], [0]), "Slice 'n': .*steps .0."),
    "index out of range": (lambda: constant_input("Gather", (6,), [10**9]), "index 1000000000 is outside"),
    "shape known only at run time": (
        lambda: model([node("Reshape", ["x", "s"])], {"x": (6,), "s": ("int64", (2,))}),
        r"shape\) is not known at compile time[\s\S]*constants=\{'s'",
    ),
    "shift to nowhere": (
        lambda: model([node("BitShift", ["x", "x"], direction="UP")], {"x": ("int32", (2,))}, opset=28),
        "BitShift 'n': direction is 'UP'",
    ),
    "bits of another width": (
        lambda: model([node("BitCast", to=TensorProto.INT16)], {"x": (2,)}, opset=26),
        "float32 has other bits than int16",
    ),
    "axis of a cumulative product": (
        lambda: model([node("CumProd", ["x", "a"])], {"x": (2,)}, constants={"a": np.array(1 << 40)}, opset=26),
        "CumProd 'n': axis 1099511627776 does not exist",
    ),
    "sequences along a third axis": (
        lambda: model(
            [node("ReverseSequence", ["x", "l"], time_axis=2, batch_axis=1)], {"x": (2, 2, 2), "l": ("int64", (2,))}
        ),
        "batch_axis and time_axis must be 0 and 1",
    ),
    "sequence longer than the data": (
        lambda: model([node("ReverseSequence", ["x", "l"])], {"x": (3, 2)}, constants={"l": np.array([4, 0])}),
        "sequence_lens has numbers outside 0…3",
    ),
    "update behind the cache": (
        lambda: model(
            [node("TensorScatter", ["x", "x", "w"])], {"x": (1, 2, 3)}, constants={"w": np.array([1])}, opset=24
        ),
        "write_indices has numbers outside 0…0",
    ),
    "condition longer than the axis": (
        lambda: constant_input("Compress", (2,), [True] * 3, axis=0),
        "does not fit axis",
    ),
    "unknown boxes": (
        lambda: model([node("NonMaxSuppression", ["b", "s"])], {"b": (1, 2, 4), "s": (1, 1, 2)}),
        r"boxes\) is not known at compile time",
    ),
    "grid of three coordinates": (
        lambda: model([node("GridSample", ["x", "g"])], {"x": (1, 1, 2, 2), "g": (1, 2, 2, 3)}, opset=20),
        "GridSample 'n': grid float32.* does not fit",
    ),
    "grid of a mode that nobody knows": (
        lambda: model([node("GridSample", ["x", "g"], mode="area")], {"x": (1, 1, 2, 2), "g": (1, 2, 2, 2)}, opset=20),
        "mode 'area' with padding_mode 'zeros' is not supported",
    ),
    "regions without points": (lambda: regions(sampling_ratio=0), "sampling_ratio is 0"),
    "regions with points beyond counting": (lambda: regions(sampling_ratio=1 << 40), "RoiAlign 'n': "),
    "regions of a negative size": (lambda: regions(output_width=-3, sampling_ratio=2), "an output of 1×-3"),
    "windows of no group": (
        lambda: model(
            [node("DeformConv", ["x", "w", "o"], offset_group=0)],
            {"x": (1, 1, 3, 3), "w": (1, 1, 2, 2), "o": (1, 8, 2, 2)},
        ),
        "1 groups and 0 offset groups do not divide",
    ),
    "transform of no points": (
        lambda: model([node("DFT", ["x", "l"])], {"x": (1, 8, 1)}, constants={"l": np.array(0)}, opset=20),
        "a transform of 0 points",
    ),
    "transform beyond memory": (
        lambda: model([node("DFT", ["x", "l"])], {"x": (1, 8, 1)}, constants={"l": np.array(1 << 50)}, opset=20),
        "a transform of 1125899906842624 points",
    ),
    "transform along the pairs": (lambda: model([node("DFT", axis=2)], {"x": (1, 8, 2)}, opset=17), "is no signal"),
    "frames longer than the signal": (
        lambda: model(
            [node("STFT", ["x", "s", "", "l"])], {"x": (1, 8, 1)}, constants={"s": np.array(1), "l": np.array(9)}
        ),
        "frames of 9 every 1",
    ),
    "frames that stand still": (
        lambda: model([node("STFT", ["x", "s"])], {"x": (1, 8, 1)}, constants={"s": np.array(0)}),
        "frames of 8 every 0",
    ),
    "mel bins beyond memory": (lambda: mel(1 << 40), "MelWeightMatrix 'n': 1099511627776 bins"),
    "mel bins beyond the spectrum": (lambda: mel(8, high=1e6), "do not fit 16 points"),
    "determinant of many rows": (lambda: model([node("Det")], {"x": (65, 65)}), "a matrix of 65 rows"),
    "determinant of no square": (lambda: model([node("Det")], {"x": (3, 4)}), "no square matrix"),
    "blocks of another image": (
        lambda: constant_input("Col2Im", (1, 4, 9), [1 << 40, 4], [2, 2]),
        "blocks of .2, 2. fit an image",
    ),
    "blocks every zero pixels": (
        lambda: constant_input("Col2Im", (1, 4, 9), [4, 4], [2, 2], strides=[0, 1]),
        "do not fit an image of .4, 4.",
    ),
    "unpooled to less": (
        lambda: model(
            [node("MaxUnpool", ["x", "i", "s"], kernel_shape=[2])],
            {"x": (1, 1, 3), "i": ("int64", (1, 1, 3))},
            constants={"s": np.array([1, 1, 2])},
        ),
        "output_shape .1, 1, 2. has no room",
    ),
    "unpooled by a negative kernel": (
        lambda: model(
            [node("MaxUnpool", ["x", "i"], kernel_shape=[-(1 << 60)])], {"x": (1, 1, 3), "i": ("int64", (1, 1, 3))}
        ),
        "from windows of",
    ),
    "optimizer without gradients": (
        lambda: model(
            [node("Adam", ["x", "t", "x", "x"], domain="ai.onnx.preview.training")],
            {"x": (1,), "t": ("int64", (1,))},
            domains={"ai.onnx.preview.training": 1},
        ),
        "has 2 operands",
    ),
    "runs that are no rows": (lambda: runs(ngram_counts=[0, 2]), "1 numbers are no runs of 2"),
    "runs that begin before others": (lambda: runs(ngram_counts=[0, 9]), "ngram_counts is .0, 9. for a pool of 3"),
    "columns beyond memory": (lambda: runs(ngram_indexes=[0, 1, 1 << 40]), "3 runs in 1099511627777 columns"),
    "lstm of another size": (
        lambda: model(
            [node("LSTM", ["x", "w", "r"], ["y"], hidden_size=3)],
            {"x": (2, 1, 4)},
            constants={"w": np.ones((1, 12, 4), F32), "r": np.ones((1, 16, 4), F32)},
        ),
        "LSTM 'n': R is",
    ),
    # bombs
    "constant of 2^40 elements": (
        lambda: model([node("ConstantOfShape", ["s"])], {}, constants={"s": np.array([1 << 40])}),
        "bytes exceeds",
    ),
    "constant of 2^80 elements": (
        lambda: model([node("ConstantOfShape", ["s"])], {}, constants={"s": np.array([1 << 40, 1 << 40])}),
        "bytes exceeds",
    ),
    "expand bomb": (lambda: constant_input("Expand", (1,), [1 << 40]), "Expand 'n': "),
    "tile bomb": (lambda: constant_input("Tile", (8,), [1 << 40]), "Tile 'n': "),
    "pad bomb": (lambda: constant_input("Pad", (8,), [0, 1 << 40]), "Pad 'n': "),
    "range bomb": (
        lambda: model(
            [node("Range", ["a", "b", "c"])], {}, constants={"a": np.array(0), "b": np.array(1 << 60), "c": np.array(1)}
        ),
        "Range 'n': .*elements",
    ),
    "range without end": (
        lambda: model([node("Range", ["a", "b", "a"])], {}, constants={"a": np.array(0), "b": np.array(9)}),
        "has no end",
    ),
    "calls that double": (lambda: calls_twice(28), "more than 1000000 nodes with functions inlined"),
    "calls that double in branches": (lambda: calls_twice(15, inside="If"), "more than 1000000 nodes"),
    "calls nested too deeply": (lambda: calls_twice(33), "nested deeper than 32"),
    "scanned sideways": (lambda: scan(scan_input_directions=[7]), "scan_input_directions has 7"),
    "collected sideways": (lambda: scan(scan_output_directions=[-1]), "scan_output_directions has -1"),
    "machine learning of the future": (
        lambda: model([node("Relu")], {"x": (2,)}, domains={"ai.onnx.ml": 999}),
        r"opset 999 of ai.onnx.ml; supported are 1…5",
    ),
    "recursive function": (recursive_function, "functions call each other: own.F -> own.F"),
    # tensors
    "tensor with a negative extent": (lambda: with_weight(tensor(data_type=1, dims=[-2])), "dimensions .-2."),
    "tensor of 2^64 elements": (lambda: with_weight(tensor(data_type=1, dims=[1 << 32, 1 << 32])), "the limit is"),
    "tensor of type 99": (lambda: with_weight(tensor(data_type=99, dims=[2])), "unknown element type 99"),
    "tensor without type": (lambda: with_weight(tensor(dims=[2], float_data=[1, 2])), "element type"),
    "raw data too short": (lambda: with_weight(tensor(data_type=1, dims=[2], raw_data=b"1234")), "4 bytes of data"),
    "raw data too long": (lambda: with_weight(tensor(data_type=1, dims=[2], raw_data=b"1" * 12)), "12 bytes of data"),
    "values missing": (lambda: with_weight(tensor(data_type=1, dims=[2], float_data=[1.0])), "has 1 values"),
    "values in the wrong field": (
        lambda: with_weight(tensor(data_type=1, dims=[2], int64_data=[1, 2])),
        "has data in int64_data",
    ),
    "values in two fields": (
        lambda: with_weight(tensor(data_type=1, dims=[2], float_data=[1, 2], raw_data=b"12345678")),
        "has data in float_data, raw_data",
    ),
    "values out of range": (
        lambda: with_weight(tensor(data_type=TensorProto.INT8, dims=[2], int32_data=[1, 300])),
        "values outside int8",
    ),
    **{
        f"{size} packed bytes of {count} {TensorProto.DataType.Name(code)}": (
            lambda code=code, size=size, count=count: with_weight(
                tensor(data_type=code, dims=[count], raw_data=b"1" * size)
            ),
            f"has {size} bytes of data",
        )
        for code, count, size in (
            *((TensorProto.INT4, 5, size) for size in (0, 2, 4, 5)),
            *((TensorProto.FLOAT4E2M1, 4, size) for size in (1, 3, 4)),
            *((TensorProto.UINT2, 5, size) for size in (1, 3, 5)),
            *((TensorProto.FLOAT6E2M3, 5, size) for size in (3, 5, 6)),
            *((TensorProto.FLOAT8E5M2, 5, size) for size in (3, 4, 6)),
        )
    },
    "packed values that are one for each element": (
        lambda: with_weight(tensor(data_type=TensorProto.UINT4, dims=[5], int32_data=[1, 2, 3, 4, 5])),
        "has 5 values; its shape .5. needs 3",
    ),
    "packed values beyond a byte": (
        lambda: with_weight(tensor(data_type=TensorProto.INT2, dims=[4], int32_data=[256])),
        "8-bit patterns outside 0…255",
    ),
    "negative packed values": (
        lambda: with_weight(tensor(data_type=TensorProto.INT4, dims=[2], int32_data=[-1])),
        "8-bit patterns outside 0…255",
    ),
    "patterns beyond six bits": (
        lambda: with_weight(tensor(data_type=TensorProto.FLOAT6E3M2, dims=[1], int32_data=[64])),
        "6-bit patterns outside 0…63",
    ),
    "patterns beyond a byte": (
        lambda: with_weight(tensor(data_type=TensorProto.FLOAT8E8M0, dims=[1], int32_data=[256])),
        "8-bit patterns outside 0…255",
    ),
    "unsigned values out of range": (
        lambda: with_weight(tensor(data_type=TensorProto.UINT32, dims=[1], uint64_data=[1 << 32])),
        "values outside uint32",
    ),
    "unsigned values in the wrong field": (
        lambda: with_weight(tensor(data_type=TensorProto.UINT64, dims=[1], int64_data=[1])),
        "has data in int64_data",
    ),
    "packed elements that are too many": (
        lambda: with_weight(tensor(data_type=TensorProto.UINT2, dims=[1 << 34], raw_data=b"")),
        "the limit is",
    ),
    "external data without a folder": (lambda: external(location="data"), "not loaded from a file"),
}

BAD |= {
    f"{op} with {attrs}": (partial(microsoft, op, operands, **attrs), message)
    for op, operands, attrs, message in (
        ("QLinearSoftmax", 5, {"axis": 99, "opset": 13}, "axis"),
        ("QLinearSoftmax", 5, {"axis": 0}, "'opset' is missing"),
        ("QLinearAveragePool", 5, {"kernel_shape": [0, -1]}, "kernel_shape"),
        ("QLinearAveragePool", 5, {"kernel_shape": [2, 2], "pads": [-(1 << 40)] * 4}, "at least 0 are needed"),
        ("QLinearAveragePool", 5, {"strides": [1, 1]}, "kernel_shape is"),
        ("FusedConv", 2, {"group": -1}, "groups"),
        ("FusedConv", 2, {"activation_params": "x"}, "activation_params"),
        ("QGemm", 6, {"transA": 1}, "matmul|broadcast|scale"),
        ("DynamicQuantizeMatMul", 3, {}, "floating-point"),
        ("DynamicQuantizeLSTM", 12, {"hidden_size": 2}, "both need rank 3"),
        ("QLinearWhere", 9, {}, "is not one number"),
    )
}


C64 = np.complex64
NOTHING = np.zeros(0, F32)

BAD |= {
    f"complex numbers: {name}": (make, message)
    for name, make, message in (
        (
            "half of one",
            lambda: with_weight(tensor(data_type=TensorProto.COMPLEX64, dims=[1], float_data=[1])),
            "needs 2",
        ),
        (
            "in the wrong field",
            lambda: with_weight(tensor(data_type=TensorProto.COMPLEX128, dims=[1], float_data=[1, 2])),
            "has data in float_data",
        ),
        (
            "cut off",
            lambda: with_weight(tensor(data_type=TensorProto.COMPLEX128, dims=[1], raw_data=bytes(12))),
            "complex128.1. needs 16",
        ),
        ("cast", lambda: of_complex("Cast", (3,), to=TensorProto.FLOAT), "complex64, which opset"),
        ("wider bits", lambda: of_complex("BitCast", (3,), to=TensorProto.COMPLEX128), "has other bits"),
        ("bits of no type", lambda: of_complex("BitCast", (3,), to=-7), "unknown element type -7"),
        (
            "a grid",
            lambda: of_complex("GridSample", (1, 1, 3, 3), np.zeros((1, 2, 2, 2), C64)),
            "'grid'.* is complex64",
        ),
        ("a grid's rank", lambda: of_complex("GridSample", (1, 1, 3, 3), np.zeros((1, 2, 2, 3), F32)), "does not fit"),
        ("two paddings", lambda: of_complex("Pad", (3,), [1, 1], np.zeros(2, C64)), "2 elements instead of one"),
        ("much padding", lambda: of_complex("Pad", (3,), [1 << 40, 1], np.array(1j, C64)), "more than 2147483647"),
        (
            "padded with",
            lambda: constant_input("Pad", (3,), [1, 1], np.array(1j, C64)),
            "complex64, another operand",
        ),
        ("resized to nothing", lambda: of_complex("Resize", (1, 1, 3, 3), NOTHING, NOTHING, [1, 1, 0, 3]), "positive"),
        (
            "resized to too much",
            lambda: of_complex("Resize", (1, 1, 3, 3), NOTHING, NOTHING, [1, 1, 3, 1 << 40], mode="linear"),
            "too long",
        ),
        ("resized by", lambda: constant_input("Resize", (3,), NOTHING, np.ones(1, C64)), "'scales'. is complex64"),
        (
            "no axis for parts",
            lambda: of_complex("Resize", (3, 3), NOTHING, np.ones(1, F32), axes=[2]),
            "axis 2 does not",
        ),
        (
            "reduced somehow",
            lambda: of_complex("ScatterElements", (3,), [0], np.ones(1, C64), reduction="xor"),
            "reduction 'xor' is unknown",
        ),
        (
            "many products",
            lambda: of_complex("ScatterElements", (3,), [0] * 300, np.ones(300, C64), reduction="mul"),
            "more than 256 updates",
        ),
        ("blocks of", lambda: of_complex("Col2Im", (1, 5, 5), [5, 5], [2, 2]), "do not fit an image"),
        ("added", lambda: of_complex("Add", (3,), np.ones(3, C64)), "complex64, which opset"),
        ("a number of elements", lambda: constant_input("TopK", (3,), np.ones(1, C64)), "'K'. is complex64"),
    )
}


@pytest.mark.parametrize("name", BAD)
def test_bad_models_are_refused(name: str) -> None:
    make, message = BAD[name]
    with pytest.raises(ModelError, match=message) as caught:
        load(make())
    assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value)))


def test_every_prefix_of_a_model_is_refused_or_imported() -> None:
    data = conv().SerializeToString()
    rng = np.random.default_rng(7)
    for _ in range(300):
        broken = bytearray(data[: rng.integers(len(data))] if rng.random() < 0.3 else data)
        for _ in range(rng.integers(1, 4)):
            if broken:
                broken[rng.integers(len(broken))] = rng.integers(256)
        try:
            load(bytes(broken), limits=Limits(tensor_bytes=1 << 20))
        except ModelError:
            continue


def test_all_unsupported_operators_are_listed_at_once() -> None:
    nodes = [
        node("ImageDecoder", ["x"], ["a"], "first"),
        node("StringSplit", ["x"], ["b"], "second"),
        node("StringSplit", ["x"], ["c"], "third"),
        node("Relu", ["x"], ["y"]),
    ]
    with pytest.raises(ModelError) as caught:
        load(model(nodes, {"x": (2,)}))
    text = str(caught.value)
    assert "2 unsupported operators" in text
    assert all(name in text for name in ("ImageDecoder", "StringSplit", "'first'", "'second'", "'third'"))
